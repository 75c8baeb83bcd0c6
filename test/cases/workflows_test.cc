#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "torch_dcp/model_state/model_state_dict.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"
#include "torch_dcp/model_state/shard_parameters.h"

// Whole jobs that end in one form and go on in another: a pretrained part in a bigger model, stages of a pipeline,
// experts, and kinds of parallelism. All of them must go on bit for bit as the job that was never interrupted.

namespace dcp::test {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;

/// A step of each trainable parameter by a gradient that depends on its elements alone, so that a part of a parameter
/// steps as the whole does.
void step(const nn::Module& module, optim::Optimizer& optimizer) {
  for (const at::Tensor& parameter : module.parameters()) {
    at::Tensor held = parameter;
    if (parameter.requires_grad()) held.mutable_grad() = parameter.detach().mul(0.5).cos();
  }
  optimizer.step();
}

/// Values that depend on the name and the place alone.
at::Tensor start_of(const std::string& name, c10::IntArrayRef sizes) {
  double shift = 0;
  for (const char c : name) shift = 3 * shift + c % 7;
  return torch::arange(c10::multiply_integers(sizes), torch::kFloat).add(shift).sin().view(sizes);
}

void start(const nn::Module& module) {
  const torch::NoGradGuard guard;
  for (const auto& item : module.named_parameters()) item.value().copy_(start_of(item.key(), item.value().sizes()));
}

Dict tensors_of(const nn::Module& module) {
  Dict tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value().detach();
  return tensors;
}

// --- a pretrained part -----------------------------------------------------------------------------------------------

struct BodyImpl : nn::Module {
  BodyImpl() : first(4, 4), second(4, 3) {
    register_module("first", first);
    register_module("second", second);
  }
  nn::Linear first, second;
};
TORCH_MODULE(Body);

struct TunedImpl : nn::Module {
  TunedImpl() : head(3, 2) {
    register_module("body", body);
    register_module("head", head);
  }
  void freeze_body() {
    for (at::Tensor& parameter : body->parameters()) parameter.requires_grad_(false);
  }
  Body body;
  nn::Linear head;
};
TORCH_MODULE(Tuned);

TEST(Workflows, APretrainedPartInABiggerModel) {
  for (const int world : {1, 2}) {
    const auto files = make_memory_file_system();
    run_ranks(world, [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      Body pretrained;
      start(*pretrained);
      place.save({{"model", get_model_state_dict(*pretrained)}}, "pretrained");

      StateDictOptions below;
      below.keep_submodule_prefixes = false;
      const auto load_body = [&](Tuned& tuned) {
        StateDict state = {{"model", get_model_state_dict(*tuned, below, {tuned->body.get()})}};
        const LoadReport report = place.load(state, "pretrained");
        EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
        EXPECT_EQ(first_difference(tensors_of(*tuned->body), tensors_of(*pretrained)), "");
        tuned->freeze_body();
      };
      StateDictOptions trainable;
      trainable.ignore_frozen_params = true;

      Tuned tuned;
      start(*tuned);
      load_body(tuned);
      optim::Adam adam(tuned->head->parameters(), optim::AdamOptions(0.1));
      for (int i = 0; i < 2; ++i) step(*tuned, adam);
      const Metadata metadata = place.save(
          {{"model", get_model_state_dict(*tuned, trainable)}, {"optim", get_optimizer_state_dict(*tuned, adam)}},
          "tuned");
      for (const auto& [key, entry] : metadata.state_dict_metadata) {
        EXPECT_EQ(key.find("body"), std::string::npos) << key << " is frozen";
      }

      Tuned resumed;
      load_body(resumed);
      optim::Adam resumed_adam(resumed->head->parameters(), optim::AdamOptions(7));
      StateDict state = {{"model", get_model_state_dict(*resumed, trainable)},
                         {"optim", get_optimizer_state_dict(*resumed, resumed_adam)}};
      place.load(state, "tuned");
      set_optimizer_state_dict(*resumed, resumed_adam, state.at("optim").as_dict());
      step(*tuned, adam);
      step(*resumed, resumed_adam);
      EXPECT_EQ(first_difference(tensors_of(*resumed), tensors_of(*tuned)), "");
      EXPECT_EQ(first_difference(tensors_of(*tuned->body), tensors_of(*pretrained)), "") << "the frozen part";
    });
  }
}

// --- ranks with layers of their own ----------------------------------------------------------------------------------

/// Some of a model's layers.
struct Layers : nn::Module {
  explicit Layers(const std::vector<std::string>& names) {
    for (const std::string& name : names) register_module(name, nn::Linear(3, 2));
  }
};

StateDictOptions flattened() {
  StateDictOptions options;
  options.flatten_optimizer_state_dict = true;
  return options;
}

/// Saves a model whose layers ranks hold as `from` says (by rank), and loads it as `to` says.
void expect_layers_go_on(const std::vector<std::vector<std::string>>& from,
                         const std::vector<std::vector<std::string>>& to) {
  const auto files = make_memory_file_system();
  const auto trained = [](const std::vector<std::string>& names, int steps) {
    auto layers = std::make_shared<Layers>(names);
    start(*layers);
    auto adam = std::make_shared<optim::AdamW>(layers->parameters(), optim::AdamWOptions(0.1));
    for (int i = 0; i < steps; ++i) step(*layers, *adam);
    return std::pair(layers, adam);
  };
  run_ranks(static_cast<int>(from.size()), [&](RankContext& ranks) {
    const auto [layers, adam] = trained(from[static_cast<std::size_t>(ranks.rank())], 2);
    place_of(ranks, files)
        .save({{"model", get_model_state_dict(*layers)},
               {"optim", get_optimizer_state_dict(*layers, *adam, flattened())}},
              "c");
  });
  run_ranks(static_cast<int>(to.size()), [&](RankContext& ranks) {
    const std::vector<std::string>& names = to[static_cast<std::size_t>(ranks.rank())];
    Layers layers(names);
    optim::AdamW adam(layers.parameters(), optim::AdamWOptions(7));
    StateDict state = {{"model", get_model_state_dict(layers)},
                       {"optim", get_optimizer_state_dict(layers, adam, flattened())}};
    place_of(ranks, files).load(state, "c");
    set_optimizer_state_dict(layers, adam, state.at("optim").as_dict(), flattened());
    step(layers, adam);
    const auto [expected, expected_adam] = trained(names, 3);
    EXPECT_EQ(first_difference(tensors_of(layers), tensors_of(*expected)), "") << "rank " << ranks.rank();
    EXPECT_EQ(
        first_difference(get_optimizer_state_dict(layers, adam), get_optimizer_state_dict(*expected, *expected_adam)),
        "")
        << "rank " << ranks.rank();
  });
}

TEST(Workflows, StagesOfAPipeline) {
  const std::vector<std::vector<std::string>> one = {{"l0", "l1", "l2", "l3"}};
  const std::vector<std::vector<std::string>> two = {{"l0", "l1"}, {"l2", "l3"}};
  const std::vector<std::vector<std::string>> uneven = {{"l0"}, {"l1", "l2"}, {"l3"}};
  for (const auto& from : {one, two, uneven}) {
    for (const auto& to : {one, two, uneven}) expect_layers_go_on(from, to);
  }
}

TEST(Workflows, ExpertsOfSomeRanksBesideALayerOfAll) {
  const std::vector<std::vector<std::string>> four = {
      {"gate", "expert0"}, {"gate", "expert1"}, {"gate", "expert2"}, {"gate", "expert3"}};
  const std::vector<std::vector<std::string>> two = {{"gate", "expert0", "expert1"}, {"expert3", "expert2", "gate"}};
  const std::vector<std::vector<std::string>> one = {{"gate", "expert0", "expert1", "expert2", "expert3"}};
  for (const auto& to : {four, two, one}) expect_layers_go_on(four, to);
  expect_layers_go_on(two, four);
}

// --- kinds of parallelism --------------------------------------------------------------------------------------------

/// How a two-layer network lies over ranks.
struct Parallelism {
  std::string name;
  Sizes mesh;
  Placements in_weight, in_bias, out_weight, out_bias;
  int world() const { return static_cast<int>(c10::multiply_integers(mesh)); }
};

std::vector<Parallelism> kinds_of_parallelism() {
  const Placement whole = Placement::replicate();
  const Placement rows = Placement::shard(0);
  const Placement columns = Placement::shard(1);
  // Cut by the left mesh dimension into what the right one has cut before.
  const Placement rows_below = Placement::strided_shard(0, 2);
  return {
      {"one process", {1}, {whole}, {whole}, {whole}, {whole}},
      {"data parallel", {4}, {whole}, {whole}, {whole}, {whole}},
      {"FSDP on four", {4}, {rows}, {rows}, {rows}, {rows}},
      {"FSDP on three", {3}, {rows}, {rows}, {rows}, {rows}},
      {"HSDP", {2, 2}, {whole, rows}, {whole, rows}, {whole, rows}, {whole, rows}},
      {"tensor parallel", {4}, {rows}, {rows}, {columns}, {whole}},
      {"FSDP over tensor parallel", {2, 2}, {rows_below, rows}, {rows_below, rows}, {rows, columns}, {rows, whole}},
  };
}

/// This rank's part of the network: in.weight [7, 5], in.bias [7], out.weight [3, 7], out.bias [3]; no size is divided
/// by a number of ranks above one.
struct Network : nn::Module {
  Network(const Parallelism& parallelism, int rank) {
    const auto mesh = DeviceMesh::make(parallelism.mesh, rank);
    std::vector<ShardRule> rules;
    const auto add = [&](const std::string& name, const Sizes& sizes, const Placements& placements) {
      const DTensor part = DTensor::distribute(start_of(name, sizes), mesh, placements);
      register_parameter(name, part.local());
      rules.push_back({name, mesh, placements, sizes});
    };
    add("in_weight", {7, 5}, parallelism.in_weight);
    add("in_bias", {7}, parallelism.in_bias);
    add("out_weight", {3, 7}, parallelism.out_weight);
    add("out_bias", {3}, parallelism.out_bias);
    handle = shard_parameters(*this, rules);
  }

