// Full states: gathered from the ranks, given to all of them, sent from rank 0. Everything with parameters that are
// spread, replicated and plain.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "test/model_state/hook_support.h"
#include "test/support/memory_counter.h"
#include "torch_dcp/model_state/extra_state.h"
#include "torch_dcp/model_state/model_state_dict.h"
#include "torch_dcp/model_state/random_state.h"
#include "torch_dcp/model_state/shard_parameters.h"
#include "torch_dcp/model_state/training_state.h"
#include "torch_dcp/tensor/device_mesh.h"
#include "torch_dcp/tensor/dtensor.h"

namespace dcp::test {
namespace {

using testing::RankContext;
using testing::run_ranks;

/// in.weight [hidden, 3] and in.bias [hidden], by rows; head.weight [2, hidden], by columns; head.bias [2] and table
/// [4], a buffer, plain; scale [3], on every rank and frozen.
struct MixedImpl : nn::Module {
  explicit MixedImpl(std::int64_t hidden) : in(3, hidden), head(hidden, 2) {
    register_module("in", in);
    register_module("head", head);
    scale = register_parameter("scale", torch::ones(3), /*requires_grad=*/false);
    table = register_buffer("table", torch::zeros(4));
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) parameter.fill_(-1);
  }
  nn::Linear in, head;
  at::Tensor scale, table;
};
TORCH_MODULE(Mixed);

const Strings kMixed = {"scale", "table", "in.weight", "in.bias", "head.weight", "head.bias"};
constexpr std::int64_t kHidden = 8;

void step(nn::Module& module, optim::Optimizer& optimizer) {
  for (const at::Tensor& parameter : module.parameters()) {
    at::Tensor held = parameter;
    if (held.requires_grad()) held.mutable_grad() = parameter.detach().mul(0.5).cos();
  }
  optimizer.step();
}

OptimizerPtr adam_over(nn::Module& module, double lr) {
  return std::make_unique<optim::Adam>(module.parameters(), optim::AdamOptions(lr));
}

/// The model as a whole, after two steps.
struct Whole {
  Whole() : model(kHidden), optimizer(adam_over(*model, 0.1)) {
    const torch::NoGradGuard no_grad;
    double shift = 0;
    for (const auto& [key, value] : get_model_state_dict(*model)) {
      const at::Tensor& tensor = value.as_tensor();
      tensor.detach().copy_(torch::arange(tensor.numel()).add(shift += 0.7).sin().view(tensor.sizes()));
    }
    step(*model, *optimizer);
    step(*model, *optimizer);
    std::tie(model_state, optimizer_state) = get_state_dict(*model, *optimizer);
    model_state = deep_copy(model_state);
    optimizer_state = deep_copy(optimizer_state);
  }
  Mixed model;
  OptimizerPtr optimizer;
  Dict model_state, optimizer_state;
};

/// One rank's part of it, not yet filled.
struct Part {
  Part(int rank, int size, double lr = 0.4)
      : mesh(DeviceMesh::make({size}, rank)),
        model(kHidden / size),
        handle(shard_parameters(*model, {{"in.*", mesh, {Placement::shard(0)}},
                                         {"head.weight", mesh, {Placement::shard(1)}},
                                         {"scale", mesh, {Placement::replicate()}}})),
        optimizer(adam_over(*model, lr)) {}

  /// What it must hold after a load of the whole.
  void expect_part_of(const Whole& whole) const {
    const auto [model_state, optimizer_state] = get_state_dict(*model, *optimizer);
    expect_parts(whole.model_state, model_state);
    expect_parts(whole.optimizer_state, optimizer_state);
  }

