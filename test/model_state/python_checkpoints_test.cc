// Checkpoints that Python wrote, set into modules and optimizers: what these then give is what Python saved, key by
// key.

#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "test/support/expect_error.h"
#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/model_state/model_state_dict.h"
#include "torch_dcp/model_state/optimizer_positional_state.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/flatten.h"
#include "torch_dcp/storage/filesystem_reader.h"

namespace dcp {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;
using Json = nlohmann::ordered_json;

const StateDictOptions kNested = {};
const StateDictOptions kFlattened = {.flatten_optimizer_state_dict = true};

struct Small : nn::Module {
  Small() { register_module("fc", nn::Linear(3, 2)); }
};

struct FixtureNet : nn::Module {
  FixtureNet() {
    register_module("conv", nn::Conv1d(nn::Conv1dOptions(1, 2, 2)));
    register_module("norm", nn::BatchNorm1d(2));
    register_module("body",
                    nn::Sequential(nn::Linear(4, 4), nn::ReLU(), nn::Linear(nn::LinearOptions(4, 2).bias(false))));
    register_parameter("scale", torch::zeros({}));
  }
};

std::string fixture(const std::string& name) { return "test/golden/fixtures/" + name; }

Json expected_entries(const std::string& name) {
  std::ifstream in(fixture(name) + "/expected.json");
  return Json::parse(in).at("entries");
}

Dict read_fixture(const std::string& name) {
  FileSystemReader reader(fixture(name) + "/ckpt", {.follow_links = true});
  return load_keys(reader);
}

std::string hex_of(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.detach().contiguous();
  const auto* bytes = static_cast<const unsigned char*>(whole.const_data_ptr());
  std::string hex;
  for (std::size_t i = 0; i < whole.nbytes(); ++i) {
    hex += "0123456789abcdef"[bytes[i] >> 4];
    hex += "0123456789abcdef"[bytes[i] & 15];
  }
  return hex;
}

/// Python has ints where C++ has doubles.
void expect_value(const std::string& key, const Value& actual, const Json& expected) {
  const std::string type = expected.at("t");
  if (type == "none") {
    EXPECT_TRUE(actual.is_none()) << key;
  } else if (type == "bool") {
    EXPECT_EQ(actual.as_bool(), expected.at("v").get<bool>()) << key;
  } else if (type == "str") {
    EXPECT_EQ(actual.as_string(), expected.at("v").get<std::string>()) << key;
  } else if (type == "int") {
    EXPECT_EQ(actual.as_double(), std::stod(expected.at("v").get<std::string>())) << key;
  } else if (type == "float") {
    EXPECT_EQ(actual.as_double(), expected.at("v").get<double>()) << key;
  } else {
    ASSERT_TRUE(type == "tuple" || type == "list") << key << ": " << type;
    ASSERT_EQ(actual.kind(), type == "tuple" ? ValueKind::kTuple : ValueKind::kList) << key;
    const std::vector<Value>& items = type == "tuple" ? static_cast<const std::vector<Value>&>(actual.as_tuple())
                                                      : static_cast<const std::vector<Value>&>(actual.as_list());
    ASSERT_EQ(items.size(), expected.at("v").size()) << key;
    for (std::size_t i = 0; i < items.size(); ++i) expect_value(key, items[i], expected.at("v")[i]);
  }
}

/// Expects what a getter gives to be the part below `prefix` of what Python saved: all keys, paths and values.
void expect_as_saved(const Json& entries, const std::string& prefix, const Dict& actual) {
  std::size_t expected_count = 0;
  const FlatStateDict flat = flatten_state_dict({{prefix, actual}});
  for (const auto& [key, entry] : entries.items()) {
    if (!key.starts_with(prefix + ".")) continue;
    ++expected_count;
    const FlatLeaf* leaf = flat.find(key);
    ASSERT_TRUE(leaf != nullptr) << key;
    EXPECT_EQ(leaf->path.size(), entry.at("path").size()) << key;
    if (entry.at("kind") == "tensor") {
      EXPECT_EQ(hex_of(leaf->value.as_tensor()), entry.at("hex").get<std::string>()) << key;
      EXPECT_EQ(leaf->value.as_tensor().sizes().vec(), entry.at("shape").get<std::vector<std::int64_t>>()) << key;
    } else {
      expect_value(key, leaf->value, entry.at("value"));
    }
  }
  EXPECT_EQ(flat.size(), expected_count);
  EXPECT_GT(expected_count, 0);
}

TEST(FixtureTest, single_model_adam_nested) {
  FixtureNet net;
  optim::Adam adam(net.parameters(), optim::AdamOptions(0.5));
  const Dict stored = read_fixture("single_model_adam_nested");
  set_model_state_dict(net, stored.at("model").as_dict());
  set_optimizer_state_dict(net, adam, stored.at("optim").as_dict());
  const Json entries = expected_entries("single_model_adam_nested");
  expect_as_saved(entries, "model", get_model_state_dict(net));
  expect_as_saved(entries, "optim", get_optimizer_state_dict(net, adam));
}

TEST(FixtureTest, single_model_adam_nested_IntoDestinations) {
  FixtureNet net;
  optim::Adam adam(net.parameters(), optim::AdamOptions(0.5));
  Dict state = {{"model", get_model_state_dict(net)}, {"optim", get_optimizer_state_dict(net, adam)}};
  FileSystemReader reader(fixture("single_model_adam_nested") + "/ckpt", {.follow_links = true});
  load(state, reader);
  set_optimizer_state_dict(net, adam, state.at("optim").as_dict());
  const Json entries = expected_entries("single_model_adam_nested");
  expect_as_saved(entries, "model", get_model_state_dict(net));
  expect_as_saved(entries, "optim", get_optimizer_state_dict(net, adam));
}

TEST(FixtureTest, single_model_adam_flat) {
  Small net;
  optim::Adam adam(net.parameters(), optim::AdamOptions(0.5));
  const Dict stored = read_fixture("single_model_adam_flat");
  set_optimizer_state_dict(net, adam, stored.at("optim").as_dict(), kFlattened);
  expect_as_saved(expected_entries("single_model_adam_flat"), "optim", get_optimizer_state_dict(net, adam, kFlattened));
}

TEST(FixtureTest, optimizer_two_groups) {
  Small net;
  const std::vector<at::Tensor> parameters = net.parameters();
  std::vector<optim::OptimizerParamGroup> groups;
  for (const at::Tensor& parameter : parameters) groups.emplace_back(std::vector<at::Tensor>{parameter});
  optim::AdamW adamw(groups, optim::AdamWOptions(7).betas({0.1, 0.2}).eps(0.5).weight_decay(3));
  set_optimizer_state_dict(net, adamw, read_fixture("optimizer_two_groups").at("adamw").as_dict());
  expect_as_saved(expected_entries("optimizer_two_groups"), "adamw", get_optimizer_state_dict(net, adamw));
}

template <typename Optimizer, typename Options>
void expect_fixture_passes_through(const std::string& fixture_name, const std::string& prefix, const Dict& stored,
                                   const StateDictOptions& form) {
  SCOPED_TRACE(fixture_name + ": " + prefix);
  Small net;
  Optimizer optimizer(net.parameters(), Options(0.5));
  const LoadReport report = set_optimizer_state_dict(net, optimizer, stored, form);
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.converted.empty());
  expect_as_saved(expected_entries(fixture_name), prefix, get_optimizer_state_dict(net, optimizer, form));
}

