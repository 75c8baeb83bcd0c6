#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test/support/deep_copy.h"
#include "test/support/rank_runner.h"
#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/checkpoint/save.h"
#include "torch_dcp/io/memory_file_system.h"
#include "torch_dcp/model_state/model_state_dict.h"
#include "torch_dcp/model_state/optimizer_adapter.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/filesystem_writer.h"

/// A small model, optimizers over it, and a look at all that they hold.
namespace dcp::test {

namespace nn = torch::nn;
namespace optim = torch::optim;
using OptimizerPtr = std::unique_ptr<optim::Optimizer>;
using Parameters = std::vector<at::Tensor>;

// --- models, optimizers, training ------------------------------------------------------------------------------------

/// Linear layers under the given names, registered in the given order.
struct Net : nn::Module {
  explicit Net(const std::vector<std::string>& names = {"one", "two"}) {
    for (const std::string& name : names) {
      nn::Linear layer(nn::LinearOptions(5, 5).bias(true));
      register_module(name, layer);
    }
    const torch::NoGradGuard no_grad;
    for (const auto& item : named_parameters()) {
      const double shift = static_cast<double>(item.key().front()) + static_cast<double>(item.key().back());
      at::Tensor value = item.value();
      value.copy_(torch::arange(value.numel()).add(shift).sin().mul(0.5).view(value.sizes()));
    }
  }

  at::Tensor operator[](const std::string& name) const { return named_parameters()[name]; }
};

/// Gradients that depend on the weights, of the parameters in `names` (all if empty). Gives the loss.
inline at::Tensor backward(const Net& net, const std::vector<std::string>& names = {}) {
  at::Tensor loss = torch::zeros({});
  for (const auto& item : net.named_parameters()) {
    const bool is_used = names.empty() || std::find(names.begin(), names.end(), item.key()) != names.end();
    if (!is_used || !item.value().requires_grad()) continue;
    at::Tensor parameter = item.value();
    const at::Tensor weight = torch::arange(parameter.numel()).add(0.3).cos().view(parameter.sizes());
    parameter.mutable_grad() = at::Tensor();
    const at::Tensor part = parameter.sub(weight).pow(4).sum();
    part.backward();
    loss = loss + part.detach();
  }
  return loss;
}

inline void train(const Net& net, optim::Optimizer& optimizer, int steps, const std::vector<std::string>& names = {}) {
  for (int i = 0; i < steps; ++i) optimizer.step([&] { return backward(net, names); });
}

struct Case {
  std::string name;
  std::function<OptimizerPtr(Parameters, double lr)> make;
  bool has_state = true;
  bool has_history = false;  ///< what state there is depends on the steps that were made
};

inline std::vector<Case> cases() {
  return {
      {"Adam", [](Parameters p, double lr) { return std::make_unique<optim::Adam>(p, optim::AdamOptions(lr)); }},
      {"Adam, amsgrad and decay",
       [](Parameters p, double lr) {
         return std::make_unique<optim::Adam>(p, optim::AdamOptions(lr).amsgrad(true).weight_decay(0.1));
       }},
      {"AdamW",
       [](Parameters p, double lr) {
         return std::make_unique<optim::AdamW>(p, optim::AdamWOptions(lr).weight_decay(0.01));
       }},
      {"SGD",
       [](Parameters p, double lr) { return std::make_unique<optim::SGD>(p, optim::SGDOptions(lr).weight_decay(0.1)); },
       false},
      {"SGD, momentum",
       [](Parameters p, double lr) { return std::make_unique<optim::SGD>(p, optim::SGDOptions(lr).momentum(0.9)); }},
      {"SGD, momentum and dampening",
       [](Parameters p, double lr) {
         return std::make_unique<optim::SGD>(p, optim::SGDOptions(lr).momentum(0.9).dampening(0.4).weight_decay(0.1));
       }},
      {"SGD, Nesterov",
       [](Parameters p, double lr) {
         return std::make_unique<optim::SGD>(p, optim::SGDOptions(lr).momentum(0.9).nesterov(true));
       }},
      {"RMSprop",
       [](Parameters p, double lr) { return std::make_unique<optim::RMSprop>(p, optim::RMSpropOptions(lr)); }},
      {"RMSprop, centered, with momentum",
       [](Parameters p, double lr) {
         return std::make_unique<optim::RMSprop>(p, optim::RMSpropOptions(lr).centered(true).momentum(0.5).eps(1e-3));
       }},
      {"Adagrad",
       [](Parameters p, double lr) {
         return std::make_unique<optim::Adagrad>(
             p, optim::AdagradOptions(lr).lr_decay(0.1).initial_accumulator_value(0.25));
       }},
      {"LBFGS",
       [](Parameters p, double lr) {
         return std::make_unique<optim::LBFGS>(p, optim::LBFGSOptions(lr).history_size(3).max_iter(4));
       },
       true, true},
      {"LBFGS, line search",
       [](Parameters p, double lr) {
         return std::make_unique<optim::LBFGS>(p, optim::LBFGSOptions(lr).max_iter(3).line_search_fn("strong_wolfe"));
       },
       true, true},
  };
}

inline const StateDictOptions& form(bool flatten) {
  static const StateDictOptions kNested = {}, kFlattened = {.flatten_optimizer_state_dict = true};
  return flatten ? kFlattened : kNested;
}

// --- looking at what is there ----------------------------------------------------------------------------------------

/// All that an optimizer and its parameters hold, read past the functions under test.
inline Dict everything(const Net& net, const optim::Optimizer& optimizer) {
  const OptimizerAdapters adapters = built_in_optimizer_adapters();
  const auto adapter =
      *std::find_if(adapters.begin(), adapters.end(), [&](const auto& a) { return a->handles(optimizer); });
  Dict all;
  for (const auto& item : net.named_parameters()) {
    const at::Tensor& parameter = item.value();
    Dict entry = {{"value", parameter.detach()},
                  {"grad", parameter.grad().defined() ? Value(parameter.grad()) : None()}};
    const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (state != optimizer.state().end()) entry["state"] = adapter->read_state(*state->second);
    all[item.key()] = std::move(entry);
  }
  List groups;
  for (const auto& group : optimizer.param_groups()) groups.push_back(adapter->read_options(group.options()));
  all["groups"] = std::move(groups);
  return deep_copy(all);
}

/// Empty if they are the same.
inline std::string difference(const Net& a, const optim::Optimizer& of_a, const Net& b, const optim::Optimizer& of_b) {
  return first_difference(everything(a, of_a), everything(b, of_b));
}

inline void copy_weights(const Net& from, Net& to) { set_model_state_dict(to, get_model_state_dict(from)); }

/// A checkpoint, and the ranks that save and load it together: this one alone without a communicator.
struct Place {
  std::shared_ptr<FileSystem> files = make_memory_file_system();
  std::shared_ptr<Communicator> communicator = nullptr;