  void expect_parts(const Value& whole, const Value& mine) const {
    if (mine.is_dict()) {
      ASSERT_EQ(keys(mine.as_dict()), keys(whole.as_dict()));
      for (const auto& [key, value] : mine.as_dict()) {
        SCOPED_TRACE(to_string(key));
        expect_parts(whole.as_dict().at(key), value);
      }
    } else if (mine.kind() == ValueKind::kDTensor) {
      const DTensor& part = mine.as_dtensor();
      const DTensor wanted = DTensor::distribute(whole.as_tensor().detach(), part.mesh_ptr(), part.placements());
      EXPECT_EQ(first_difference(wanted.local(), part.local().detach()), "");
    } else {
      EXPECT_EQ(first_difference(whole, mine), "");
    }
  }

  std::shared_ptr<const DeviceMesh> mesh;
  Mixed model;
  HookHandle handle;
  OptimizerPtr optimizer;
};

StateDictOptions options_of(RankContext& ranks) {
  StateDictOptions options;
  options.communicator = std::make_shared<Communicator>(ranks.communicator());
  return options;
}

/// Options for a load of full states.
StateDictOptions full_of(RankContext& ranks, bool broadcast = false) {
  StateDictOptions options = options_of(ranks);
  options.full_state_dict = true;
  options.broadcast_from_rank0 = broadcast;
  return options;
}

Dict only_on_rank0(const RankContext& ranks, const Dict& state) { return ranks.rank() == 0 ? state : Dict(); }

// --- cases -----------------------------------------------------------------------------------------------------------

/// Collects what LibTorch warns of.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  Strings texts;
};

TEST(FullStateTest, O06_OneRowOnA2x4MeshSetFromAFullDict) {
  run_ranks(8, [](RankContext& ranks) {
    Warnings warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    const auto begin = std::chrono::steady_clock::now();
    const auto mesh = DeviceMesh::make({2, 4}, ranks.rank());
    const auto net = std::make_shared<nn::Module>();
    const std::int64_t rows = ranks.rank() < 4 ? 1 : 0;
    net->register_parameter("p", torch::zeros({rows, 17}));
    const HookHandle handle =
        shard_parameters(*net, {{"p", mesh, {Placement::shard(0), Placement::replicate()}, Sizes{1, 17}}});
    const at::Tensor whole = torch::arange(17.0f).view({1, 17});
    StateDictOptions options = full_of(ranks, /*broadcast=*/true);
    set_model_state_dict(*net, only_on_rank0(ranks, {{"p", whole}}), options);
    EXPECT_EQ(first_difference(net->parameters().front().detach(), whole.narrow(0, 0, rows)), "");
    options.broadcast_from_rank0 = false;
    EXPECT_EQ(first_difference(get_model_state_dict(*net, options), Dict{{"p", whole}}), "");
    EXPECT_EQ(warnings.texts, Strings());
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  });
}

std::shared_ptr<nn::Module> module_of(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  const auto module = std::make_shared<nn::Module>();
  for (const auto& [name, tensor] : tensors) module->register_parameter(name, tensor);
  return module;
}

TEST(FullStateTest, O15_SizesThatDifferAloneAndOnTwoRanks) {
  using Pair = std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>;
  const std::vector<Pair> pairs = {{{4, 3}, {3, 4}},    {{4, 3}, {12}}, {{4, 3}, {4}},
                                   {{4, 3}, {4, 3, 1}}, {{5}, {}},      {{}, {5}}};
  alone_and_on_two_ranks([&](const Place& place) {
    for (const auto& [stored, current] : pairs) {
      const auto module = module_of({{"a", torch::full(current, 7.0)},
                                     {"b", torch::full(current, 7.0)},
                                     {"c", torch::full(current, 7.0)},
                                     {"fits", torch::full({2}, 7.0)}});
      const Dict before = tensors_of(*module);
      const Dict given = {{"a", torch::ones(stored)},
                          {"b", torch::ones(stored)},
                          {"c", torch::ones(stored)},
                          {"fits", torch::ones({2})}};
      place.save({{"model", given}});
      for (const bool strict : {true, false}) {
        StateDictOptions options;
        options.strict = strict;
        options.communicator = place.communicator;
        FileSystemReader reader("ckpt", {.file_system = place.files});
        const Dict read = load_keys(reader).at("model").as_dict();
        for (const char* name : {"'a'", "'b'", "'c'"}) {
          const std::string fault = c10::str(name, ": the given tensor has shape ", c10::IntArrayRef(stored),
                                             ", the current one ", c10::IntArrayRef(current));
          expect_error(ErrorKind::kShape, fault, [&] { set_model_state_dict(*module, read, options); });
        }
        EXPECT_EQ(first_difference(tensors_of(*module), before), "");
      }
    }
  });
}

