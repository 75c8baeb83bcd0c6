// Parameters that are parts of larger ones: states of modules and optimizers as DTensors, on one and on several ranks.

#include "torch_dcp/model_state/shard_parameters.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <tuple>

#include "test/model_state/hook_support.h"
#include "torch_dcp/model_state/layout_internal.h"
#include "torch_dcp/model_state/model_state_dict.h"
#include "torch_dcp/model_state/optimizer_positional_state.h"
#include "torch_dcp/tensor/device_mesh.h"
#include "torch_dcp/tensor/dtensor.h"

namespace dcp::test {
namespace {

using testing::RankContext;
using testing::run_ranks;

const Placements kRows = {Placement::shard(0)}, kColumns = {Placement::shard(1)}, kWhole = {Placement::replicate()};

/// in.weight [hidden, 6], in.bias [hidden]; out.weight [4, hidden], out.bias [4]; norm: buffers.
struct MlpImpl : nn::Module {
  explicit MlpImpl(std::int64_t hidden) : in(6, hidden), out(hidden, 4) {
    register_module("in", in);
    register_module("out", out);
    register_module("norm", nn::BatchNorm1d(nn::BatchNormOptions(3).affine(false)));
  }
  nn::Linear in, out;
};
TORCH_MODULE(Mlp);

/// The part of a tensor parallel model that one rank of a mesh of one dimension has.
std::vector<ShardRule> rules_of(const std::shared_ptr<const DeviceMesh>& mesh) {
  return {{"in.*", mesh, kRows}, {"out.weight", mesh, kColumns}, {"*", mesh, kWhole}};
}

/// The same values on all ranks and for all numbers of ranks.
void fill_part(const Dict& state, double shift) {
  for (const auto& [key, value] : state) {
    if (value.kind() != ValueKind::kDTensor) continue;
    const DTensor& part = value.as_dtensor();
    const at::Tensor whole = torch::arange(c10::multiply_integers(part.global_sizes()))
                                 .add(shift + static_cast<double>(to_string(key).size()))
                                 .sin()
                                 .view(c10::IntArrayRef(part.global_sizes()));
    part.local().detach().copy_(DTensor::distribute(whole, part.mesh_ptr(), part.placements()).local());
  }
}

/// A step of each parameter by gradients that depend on its values alone, so that parts step as the whole does.
void step(nn::Module& module, optim::Optimizer& optimizer) {
  for (const at::Tensor& parameter : module.parameters()) {
    at::Tensor held = parameter;
    held.mutable_grad() = parameter.detach().mul(0.5).cos();
  }
  optimizer.step();
}

// --- one process -----------------------------------------------------------------------------------------------------

TEST(ShardParametersTest, TheStateHasDTensorsOfTheLiveTensors) {
  Mlp mlp(2);
  const auto mesh = DeviceMesh::make({3}, 1);
  {
    const HookHandle handle = shard_parameters(*mlp, rules_of(mesh));
    for (const Dict& state : {state_dict(*mlp), get_model_state_dict(*mlp)}) {
      const DTensor& in = state.at("in.weight").as_dtensor();
      EXPECT_TRUE(in.local().is_same(mlp->in->weight));
      EXPECT_EQ(in.global_sizes(), (Sizes{6, 6}));
      EXPECT_EQ(in.placements(), kRows);
      EXPECT_EQ(in.mesh_ptr(), mesh);
      EXPECT_EQ(state.at("out.weight").as_dtensor().global_sizes(), (Sizes{4, 6}));
      EXPECT_EQ(state.at("out.bias").as_dtensor().global_sizes(), (Sizes{4}));
      EXPECT_TRUE(state.at("norm.running_mean").is_tensor()) << "no parameter";
    }
    EXPECT_EQ(state_dict(*mlp->in, {.prefix = "p."}).at("p.weight").as_dtensor().placements(), kRows)
        << "a child taken alone";
    EXPECT_EQ(layouts_of(*mlp).size(), 4);
    EXPECT_EQ(to_string(*layouts_of(*mlp).find("out.weight")), "[4, 6] as [Shard(1)] on mesh [3] of ranks [0, 1, 2]");
  }
  EXPECT_TRUE(state_dict(*mlp).at("in.weight").is_tensor());
  EXPECT_EQ(layouts_of(*mlp).size(), 0);
  EXPECT_EQ(attachment_count(), 0);
}

TEST(ShardParametersTest, ItsOwnStateLoads) {
  Mlp mlp(2), other(2);
  const auto mesh = DeviceMesh::make({3}, 1);
  HookHandle handles = shard_parameters(*mlp, rules_of(mesh));
  handles.add(shard_parameters(*other, rules_of(mesh)));
  const Dict state = state_dict(*mlp);
  const LoadReport report = load_state_dict(*other, state);
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  EXPECT_EQ(first_difference(tensors_of(*other), tensors_of(*mlp)), "");
  load_state_dict(*other->out, state_dict(*mlp->out));
  EXPECT_EQ(state.at("in.weight").kind(), ValueKind::kDTensor) << "the caller's dict";
}

TEST(ShardParametersTest, AnotherLayoutIsRefusedNamingBoth) {
  Mlp mlp(2);
  const auto mesh = DeviceMesh::make({3}, 1);
  const HookHandle handle = shard_parameters(*mlp, rules_of(mesh));
  const Dict before = tensors_of(*mlp);
  Dict state = state_dict(*mlp);
  state["in.weight"] = DTensor(torch::ones({2, 6}), DeviceMesh::make({4}, 1), kRows, {8, 6});
  state["in.bias"] = DTensor(torch::ones(2), DeviceMesh::make({3}, 2), {Placement::replicate()}, {2});
  state["out.bias"] = DTensor(torch::ones(4), DeviceMesh::make({2}, 1), kWhole, {4});
  state["out.weight"] = torch::ones({4, 2});
  for (
      const char* fault :
      {"'in.weight': the given DTensor has another shape than the parameter: [8, 6] as [Shard(0)] on mesh [4] of ranks "
       "[0, 1, 2, 3] is given, [6, 6] as [Shard(0)] on mesh [3] of ranks [0, 1, 2] is needed",
       "'in.bias': the given DTensor has another shape",
       "'out.bias': the given DTensor is spread otherwise than the parameter: [4] as [Replicate()] on mesh [2] of "
       "ranks "
       "[0, 1] is given, [4] as [Replicate()] on mesh [3]",
       "'out.weight': a plain tensor is given, which does not say what part of the whole it is; a DTensor of [4, 6] as "
       "[Shard(1)] on mesh [3] of ranks [0, 1, 2] is needed"}) {
    expect_error(ErrorKind::kShape, fault, [&] { load_state_dict(*mlp, state, {.strict = false}); });
  }
  EXPECT_EQ(first_difference(tensors_of(*mlp), before), "");
}

TEST(ShardParametersTest, APlainTensorOnlyWhereEachRankHasTheWhole) {
  Mlp mlp(2);
  const HookHandle handle = shard_parameters(*mlp, rules_of(DeviceMesh::make({3}, 1)));
  Dict state = state_dict(*mlp);
  state["out.bias"] = torch::full({4}, 9.0f);
  load_state_dict(*mlp, state);
  EXPECT_TRUE(bit_equal(mlp->out->bias, torch::full({4}, 9.0f)));
  state["in.bias"] = torch::full({2}, 9.0f);
  expect_error(ErrorKind::kType, "'in.bias': a plain tensor is given", [&] { load_state_dict(*mlp, state); });
  state["out.bias"] = torch::full({5}, 9.0f);
  expect_error(ErrorKind::kShape, "'out.bias': the given tensor has shape [5]",
               [&] { load_state_dict(*mlp, {{"out.bias", torch::ones(5)}}, {.strict = false}); });
}

TEST(ShardParametersTest, TheFirstRuleThatMatchesCounts) {
  Mlp mlp(2);
  const auto mesh = DeviceMesh::make({2}, 0);
  const HookHandle handle =
      shard_parameters(*mlp, {{"*.bi?s", mesh, kWhole}, {"[io]n.*", mesh, kRows}, {"out.[!b]*", mesh, kColumns}});
  const auto layouts = layouts_of(*mlp);
  EXPECT_EQ(layouts.find("in.bias")->placements, kWhole);
  EXPECT_EQ(layouts.find("in.weight")->placements, kRows);
  EXPECT_EQ(layouts.find("out.weight")->placements, kColumns);
}

TEST(ShardParametersTest, RulesThatDoNotFitAreNamedAndNothingIsRegistered) {
  Mlp mlp(2);
  const auto mesh = DeviceMesh::make({3}, 1);
  const auto refused = [&](ErrorKind kind, const Strings& texts, const std::vector<ShardRule>& rules) {
    for (const std::string& text : texts) expect_error(kind, text, [&] { (void)shard_parameters(*mlp, rules); });
    EXPECT_EQ(attachment_count(), 0);
  };
  refused(ErrorKind::kKey, {"2 faults", "'inn.*': matches no parameter", "'norm.*': matches no parameter"},
          {{"in.*", mesh, kRows}, {"inn.*", mesh, kRows}, {"norm.*", mesh, kWhole}});
  refused(ErrorKind::kShape, {"'in.weight': ", "the part has shape [2, 6], the whole is [7, 6] as [Shard(0)]"},
          {{"in.weight", mesh, kRows, Sizes{7, 6}}});
  refused(ErrorKind::kInvalidArgument, {"2 faults", "'in.bias': ", "'out.bias': "}, {{"*.bias", mesh, kColumns}});
  refused(ErrorKind::kInvalidArgument, {"'in.bias': "}, {{"in.bias", mesh, {Placement::shard(0), kWhole[0]}}});
  refused(ErrorKind::kUnsupported, {"'in.bias': a Partial"}, {{"in.bias", mesh, {Placement::partial()}}});
  refused(ErrorKind::kInvalidArgument, {"'in.bias': the rule has no mesh"}, {{"in.bias", nullptr, kRows}});
  const HookHandle handle = shard_parameters(*mlp, {{"in.bias", mesh, kRows}});
  expect_error(ErrorKind::kKey, "'in.bias': is spread already",
               [&] { (void)shard_parameters(*mlp, {{"in.*", mesh, kRows}}); });
  EXPECT_EQ(layouts_of(*mlp).size(), 1);
}

TEST(ShardParametersTest, AParameterThatChangedItsShapeIsNamed) {
  Mlp mlp(2);
  const HookHandle handle = shard_parameters(*mlp, {{"in.bias", DeviceMesh::make({3}, 1), kRows}});
  mlp->in->bias.set_data(torch::ones(5));
  expect_error(ErrorKind::kShape, "'in.bias' is no longer as shard_parameters found it", [&] { state_dict(*mlp); });
}

TEST(ShardParametersTest, ATiedParameterHasOneLayoutUnderAllItsNames) {
  nn::Linear linear(2, 2);
  nn::Sequential module(linear, linear, nn::Linear(2, 2));
  const auto mesh = DeviceMesh::make({3}, 1);
  const HookHandle handle = shard_parameters(*module, {{"1.weight", mesh, kRows}});
  const Dict state = state_dict(*module);
  EXPECT_EQ(state.at("0.weight").as_dtensor().placements(), kRows);
  EXPECT_EQ(state.at("1.weight").as_dtensor().placements(), kRows);
  EXPECT_TRUE(state.at("2.weight").is_tensor());
  load_state_dict(*module, state);
}

TEST(ShardParametersTest, OfATiedParametersRulesTheFirstCountsWhicheverNameItMatches) {
  nn::Linear linear(2, 2);
  nn::Sequential module(linear, linear);
  const auto mesh = DeviceMesh::make({3}, 1);
  const HookHandle handle = shard_parameters(*module, {{"1.weight", mesh, kWhole}, {"0.weight", mesh, kRows}});
  EXPECT_EQ(state_dict(*module).at("0.weight").as_dtensor().placements(), kWhole);
}

TEST(ShardParametersTest, AllParametersThatAreSpreadAlreadyAreNamed) {
  nn::Linear linear(2, 2);
  const auto mesh = DeviceMesh::make({3}, 1);
  const HookHandle handle = shard_parameters(*linear, {{"*", mesh, kRows}});
  const std::size_t count = attachment_count();
  for (const char* fault : {"2 faults", "'weight': is spread already", "'bias': is spread already"}) {
    expect_error(ErrorKind::kKey, fault, [&] { std::ignore = shard_parameters(*linear, {{"*", mesh, kRows}}); });
  }
  EXPECT_EQ(attachment_count(), count);
}

TEST(ShardParametersTest, ARankOutsideOfTheMeshLoadsAsTheOthersDo) {
  // Of the 2 x 3 elements that ranks 0 and 1 have, rank 2 has none.
  const auto mesh = std::make_shared<const DeviceMesh>(Sizes{2}, std::vector<std::int64_t>{0, 1}, 2);
  nn::Linear linear(3, 0);
  const HookHandle handle =
      shard_parameters(*linear, {{"weight", mesh, kRows, Sizes{2, 3}}, {"bias", mesh, kRows, Sizes{2}}});
  Dict state = state_dict(*linear);
  state["weight"] = DTensor::distribute(torch::ones({2, 3}), mesh, kRows);
  state["bias"] = DTensor::distribute(torch::ones({2}), mesh, kRows);
  const at::Tensor weight = linear->weight;
  EXPECT_TRUE(load_state_dict(*linear, state).missing.empty());
  EXPECT_TRUE(linear->weight.is_same(weight));
  EXPECT_EQ(weight.sizes(), (at::IntArrayRef{0, 3}));
  state["weight"] = DTensor::distribute(torch::ones({4, 3}), mesh, kRows);
  expect_error(ErrorKind::kShape, "[4, 3]", [&] { load_state_dict(*linear, state); });
}

TEST(ShardParametersTest, OptimizersTakeTheLayouts) {
  for (const Case& each : cases()) {
    if (each.has_history) continue;  // LBFGS: below
    SCOPED_TRACE(each.name);
    Mlp mlp(2), other(2);
    const auto mesh = DeviceMesh::make({3}, 1);
    HookHandle handles = shard_parameters(*mlp, rules_of(mesh));
    handles.add(shard_parameters(*other, rules_of(mesh)));
    const OptimizerPtr optimizer = each.make(mlp->parameters(), 0.1), loaded = each.make(other->parameters(), 0.7);
    step(*mlp, *optimizer);
    for (const bool flatten : {false, true}) {
      const Dict state = get_optimizer_state_dict(*mlp, *optimizer, form(flatten));
      set_optimizer_state_dict(*other, *loaded, state, form(flatten));
      EXPECT_EQ(first_difference(get_optimizer_state_dict(*other, *loaded, form(flatten)), state), "");
    }
    const Dict state = state_dict(*optimizer);
    int parts = 0;
    for (const auto& [number, values] : state.at("state").as_dict()) {
      for (const auto& [name, value] : values.as_dict()) {
        EXPECT_EQ(value.kind() == ValueKind::kDTensor, to_string(name) != "step");
        parts += value.kind() == ValueKind::kDTensor ? 1 : 0;
      }
    }
    EXPECT_EQ(parts > 0, each.has_state);
    load_state_dict(*loaded, state);
    EXPECT_EQ(first_difference(state_dict(*loaded), state), "");
  }
}

TEST(ShardParametersTest, AnOptimizersStateOfAnotherLayoutIsRefused) {
  Mlp mlp(2);
  const auto mesh = DeviceMesh::make({3}, 1);
  const HookHandle handle = shard_parameters(*mlp, {{"in.weight", mesh, kRows}});
  optim::Adam adam(mlp->parameters(), optim::AdamOptions(0.1));
  step(*mlp, adam);
  Dict state = get_optimizer_state_dict(*mlp, adam);
  Dict& of_weight = state.at("state").as_dict().at("in.weight").as_dict();
  of_weight["exp_avg"] = DTensor(torch::ones({2, 6}), mesh, kWhole, {2, 6});
  of_weight["exp_avg_sq"] = torch::ones({2, 6});
  for (const char* fault : {"'state.in.weight.exp_avg': the given DTensor has another shape than the parameter: [2, 6] "
                            "as [Replicate()] on mesh [3]",
                            "'state.in.weight.exp_avg_sq': a plain tensor is given, which does not say"}) {
    expect_error(ErrorKind::kShape, fault, [&] { set_optimizer_state_dict(*mlp, adam, state); });
  }
  optim::LBFGS lbfgs(mlp->parameters(), optim::LBFGSOptions(1));
  expect_error(ErrorKind::kUnsupported, "'in.weight'", [&] { get_optimizer_state_dict(*mlp, lbfgs); });
  expect_error(ErrorKind::kUnsupported, "'0'", [&] { state_dict(lbfgs); });
}

TEST(ShardParametersTest, ADeadParametersLayoutIsNotThatOfAnother) {
  const auto mesh = DeviceMesh::make({3}, 1);
  HookHandle handles;
  for (int i = 0; i < 20; ++i) {
    nn::Linear linear(2, 2);
    EXPECT_EQ(layouts_of(*linear).size(), 0);
    if (i % 2 == 0) handles.add(shard_parameters(*linear, {{"*", mesh, kRows}}));
  }
}

// --- several ranks ---------------------------------------------------------------------------------------------------

Place place_of(const RankContext& ranks, std::shared_ptr<FileSystem> files) {
  return {std::move(files), std::make_shared<Communicator>(ranks.communicator())};
}

TEST(ShardParametersTest, SavedOnFourRanksLoadedOnTwoAndOnOne) {
  const auto files = make_memory_file_system();
  run_ranks(4, [&](RankContext& ranks) {
    Mlp mlp(2);  // of a hidden width of 8
    const HookHandle handle = shard_parameters(*mlp, rules_of(DeviceMesh::make({4}, ranks.rank())));
    fill_part(state_dict(*mlp), 0.25);
    optim::Adam adam(mlp->parameters(), optim::AdamOptions(0.1));
    step(*mlp, adam);
    step(*mlp, adam);
    place_of(ranks, files).save({{"model", state_dict(*mlp)}, {"optim", get_optimizer_state_dict(*mlp, adam)}});
  });
  run_ranks(2, [&](RankContext& ranks) {
    Mlp mlp(4), uninterrupted(4);
    const auto mesh = DeviceMesh::make({2}, ranks.rank());
    HookHandle handles = shard_parameters(*mlp, rules_of(mesh));
    handles.add(shard_parameters(*uninterrupted, rules_of(mesh)));
    optim::Adam adam(mlp->parameters(), optim::AdamOptions(7)),
        expected(uninterrupted->parameters(), optim::AdamOptions(0.1));
    Dict state = {{"model", state_dict(*mlp)}, {"optim", get_optimizer_state_dict(*mlp, adam)}};
    place_of(ranks, files).load(state);
    load_state_dict(*mlp, state.at("model").as_dict());
    set_optimizer_state_dict(*mlp, adam, state.at("optim").as_dict());
    fill_part(state_dict(*uninterrupted), 0.25);
    for (int i = 0; i < 2; ++i) step(*uninterrupted, expected);
    EXPECT_EQ(
        first_difference(get_optimizer_state_dict(*mlp, adam), get_optimizer_state_dict(*uninterrupted, expected)), "");
    EXPECT_EQ(first_difference(tensors_of(*mlp->in), tensors_of(*uninterrupted->in)), "");
    EXPECT_EQ(first_difference(tensors_of(*mlp->out), tensors_of(*uninterrupted->out)), "");
  });
  // Without ranks the whole model has the names and shapes of the parts together.
  Mlp whole(8);
  optim::Adam adam(whole->parameters(), optim::AdamOptions(7));
  Dict state = {{"model", state_dict(*whole)}, {"optim", get_optimizer_state_dict(*whole, adam)}};
  Place{files}.load(state);
  load_state_dict(*whole, state.at("model").as_dict());
  set_optimizer_state_dict(*whole, adam, state.at("optim").as_dict());
  Mlp expected(8);
  const HookHandle handle = shard_parameters(*expected, rules_of(DeviceMesh::make({1}, 0)));
  fill_part(state_dict(*expected), 0.25);
  optim::Adam of_expected(expected->parameters(), optim::AdamOptions(0.1));
  for (int i = 0; i < 2; ++i) step(*expected, of_expected);
  EXPECT_EQ(first_difference(tensors_of(*whole->in), tensors_of(*expected->in)), "");
  EXPECT_EQ(first_difference(tensors_of(*whole->out), tensors_of(*expected->out)), "");
  EXPECT_EQ(first_difference(state_dict(adam).at("param_groups"), state_dict(of_expected).at("param_groups")), "");
}

/// A parameter of rows that the number of ranks does not divide, and none on the last ranks.
struct Rows : nn::Module {
  explicit Rows(std::int64_t rows) { w = register_parameter("w", torch::zeros({rows, 2})); }
  at::Tensor w;
};

TEST(ShardParametersTest, UnevenPartsByTheShapeOfTheWhole) {
  const auto files = make_memory_file_system();
  const at::Tensor whole = torch::arange(10.0).view({5, 2});
  const auto part_of = [&](std::int64_t rank, std::int64_t size) {
    const auto mesh = DeviceMesh::make({size}, rank);
    return DTensor::distribute(whole, mesh, kRows);
  };
  run_ranks(4, [&](RankContext& ranks) {  // 2, 2, 1 and no rows
    const DTensor part = part_of(ranks.rank(), 4);
    Rows module(part.local().size(0));
    const HookHandle handle = shard_parameters(module, {{"w", part.mesh_ptr(), kRows, Sizes{5, 2}}});
    module.w.detach().copy_(part.local());
    place_of(ranks, files).save({{"model", state_dict(module)}});
  });
  run_ranks(3, [&](RankContext& ranks) {
    const DTensor part = part_of(ranks.rank(), 3);
    Rows module(part.local().size(0));
    const HookHandle handle = shard_parameters(module, {{"*", part.mesh_ptr(), kRows, Sizes{5, 2}}});
    Dict state = {{"model", state_dict(module)}};
    place_of(ranks, files).load(state);
    load_state_dict(module, state.at("model").as_dict());
    EXPECT_TRUE(bit_equal(module.w, part.local()));
  });
}

TEST(ShardParametersTest, OverAMeshOfTwoDimensions) {
  const auto files = make_memory_file_system();
  const at::Tensor whole = torch::arange(32.0).view({8, 4});
  run_ranks(4, [&](RankContext& ranks) {
    const auto mesh = DeviceMesh::make({2, 2}, ranks.rank());
    const Placements placements = {Placement::replicate(), Placement::shard(0)};
    Rows module(4);
    module.w.set_data(DTensor::distribute(whole, mesh, placements).local());
    const HookHandle handle = shard_parameters(module, {{"w", mesh, placements}});
    EXPECT_EQ(state_dict(module).at("w").as_dtensor().global_sizes(), (Sizes{8, 4}));
    place_of(ranks, files).save({{"model", state_dict(module)}});
  });
  FileSystemReader reader("ckpt", {.file_system = files});
  EXPECT_TRUE(bit_equal(load_keys(reader).at("model").as_dict().at("w"), whole));
}

}  // namespace
}  // namespace dcp::test