  void clear() {
    const torch::NoGradGuard guard;
    for (at::Tensor parameter : parameters()) parameter.zero_();
  }

  HookHandle handle;
};

TEST(Workflows, EveryKindOfParallelismGoesOnAsEveryOther) {
  const std::vector<Parallelism> kinds = kinds_of_parallelism();
  const auto files = make_memory_file_system();
  const auto state_of = [](const Network& network, const optim::Adam& adam) {
    return StateDict{{"model", get_model_state_dict(network)}, {"optim", get_optimizer_state_dict(network, adam)}};
  };
  for (const Parallelism& from : kinds) {
    run_ranks(from.world(), [&](RankContext& ranks) {
      Network network(from, ranks.rank());
      optim::Adam adam(network.parameters(), optim::AdamOptions(0.1).weight_decay(0.01));
      for (int i = 0; i < 2; ++i) step(network, adam);
      place_of(ranks, files).save(state_of(network, adam), from.name);
    });
  }
  for (const Parallelism& to : kinds) {
    run_ranks(to.world(), [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      Network expected(to, ranks.rank());
      optim::Adam expected_adam(expected.parameters(), optim::AdamOptions(0.1).weight_decay(0.01));
      for (int i = 0; i < 3; ++i) step(expected, expected_adam);
      for (const Parallelism& from : kinds) {
        Network network(to, ranks.rank());
        network.clear();
        optim::Adam adam(network.parameters(), optim::AdamOptions(7));
        StateDict state = state_of(network, adam);
        place.load(state, from.name);
        set_optimizer_state_dict(network, adam, state.at("optim").as_dict());
        step(network, adam);
        EXPECT_EQ(first_difference(state_of(network, adam), state_of(expected, expected_adam)), "")
            << from.name << " -> " << to.name << ", rank " << ranks.rank();
      }
    });
  }
}

}  // namespace
}  // namespace dcp::test