TEST(FullStateTest, O15_SizesDifferThroughSetModelOnTwoRanks) {
  run_ranks(2, [](RankContext& ranks) {
    const Whole whole;
    for (const bool broadcast : {false, true}) {
      Part part(ranks.rank(), ranks.size());
      const Dict before = tensors_of(*part.model);
      Dict given = whole.model_state;
      given["in.weight"] = torch::ones({3, 8});
      given["head.bias"] = torch::ones(3);
      given["in.bias"] = torch::ones({});
      for (const bool strict : {true, false}) {
        StateDictOptions options = full_of(ranks, broadcast);
        options.strict = strict;
        for (const char* fault : {"'in.weight': the given tensor has shape [3, 8], the current one [8, 3]",
                                  "'head.bias': the given tensor has shape [3], the current one [2]",
                                  "'in.bias': the given tensor has shape [], the current one [8]"}) {
          expect_error(ErrorKind::kShape, fault, [&] {
            set_model_state_dict(*part.model, broadcast ? only_on_rank0(ranks, given) : given, options);
          });
        }
      }
      EXPECT_EQ(first_difference(tensors_of(*part.model), before), "");
    }
  });
}

TEST(FullStateTest, O26_ab_GetFull) {
  run_ranks(4, [](RankContext& ranks) {
    const Whole whole;
    Part part(ranks.rank(), ranks.size());
    const Dict before = tensors_of(*part.model);
    expect_error(ErrorKind::kState, "is empty", [&] {  // Without a broadcast each rank needs all of it.
      set_model_state_dict(*part.model, only_on_rank0(ranks, whole.model_state), full_of(ranks));
    });
    EXPECT_EQ(first_difference(tensors_of(*part.model), before), "");
    set_state_dict(*part.model, *part.optimizer, whole.model_state, whole.optimizer_state, full_of(ranks));
    part.expect_part_of(whole);
    StateDictOptions options = full_of(ranks);
    for (const bool flatten : {false, true}) {
      options.flatten_optimizer_state_dict = flatten;
      options.cpu_offload = false;
      const auto [model, optimizer] = get_state_dict(*part.model, *part.optimizer, options);
      EXPECT_EQ(first_difference(model, whole.model_state), "");
      const Dict wanted = get_optimizer_state_dict(*whole.model, *whole.optimizer, form(flatten));
      EXPECT_EQ(first_difference(optimizer, wanted), "") << "nested values are gathered too";
      options.cpu_offload = true;
      const auto [on_rank0, optimizer_on_rank0] = get_state_dict(*part.model, *part.optimizer, options);
      EXPECT_EQ(first_difference(on_rank0, only_on_rank0(ranks, whole.model_state)), "");
      EXPECT_EQ(first_difference(optimizer_on_rank0, only_on_rank0(ranks, wanted)), "");
    }
  });
}