  void save(const Dict& state) const {
    FileSystemWriter writer("ckpt", {.file_system = files});
    dcp::save(state, writer, {.communicator = communicator});
  }

  void load(Dict& state) const {
    FileSystemReader reader("ckpt", {.file_system = files});
    const LoadReport report = dcp::load(state, reader, {.communicator = communicator});
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  }
};

/// Runs `body` alone and on two ranks that have the same.
inline void alone_and_on_two_ranks(const std::function<void(const Place&)>& body) {
  body(Place());
  const auto files = make_memory_file_system();
  testing::run_ranks(
      2, [&](testing::RankContext& ranks) { body({files, std::make_shared<Communicator>(ranks.communicator())}); });
}

/// Saves, loads into what another optimizer gives, or without destinations where that has no place for all, and sets
/// it, as one of the ranks if there are several.
inline LoadReport pass_through_checkpoint(const Net& net, const optim::Optimizer& optimizer, const Net& other,
                                          optim::Optimizer& of_other, bool flatten, const Place& place = {},
                                          bool has_history = false) {
  place.save({{"optim", get_optimizer_state_dict(net, optimizer, form(flatten))}});
  Dict state;
  if (has_history) {
    FileSystemReader reader("ckpt", {.file_system = place.files});
    state = load_keys(reader);
  } else {
    state = {{"optim", get_optimizer_state_dict(other, of_other, form(flatten))}};
    place.load(state);
  }
  StateDictOptions options = form(flatten);
  options.communicator = place.communicator;
  return set_optimizer_state_dict(other, of_other, state.at("optim").as_dict(), options);
}

/// The state as a checkpoint has it, read without an optimizer.
inline Dict stored_form(const Dict& state) {
  const Place place;
  place.save({{"optim", state}});
  FileSystemReader reader("ckpt", {.file_system = place.files});
  return load_keys(reader).at("optim").as_dict();
}

inline std::vector<std::string> keys(const Dict& dict) {
  std::vector<std::string> result;
  for (const auto& [key, value] : dict) result.push_back(to_string(key));
  return result;
}

}  // namespace dcp::test