TEST(FixtureTest, optimizers_nestedAndFlat) {
  for (const bool flatten : {false, true}) {
    const std::string name = flatten ? "optimizers_flat" : "optimizers_nested";
    const StateDictOptions& form = flatten ? kFlattened : kNested;
    const Dict stored = read_fixture(name);
    const auto of = [&](const char* prefix) { return stored.at(prefix).as_dict(); };
    expect_fixture_passes_through<optim::SGD, optim::SGDOptions>(name, "sgd", of("sgd"), form);
    expect_fixture_passes_through<optim::AdamW, optim::AdamWOptions>(name, "adamw", of("adamw"), form);
    expect_fixture_passes_through<optim::Adagrad, optim::AdagradOptions>(name, "adagrad", of("adagrad"), form);
    expect_fixture_passes_through<optim::RMSprop, optim::RMSpropOptions>(name, "rmsprop", of("rmsprop"), form);
  }
}

TEST(FixtureTest, optimizer_lbfgs) {
  expect_fixture_passes_through<optim::LBFGS, optim::LBFGSOptions>(
      "optimizer_lbfgs", "lbfgs", read_fixture("optimizer_lbfgs").at("lbfgs").as_dict(), kNested);
}

/// Names in place of the numbers that Python's `optimizer.state_dict()` has.
Dict with_names(Dict state, const std::vector<std::string>& names) {
  Dict named;
  if (const Value* numbered = state.find("state")) {
    for (const auto& [number, values] : numbered->as_dict()) named[names.at(std::stoul(to_string(number)))] = values;
  }
  state["state"] = std::move(named);
  for (Value& group : state.at("param_groups").as_list()) {
    for (Value& each : group.as_dict().at("params").as_list()) {
      each = names.at(static_cast<std::size_t>(each.as_int()));
    }
  }
  return state;
}