TEST(FullStateTest, O26_c_SetFromRank0) {
  run_ranks(4, [](RankContext& ranks) {
    const Whole whole;
    for (const bool flatten : {false, true}) {
      Part part(ranks.rank(), ranks.size());
      StateDictOptions options = full_of(ranks, /*broadcast=*/true);
      options.flatten_optimizer_state_dict = flatten;
      const Dict optimizer = get_optimizer_state_dict(*whole.model, *whole.optimizer, form(flatten));
      const LoadReport report = set_state_dict(*part.model, *part.optimizer, only_on_rank0(ranks, whole.model_state),
                                               only_on_rank0(ranks, optimizer), options);
      EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.converted.empty());
      part.expect_part_of(whole);
      // In two calls, of which the second finds state that is there.
      set_optimizer_state_dict(*part.model, *part.optimizer, only_on_rank0(ranks, optimizer), options);
      set_model_state_dict(*part.model, only_on_rank0(ranks, whole.model_state), options);
      part.expect_part_of(whole);
    }
  });
}

TEST(FullStateTest, O26_d_NothingIsSharded) {
  run_ranks(4, [](RankContext& ranks) {
    Net source, net;
    optim::Adam of_source(source.parameters(), 0.1), adam(net.parameters(), 0.3);
    train(source, of_source, 2);
    const auto [model, optimizer] = get_state_dict(source, of_source);
    set_state_dict(net, adam, only_on_rank0(ranks, model), only_on_rank0(ranks, optimizer), full_of(ranks, true));
    EXPECT_EQ(first_difference(get_model_state_dict(net), model), "");
    EXPECT_EQ(first_difference(get_optimizer_state_dict(net, adam), optimizer), "");
  });
}

TEST(FullStateTest, O26_ef_NamesThatDoNotFit) {
  run_ranks(4, [](RankContext& ranks) {
    const Whole whole;
    for (const bool offload : {false, true}) {
      Part part(ranks.rank(), ranks.size());
      const Dict before = tensors_of(*part.model);
      StateDictOptions options = full_of(ranks, true);
      options.cpu_offload = offload;
      Dict more = whole.model_state;
      more["z"] = torch::ones(3);
      for (const std::string& name : kMixed) {  // sharded, replicated and plain ones, and a buffer
        Dict lacks = whole.model_state;
        lacks.erase(name);
        expect_error(ErrorKind::kKey, "'" + name + "': is missing",
                     [&] { set_model_state_dict(*part.model, only_on_rank0(ranks, lacks), options); });
      }
      expect_error(ErrorKind::kKey, "'z': is unexpected",
                   [&] { set_model_state_dict(*part.model, only_on_rank0(ranks, more), options); });
      EXPECT_EQ(first_difference(tensors_of(*part.model), before), "") << "on all ranks";
      options.strict = false;
      EXPECT_EQ(set_model_state_dict(*part.model, only_on_rank0(ranks, more), options).unexpected, Strings{"z"});
      for (const std::string& name : kMixed) {
        Dict lacks = whole.model_state;
        lacks.erase(name);
        EXPECT_EQ(set_model_state_dict(*part.model, only_on_rank0(ranks, lacks), options).missing, Strings{name});
      }
      EXPECT_EQ(first_difference(get_model_state_dict(*part.model, full_of(ranks)), whole.model_state), "");
    }
  });
}

// --- all combinations of options -------------------------------------------------------------------------------------

struct Combination {
  explicit Combination(int bits) : bits(bits) {}
  bool has(int bit) const { return (bits >> bit & 1) != 0; }

  StateDictOptions options(const std::shared_ptr<Communicator>& communicator) const {
    StateDictOptions options;
    options.full_state_dict = has(0);
    options.cpu_offload = has(1);
    options.ignore_frozen_params = has(2);
    options.keep_submodule_prefixes = has(3);
    options.strict = has(4);
    options.broadcast_from_rank0 = has(5);
    options.flatten_optimizer_state_dict = has(6);
    options.communicator = communicator;
    return options;
  }
  int bits;
};

/// All that a getter must leave alone, bit by bit.
Dict all_of(const Part& part) {
  Dict all = tensors_of(*part.model);
  for (const auto& item : part.model->named_parameters()) {
    if (item.value().grad().defined()) all["grad." + item.key()] = item.value().grad().clone();
    const auto state = part.optimizer->state().find(item.value().unsafeGetTensorImpl());
    if (state == part.optimizer->state().end()) continue;
    const auto& adam = static_cast<const optim::AdamParamState&>(*state->second);
    all["state." + item.key()] = Tuple{adam.step(), adam.exp_avg().clone(), adam.exp_avg_sq().clone()};
  }
  all["lr"] = part.optimizer->param_groups()[0].options().get_lr();
  return all;
}

/// Both ranks' dicts, for a rank that has none of its own.
struct Exchange {
  std::vector<std::pair<Dict, Dict>> by_rank;
};

void check_combination(const Combination& combination, int rank, int size,
                       const std::shared_ptr<Communicator>& communicator, Exchange& exchange) {
  const Whole whole;
  Part source(rank, size), fresh(rank, size, 0.9);
  set_state_dict(*source.model, *source.optimizer, whole.model_state, whole.optimizer_state, {.full_state_dict = true});
  StateDictOptions options = combination.options(communicator);
  const auto submodules = [&](const Part& part) {
    return options.keep_submodule_prefixes ? Submodules() : Submodules{part.model->in.get()};
  };
  if (options.broadcast_from_rank0) {
    expect_error(ErrorKind::kInvalidArgument, "'broadcast_from_rank0': is for setters",
                 [&] { get_state_dict(*source.model, *source.optimizer, options, submodules(source)); });
  }
  StateDictOptions getter = options;
  getter.broadcast_from_rank0 = false;
  const Dict before = all_of(source);
  const at::Tensor generator = get_random_state();
  auto states = get_state_dict(*source.model, *source.optimizer, getter, submodules(source));
  EXPECT_EQ(first_difference(all_of(source), before), "") << "a getter changes nothing";
  if (size == 1) {  // Ranks are threads, which share the generator.
    EXPECT_EQ(first_difference(get_random_state(), generator), "");
  }
  const bool has_none = options.full_state_dict && options.cpu_offload && rank != 0;
  EXPECT_EQ(states.first.empty(), has_none);
  EXPECT_EQ(states.second.empty(), has_none);
  if (options.full_state_dict && options.cpu_offload && !options.broadcast_from_rank0) {
    exchange.by_rank[static_cast<std::size_t>(rank)] = states;
    communicator->all_gather({});
    states = exchange.by_rank[0];
    communicator->all_gather({});
  }
  const auto set = [&] {
    return set_state_dict(*fresh.model, *fresh.optimizer, states.first, states.second, options, submodules(fresh));
  };
  if (options.broadcast_from_rank0 && !options.full_state_dict) {
    return expect_error(ErrorKind::kInvalidArgument, "'broadcast_from_rank0': needs full_state_dict", [&] { set(); });
  }
  const LoadReport report = set();
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.converted.empty());
  const StateDictOptions plain = {.ignore_frozen_params = options.ignore_frozen_params};
  const auto wanted = get_state_dict(*source.model, *source.optimizer, plain, submodules(source));
  const auto found = get_state_dict(*fresh.model, *fresh.optimizer, plain, submodules(fresh));
  EXPECT_EQ(keys(found.first), keys(wanted.first));
  EXPECT_EQ(first_difference(found.first, wanted.first), "");
  EXPECT_EQ(first_difference(found.second, wanted.second), "");
}

TEST(FullStateTest, AllCombinationsOfOptionsAreTheIdentityOrNamedInOneProcess) {
  const auto communicator = std::make_shared<Communicator>(Communicator::single());
  Exchange exchange = {std::vector<std::pair<Dict, Dict>>(1)};
  for (int bits = 0; bits < 128; ++bits) {
    SCOPED_TRACE(bits);
    check_combination(Combination(bits), 0, 1, communicator, exchange);
  }
}