TEST(FixtureTest, optimizer_plain_state_dict) {
  const Dict stored = read_fixture("optimizer_plain_state_dict");
  Small net;
  optim::Adam adam(net.parameters(), optim::AdamOptions(0.5));
  EXPECT_TRUE(set_optimizer_state_dict(net, adam, stored.at("adam").as_dict()).missing.empty()) << "numbers pass";
  const std::vector<std::string> names = {"fc.weight", "fc.bias"};
  const Dict named = with_names(stored.at("adam").as_dict(), names);
  EXPECT_EQ(first_difference(get_optimizer_state_dict(net, adam).at("state"), named.at("state")), "");
  set_optimizer_state_dict(net, adam, named);
  EXPECT_EQ(first_difference(get_optimizer_state_dict(net, adam).at("state"), named.at("state")), "");
  const Json entries = expected_entries("optimizer_plain_state_dict");
  const Dict now = get_optimizer_state_dict(net, adam);
  EXPECT_EQ(hex_of(now.at("state").as_dict().at("fc.bias").as_dict().at("exp_avg").as_tensor()),
            entries.at("adam.state.1.exp_avg").at("hex").get<std::string>());

  optim::SGD sgd(net.parameters(), optim::SGDOptions(0.5));
  set_optimizer_state_dict(net, sgd, with_names(stored.at("sgd").as_dict(), names));
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 0.1);
  EXPECT_TRUE(sgd.state().empty());
}

TEST(FixtureTest, optimizer_plain_state_dict_ByPositions) {
  const Dict stored = read_fixture("optimizer_plain_state_dict");
  Small net;
  optim::Adam adam(net.parameters(), optim::AdamOptions(0.5));
  const LoadReport report = load_state_dict(adam, stored.at("adam").as_dict());
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.converted.empty());
  // The checkpoint has the numbers spelled; they come back as such.
  Dict now = state_dict(adam);
  Dict spelled;
  for (const auto& [number, values] : now.at("state").as_dict()) spelled[to_string(number)] = values;
  now["state"] = spelled;
  expect_as_saved(expected_entries("optimizer_plain_state_dict"), "adam", now);

  optim::SGD sgd(net.parameters(), optim::SGDOptions(0.5));
  load_state_dict(sgd, stored.at("sgd").as_dict());
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 0.1);
}

}  // namespace
}  // namespace dcp