TEST(FullStateTest, AllCombinationsOfOptionsAreTheIdentityOrNamedOnTwoRanks) {
  Exchange exchange = {std::vector<std::pair<Dict, Dict>>(2)};
  run_ranks(2,
            [&](RankContext& ranks) {
              const auto communicator = std::make_shared<Communicator>(ranks.communicator());
              for (int bits = 0; bits < 128; ++bits) {
                SCOPED_TRACE(bits);
                ranks.note(std::to_string(bits));
                check_combination(Combination(bits), ranks.rank(), 2, communicator, exchange);
              }
            },
            {.deadline = std::chrono::seconds(120)});
}

// --- further ---------------------------------------------------------------------------------------------------------

TEST(FullStateTest, EveryRankHasTheSameKeysInTheSameOrder) {
  run_ranks(4, [](RankContext& ranks) {
    const Part part(ranks.rank(), ranks.size());
    const auto [model, optimizer] = get_state_dict(*part.model, *part.optimizer, form(true));
    std::string all;
    for (const Dict& state : {model, optimizer}) all += c10::Join(",", keys(state)) + ";";
    auto communicator = ranks.communicator();
    for (const Bytes& other : communicator.all_gather(Bytes(all.begin(), all.end()))) {
      EXPECT_EQ(std::string(other.begin(), other.end()), all);
    }
    EXPECT_EQ(keys(model), kMixed);
  });
}

TEST(FullStateTest, AGetterWithoutFullTalksToNobody) {
  run_ranks(2, [](RankContext& ranks) {
    Part part(ranks.rank(), ranks.size());
    StateDictOptions options = options_of(ranks);
    if (ranks.rank() == 0) {  // The other takes no part.
      get_state_dict(*part.model, *part.optimizer, options);
      options.cpu_offload = true;
      get_state_dict(*part.model, *part.optimizer, options);
      options.communicator = nullptr;
      options.process_group = ranks.unconnected_group();
      get_model_state_dict(*part.model, options);
    }
  });
}

TEST(FullStateTest, WithoutAGroupNothingCanBeGathered) {
  const Part part(0, 2);
  for (const char* text : {"'full_state_dict': needs process_group or communicator", "in.weight, in.bias"}) {
    expect_error(ErrorKind::kInvalidArgument, text,
                 [&] { get_model_state_dict(*part.model, {.full_state_dict = true}); });
  }
  const Part alone(0, 1);
  EXPECT_TRUE(get_model_state_dict(*alone.model, {.full_state_dict = true}).at("in.weight").is_tensor());
}

TEST(FullStateTest, AProcessGroupServesAsWell) {
  run_ranks(2, [](RankContext& ranks) {
    const Whole whole;
    Part part(ranks.rank(), ranks.size());
    StateDictOptions options = {.full_state_dict = true, .broadcast_from_rank0 = true};
    options.process_group = ranks.group();
    set_model_state_dict(*part.model, only_on_rank0(ranks, whole.model_state), options);
    options.broadcast_from_rank0 = false;
    EXPECT_EQ(first_difference(get_model_state_dict(*part.model, options), whole.model_state), "");
  });
}

TEST(FullStateTest, AMetaModuleIsFilledFromRank0) {
  run_ranks(2, [](RankContext& ranks) {
    const auto make = [](const at::TensorOptions& options) {
      const auto net = std::make_shared<nn::Module>();
      net->register_parameter("spread", torch::zeros({2, 3}, options));
      net->register_parameter("plain", torch::zeros({2}, options));
      return net;
    };
    const auto net = make(at::kMeta);
    const auto mesh = DeviceMesh::make({2}, ranks.rank());
    const HookHandle handle = shard_parameters(*net, {{"spread", mesh, {Placement::shard(0)}}});
    optim::SGD sgd(net->parameters(), optim::SGDOptions(0.1).momentum(0.9));
    const Dict full = {{"spread", torch::arange(12.0f).view({4, 3})}, {"plain", torch::ones(2)}};
    List params = {"spread", "plain"};
    Dict group = get_optimizer_state_dict(*net, sgd).at("param_groups").as_list().front().as_dict();
    const Dict momentum = {{"state", Dict{{"spread", Dict{{"momentum_buffer", torch::arange(12.0f).view({4, 3})}}},
                                          {"plain", Dict{{"momentum_buffer", torch::full(2, 3.0f)}}}}},
                           {"param_groups", List{group}}};
    set_state_dict(*net, sgd, only_on_rank0(ranks, full), only_on_rank0(ranks, momentum), full_of(ranks, true));
    EXPECT_TRUE(net->parameters()[0].is_cpu() && net->parameters()[1].is_cpu());
    EXPECT_EQ(first_difference(get_model_state_dict(*net, full_of(ranks)), full), "");
    EXPECT_EQ(first_difference(get_optimizer_state_dict(*net, sgd, full_of(ranks)), momentum), "");
  });
}

TEST(FullStateTest, HooksAndExtraStateGetRank0sValues) {
  run_ranks(2, [](RankContext& ranks) {
    Leaf leaf(1);
    Value extra = Dict{{"n", 1}};
    HookHandle handles = register_extra_state(*leaf, [&] { return extra; }, [&](const Value& value) { extra = value; });
    handles.add(register_state_dict_post_hook(*leaf, [](nn::Module&, Dict& state, const std::string& prefix) {
      Value value = state.at(prefix + "w");
      state.erase(prefix + "w");
      state[prefix + "w2"] = std::move(value);
    }));
    handles.add(register_load_state_dict_pre_hook(*leaf, [](const LoadPreHookArgs& args) {
      // Real elements, not only their sizes.
      args.state["w"] = args.state.at("w2").as_tensor().add(1);
      args.state.erase("w2");
    }));
    const Dict full = {{"w2", torch::full(2, 4.0f)},
                       {"b", torch::full(3, 5.0f)},
                       {"_extra_state", Dict{{"n", 7}, {"t", torch::full(2, 6.0f)}}}};
    set_model_state_dict(*leaf, only_on_rank0(ranks, full), full_of(ranks, true));
    EXPECT_EQ(first_difference(leaf->w.detach(), torch::full(2, 5.0f)), "");
    EXPECT_EQ(first_difference(extra, full.at("_extra_state")), "");
  });
}

TEST(FullStateTest, DtypesAreConvertedByThePolicy) {
  run_ranks(2, [](RankContext& ranks) {
    for (const bool broadcast : {false, true}) {
      const Whole whole;
      Part part(ranks.rank(), ranks.size());
      part.model->to(at::kDouble);
      const StateDictOptions options = full_of(ranks, broadcast);
      const LoadReport report = set_model_state_dict(
          *part.model, broadcast ? only_on_rank0(ranks, whole.model_state) : whole.model_state, options);
      EXPECT_EQ(report.converted.size(), 6U);
      const Dict found = get_model_state_dict(*part.model, full_of(ranks));
      for (const auto& [key, value] : found) {
        EXPECT_EQ(first_difference(value, whole.model_state.at(key).as_tensor().to(at::kDouble)), "");
      }
      StateDictOptions exact = options;
      exact.dtype_policy = DtypePolicy::kExact;
      expect_error(ErrorKind::kType, "'in.weight'", [&] {
        set_model_state_dict(*part.model, broadcast ? only_on_rank0(ranks, whole.model_state) : whole.model_state,
                             exact);
      });
    }
  });
}

TEST(FullStateTest, TiedParametersWithDifferentValuesAreRefusedOnAllRanks) {
  run_ranks(2, [](RankContext& ranks) {
    const auto net = std::make_shared<nn::Module>();
    const nn::Linear tied(2, 2);
    tied->weight.detach().fill_(0.5);  // The same on both ranks.
    tied->bias.detach().fill_(0.25);
    net->register_module("a", tied);
    net->register_module("b", tied);
    net->register_parameter("other", torch::zeros(2));
    const Dict before = tensors_of(*net);
    Dict full = deep_copy(get_model_state_dict(*net));
    full["other"] = torch::ones(2);
    full["b.bias"] = torch::ones(2);
    expect_error(ErrorKind::kInvalidArgument, "is one tensor with a.bias",
                 [&] { set_model_state_dict(*net, only_on_rank0(ranks, full), full_of(ranks, true)); });
    EXPECT_EQ(first_difference(tensors_of(*net), before), "");
    full["a.bias"] = full.at("b.bias");
    set_model_state_dict(*net, only_on_rank0(ranks, full), full_of(ranks, true));
    EXPECT_EQ(first_difference(get_model_state_dict(*net), full), "");
  });
}

TEST(FullStateTest, ABroadcastTakesMemoryForABucketOnly) {
  constexpr std::int64_t kElements = std::int64_t{8} << 20;  // 32 MiB
  run_ranks(2, [](RankContext& ranks) {
    const auto net = std::make_shared<nn::Module>();
    net->register_parameter("w", torch::full({kElements}, static_cast<float>(ranks.rank())));
    StateDictOptions options = full_of(ranks, true);
    options.bucket_bytes = 1 << 20;
    const Dict given = only_on_rank0(ranks, {{"w", torch::full({kElements}, 7.0f)}});
    options.communicator->all_gather({});
    std::unique_ptr<testing::PeakMemory> memory;
    if (ranks.rank() == 0) memory = std::make_unique<testing::PeakMemory>();
    options.communicator->all_gather({});
    set_model_state_dict(*net, given, options);
    options.communicator->all_gather({});
    if (memory) {
      EXPECT_LT(memory->bytes(), 12 << 20) << "of both ranks together";
    }
    EXPECT_TRUE(net->parameters().front().eq(7.0f).all().item<bool>());
  });
}

// --- all or nothing on all ranks -------------------------------------------------------------------------------------

TEST(FullStateTest, AFaultOnOneRankLeavesAllRanksAsTheyWere) {
  run_ranks(2, [](RankContext& ranks) {
    Part part(ranks.rank(), ranks.size()), source(ranks.rank(), ranks.size());
    step(*source.model, *source.optimizer);
    const Dict before = all_of(part);
    auto [model, optimizer] = get_state_dict(*source.model, *source.optimizer);
    if (ranks.rank() == 1) optimizer.at("state").as_dict().erase("in.bias");
    expect_error(ErrorKind::kKey, "'state.in.bias': is missing",
                 [&] { set_state_dict(*part.model, *part.optimizer, model, optimizer, options_of(ranks)); });
    EXPECT_EQ(first_difference(all_of(part), before), "");
  });
}

TEST(FullStateTest, WhatAHookThrowsOnOneRankTakesAllRanksBack) {
  run_ranks(2, [](RankContext& ranks) {
    const Whole whole;
    for (const bool broadcast : {false, true}) {
      Part part(ranks.rank(), ranks.size());
      step(*part.model, *part.optimizer);
      const Dict before = all_of(part);
      HookHandle hook;
      const auto call = [&] {
        set_state_dict(
            *part.model, *part.optimizer, broadcast ? only_on_rank0(ranks, whole.model_state) : whole.model_state,
            broadcast ? only_on_rank0(ranks, whole.optimizer_state) : whole.optimizer_state, full_of(ranks, broadcast));
      };
      if (ranks.rank() == 1) {
        hook = register_load_state_dict_post_hook(*part.model->in, [](nn::Module&, LoadReport&) { throw Thrown(); });
      }
      expect_error(ErrorKind::kInternal, "thrown by the test", call);
      EXPECT_EQ(first_difference(all_of(part), before), "");
      hook.remove();
      call();
      part.expect_part_of(whole);
    }
  });
}

}  // namespace
}  // namespace dcp::test
