// Names of modules inside of wrappers, and the walk over a module's state.

#include "torch_dcp/model_state/wrappers.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <utility>

#include "test/model_state/hook_support.h"
#include "test/model_state/wrapped_support.h"
#include "torch_dcp/model_state/extra_state.h"
#include "torch_dcp/model_state/model_state_dict.h"
#include "torch_dcp/model_state/shard_parameters.h"
#include "torch_dcp/model_state/training_state.h"
#include "torch_dcp/tensor/device_mesh.h"
#include "torch_dcp/tensor/dtensor.h"

namespace dcp::test {
namespace {

/// A net of layers as they are wrapped in practice: `one` recomputed, `two` in a user's holder, all of it compiled and
/// data parallel.
std::shared_ptr<nn::Module> wrapped_net() {
  const auto net = std::make_shared<nn::Module>();
  net->register_module("one", Recomputed(nn::Linear(5, 5).ptr()));
  net->register_module("two", Holder(nn::Linear(5, 5).ptr()));
  return DistributedDataParallel(OptimizedModule(net).ptr()).ptr();
}

std::shared_ptr<nn::Module> bare_net() {
  const auto net = std::make_shared<nn::Module>();
  net->register_module("one", nn::Linear(5, 5));
  net->register_module("two", Holder(nn::Linear(5, 5).ptr()));
  return net;
}

const Strings kNames = {"one.weight", "one.bias", "two.module.weight", "two.module.bias"};

TEST(WrappersTest, AnOwnChildCalledModuleStays) {
  const auto net = wrapped_net();
  EXPECT_EQ(keys(get_model_state_dict(*net)), kNames);
  EXPECT_EQ(keys(get_model_state_dict(*bare_net())), kNames);
  EXPECT_EQ(keys(state_dict(*net)).front(), "module._orig_mod.one._checkpoint_wrapped_module.weight");
}

TEST(WrappersTest, UnwrapFindsTheInnermost) {
  const nn::Linear inner(2, 2);
  const Adapter adapter(inner.ptr());
  DistributedDataParallel outer(OptimizedModule(adapter.ptr()).ptr());
  EXPECT_EQ(&unwrap(static_cast<const nn::Module&>(*outer)), inner.get());
  EXPECT_EQ(&unwrap(static_cast<const nn::Module&>(*inner)), inner.get());
  const Holder holder(inner.ptr());
  EXPECT_EQ(&unwrap(static_cast<const nn::Module&>(*holder)), holder.get()) << "no wrapper";
  nn::Module& changeable = unwrap(static_cast<nn::Module&>(*outer));
  EXPECT_EQ(&changeable, inner.get());
}

TEST(WrappersTest, ACircleIsAnError) {
  const auto first = std::make_shared<BoxImpl>("inner", nn::Linear(2, 2).ptr());
  const auto second = std::make_shared<BoxImpl>("inner", first);
  first->replace_module("inner", second);
  const NamingOptions options = {.wrappers = {{"inner", [](const nn::Module&) { return true; }, {}}}};
  expect_error(ErrorKind::kInvalidArgument, "circle", [&] { unwrap(static_cast<const nn::Module&>(*first), options); });
  first->replace_module("inner", nn::Linear(2, 2));
}

TEST(WrappersTest, WrappersOfOnesOwnJoinByTraits) {
  Box box("payload", nn::Linear(2, 2).ptr());
  nn::Sequential net(box);
  EXPECT_EQ(keys(get_model_state_dict(*net)), (Strings{"0.payload.weight", "0.payload.bias"}));
  const auto is_box = [](const nn::Module& module) { return dynamic_cast<const BoxImpl*>(&module) != nullptr; };
  const StateDictOptions options = {.wrappers = {{"payload", is_box, {}}}};
  EXPECT_EQ(keys(get_model_state_dict(*net, options)), (Strings{"0.weight", "0.bias"}));
}

TEST(WrappersTest, FqnsOf) {
  const auto net = wrapped_net();
  const std::string own = "module._orig_mod.one._checkpoint_wrapped_module.weight";
  EXPECT_EQ(fqns_of(*net, own), FqnSet{"one.weight"});
  EXPECT_EQ(fqns_of(*net, "one.weight"), FqnSet{"one.weight"}) << "clean already";
  EXPECT_EQ(fqns_of(*net, "module._orig_mod.two.module.bias"), FqnSet{"two.module.bias"});
  EXPECT_EQ(fqns_of(*net, "module._orig_mod.one"), FqnSet{"one"}) << "a module";
  EXPECT_EQ(fqns_of(*net, ""), FqnSet{""});
  EXPECT_EQ(fqns_of(*net, own, {.kept = {"module"}}), FqnSet{"module.one.weight"});
  EXPECT_EQ(fqns_of(*net, own, {.kept = {"_orig_mod"}}), FqnSet{"_orig_mod.one.weight"});
  EXPECT_EQ(fqns_of(*net, own, {.kept = {"module", "_orig_mod"}}), FqnSet{"module._orig_mod.one.weight"});
  expect_error(ErrorKind::kKey, "there is no 'three'", [&] { fqns_of(*net, "module._orig_mod.three.weight"); });
  expect_error(ErrorKind::kKey, "there is no 'w'", [&] { fqns_of(*net, "one.w"); });
  expect_error(ErrorKind::kKey, "behind a tensor", [&] { fqns_of(*net, "one.weight.more"); });
  EXPECT_EQ(fqns_of(*net, "module._orig_mod.one._extra_state"), FqnSet{"one._extra_state"});
  expect_error(ErrorKind::kState, "more behind _extra_state", [&] { fqns_of(*net, "one._extra_state.more"); });
}

TEST(WrappersTest, AFlatParameterHasTheNamesOfThoseInIt) {
  const auto inner = std::make_shared<nn::Module>();
  inner->register_parameter("_flat_param", torch::ones(6));
  Box sharded("_fsdp_wrapped_module", inner);
  nn::Sequential net(sharded);
  const std::string own = "0._fsdp_wrapped_module._flat_param";
  EXPECT_EQ(fqns_of(*net, own), FqnSet{"0._flat_param"}) << "nobody knows the names";
  const auto flat_names = [](const nn::Module& module) {
    return dynamic_cast<const BoxImpl*>(&module) != nullptr ? FqnSet{"weight", "sub.bias"} : FqnSet();
  };
  const NamingOptions options = {
      .wrappers = {{"_fsdp_wrapped_module", [](const nn::Module&) { return true; }, flat_names}}};
  EXPECT_EQ(fqns_of(*net, own, options), (FqnSet{"0.weight", "0.sub.bias"}));
  expect_error(ErrorKind::kState, "'0._flat_param' is a flat parameter", [&] { get_model_state_dict(*net); });
}

/// A fused layer whose state calls its child's children as its own.
FqnModifiers fused_names(const nn::Module& module) {
  const auto* box = dynamic_cast<const BoxImpl*>(&module);
  return box == nullptr ? FqnModifiers() : FqnModifiers{{"attention", "fused"}, {"absent", "nothing"}};
}

TEST(WrappersTest, ModifiersReplaceNamesEverywhere) {
  const auto inner = std::make_shared<nn::Module>();
  inner->register_module("attention", nn::Linear(2, 2));
  Box layer("fused", inner);
  nn::Sequential net(layer);
  const NamingOptions naming = {.fqn_modifiers = fused_names};
  EXPECT_EQ(fqns_of(*net, "0.attention.weight", naming), FqnSet{"0.attention.weight"});
  EXPECT_EQ(fqns_of(*net, "0.fused.attention.weight", naming), FqnSet{"0.attention.weight"});
  expect_error(ErrorKind::kKey, "there is no 'attention'", [&] { fqns_of(*net, "0.attention.weight"); });

  const StateDictOptions options = {.fqn_modifiers = fused_names};
  optim::Adam adam(net->parameters(), 0.1);
  const auto [model, optimizer] = get_state_dict(*net, adam, options);
  EXPECT_EQ(keys(model), (Strings{"0.attention.weight", "0.attention.bias"}));
  EXPECT_EQ(keys(optimizer.at("state").as_dict()), keys(model)) << "model and optimizer agree";
  EXPECT_EQ(keys(get_model_state_dict(*net, options, {layer.get()})), keys(model)) << "prefixes of submodules too";
  const Dict given = deep_copy(model);
  set_model_state_dict(*net, given, options);
  Strings visited;
  for_each_state(*net, [&](const std::string& name, const StateRef&) { visited.push_back(name); }, naming);
  EXPECT_EQ(visited, keys(model));
}

struct WithExtraImpl : nn::Module, HasExtraState {
  WithExtraImpl() {
    w = register_parameter("w", torch::ones(2));
    b = register_buffer("b", torch::ones(2));
    cache = register_buffer("cache", torch::ones(2));
    register_parameter("none", at::Tensor(), false);
    register_module("child", nn::Linear(2, 1));
  }
  Value get_extra_state() const override { return 7; }
  void set_extra_state(const Value&) override {}
  at::Tensor w, b, cache;
};
TORCH_MODULE(WithExtra);

TEST(WrappersTest, TheWalkVisitsEachModuleOnceChildrenFirst) {
  WithExtra shared;
  const HookHandle handle = register_non_persistent_buffers(*shared, {"cache"});
  const auto root = std::make_shared<nn::Module>();
  root->register_module("a", shared);
  root->register_module("b", DistributedDataParallel(nn::Linear(1, 1).ptr()));
  root->register_module("c", shared);
  root->register_parameter("top", torch::ones(1));
  Strings visited, extra;
  for_each_state(*root, [&](const std::string& name, const StateRef& what) {
    visited.push_back(name);
    if (std::holds_alternative<ExtraStateTag>(what)) {
      extra.push_back(name);
    } else {
      EXPECT_EQ(std::get<ModuleTensor>(what).fqn, name);
      EXPECT_TRUE(std::get<ModuleTensor>(what).tensor.defined());
    }
  });
  EXPECT_EQ(visited,
            (Strings{"a.child.weight", "a.child.bias", "a.b", "a.w", "a._extra_state", "b.weight", "b.bias", "top"}));
  EXPECT_EQ(extra, Strings{"a._extra_state"});
}

TEST(ParamIndexTest, KnowsAllNamesOfATensorByIdentity) {
  const nn::Linear tied(2, 2);
  const auto root = std::make_shared<nn::Module>();
  root->register_module("z", DistributedDataParallel(tied.ptr()));
  root->register_module("a", tied);
  const ParamIndex index(*root);
  EXPECT_EQ(index.names_of(tied->weight), (FqnSet{"z.weight", "a.weight"}));
  EXPECT_EQ(index.names_of(tied->weight.detach()), FqnSet()) << "another tensor of the same memory";
  EXPECT_TRUE(index.find("a.bias").is_same(tied->bias));
  EXPECT_TRUE(index.find("z.bias").is_same(tied->bias));
  EXPECT_FALSE(index.find("z.module.bias").defined());
}

// --- reading and writing through wrappers ----------------------------------------------------------------------------

TEST(WrappersTest, StatesPassBetweenWrappedAndBare) {
  const auto wrapped = wrapped_net(), bare = bare_net();
  optim::Adam of_wrapped(wrapped->parameters(), 0.1), of_bare(bare->parameters(), 0.2);
  for (const auto& net : {wrapped, bare}) {
    for (at::Tensor& parameter : net->parameters()) parameter.mutable_grad() = torch::full_like(parameter, 0.5);
  }
  of_wrapped.step();
  for (const bool flatten : {false, true}) {
    SCOPED_TRACE(flatten);
    const StateDictOptions options = {.flatten_optimizer_state_dict = flatten};
    const auto [model, optimizer] = get_state_dict(*wrapped, of_wrapped, options);
    const Dict given_model = deep_copy(model), given_optimizer = deep_copy(optimizer);
    const LoadReport report = set_state_dict(*bare, of_bare, given_model, given_optimizer, options);
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
    const auto [bare_model, bare_optimizer] = get_state_dict(*bare, of_bare, options);
    EXPECT_EQ(first_difference(bare_model, given_model), "");
    EXPECT_EQ(first_difference(bare_optimizer, given_optimizer), "");

    const auto other = wrapped_net();
    optim::Adam of_other(other->parameters(), 0.3);
    set_state_dict(*other, of_other, bare_model, bare_optimizer, options);
    EXPECT_EQ(first_difference(get_model_state_dict(*other), given_model), "");
    EXPECT_EQ(keys(bare_model), kNames) << "the given dict";
  }
}

TEST(WrappersTest, O31_AWrapperChangesNoNameInReportOrMessage) {
  const auto wrapped = wrapped_net();
  const Dict before = tensors_of(*wrapped);
  Dict given = deep_copy(get_model_state_dict(*wrapped));
  given.erase("one.bias");
  given["more"] = torch::ones(1);
  given["one.more"] = torch::ones(1);
  given["two.module.bias"] = torch::ones(7);
  for (const char* fault : {"key 'one.bias': is missing", "key 'more': is unexpected", "key 'one.more': is unexpected",
                            "key 'two.module.bias': the given tensor has shape [7]"}) {
    expect_error(ErrorKind::kShape, fault, [&] { set_model_state_dict(*wrapped, given); });
  }
  EXPECT_EQ(first_difference(tensors_of(*wrapped), before), "");
  given.erase("two.module.bias");
  const LoadReport report = set_model_state_dict(*wrapped, given, {.strict = false});
  EXPECT_EQ(report.missing, (Strings{"one.bias", "two.module.bias"}));
  EXPECT_EQ(report.unexpected, (Strings{"more", "one.more"}));
}

using Wrap = std::function<std::shared_ptr<nn::Module>(std::shared_ptr<nn::Module>)>;

/// `net`, wrapped, beside a parameter and two buffers, of which `cache` is none of the state's.
struct Convolutional {
  explicit Convolutional(const Wrap& wrap) {
    root->register_parameter("scale", torch::ones(1));
    root->register_buffer("table", torch::ones(2));
    cache = root->register_buffer("cache", torch::full({2}, 5.0));
    nn::Sequential net(nn::Conv2d(1, 2, 3), nn::BatchNorm2d(2));
    net->register_module("2", nn::Sequential(nn::ReLU(), nn::Linear(8, 2)).ptr());
    root->register_module("net", wrap(net.ptr()));
    handles = register_non_persistent_buffers(*root, {"cache"});
  }
  std::shared_ptr<nn::Module> root = std::make_shared<nn::Module>();
  at::Tensor cache;
  HookHandle handles;
};

TEST(WrappersTest, O31_AWrapperAroundNetChangesNothingInADictOrACheckpoint) {
  const Strings names = {"scale",
                         "table",
                         "net.0.weight",
                         "net.0.bias",
                         "net.1.weight",
                         "net.1.bias",
                         "net.1.running_mean",
                         "net.1.running_var",
                         "net.1.num_batches_tracked",
                         "net.2.1.weight",
                         "net.2.1.bias"};
  const std::vector<Wrap> wraps = {
      [](std::shared_ptr<nn::Module> net) { return net; },
      [](std::shared_ptr<nn::Module> net) { return DistributedDataParallel(std::move(net)).ptr(); },
      [](std::shared_ptr<nn::Module> net) { return Box("_fsdp_wrapped_module", std::move(net)).ptr(); },
  };
  for (const Wrap& wrap : wraps) {
    for (const Wrap& wrap_other : wraps) {
      const Convolutional saved(wrap), loaded(wrap_other);
      const Dict state = get_model_state_dict(*saved.root);
      EXPECT_EQ(keys(state), names);
      const Place place;
      place.save({{"model", state}});
      loaded.cache.fill_(6);
      FileSystemReader reader("ckpt", {.file_system = place.files});
      Dict given = load_keys(reader).at("model").as_dict();
      const LoadReport report = set_model_state_dict(*loaded.root, given);
      EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.converted.empty());
      EXPECT_EQ(first_difference(get_model_state_dict(*loaded.root), state), "");
      EXPECT_EQ(first_difference(loaded.cache, torch::full({2}, 6.0)), "");

      given.erase("net.1.running_var");
      given["net.1.more"] = torch::ones(1);
      for (const char* fault : {"key 'net.1.running_var': is missing", "key 'net.1.more': is unexpected"}) {
        expect_error(ErrorKind::kKey, fault, [&] { set_model_state_dict(*loaded.root, given); });
      }
      const LoadReport lenient = set_model_state_dict(*loaded.root, given, {.strict = false});
      EXPECT_EQ(lenient.missing, Strings{"net.1.running_var"});
      EXPECT_EQ(lenient.unexpected, Strings{"net.1.more"});
    }
  }
}

TEST(WrappersTest, O31_ParametersThatAreSpreadKeepTheirNames) {
  const Convolutional whole([](std::shared_ptr<nn::Module> net) { return net; });
  const Strings names = keys(get_model_state_dict(*whole.root));
  const HookHandle spread = shard_parameters(*whole.root, {{"net.*", DeviceMesh::make({1}, 0), {Placement::shard(0)}}});
  const Dict state = get_model_state_dict(*whole.root);
  EXPECT_EQ(keys(state), names);
  EXPECT_EQ(state.at("net.2.1.weight").kind(), ValueKind::kDTensor);
  Dict lacks = state;
  lacks.erase("net.2.1.weight");
  expect_error(ErrorKind::kKey, "key 'net.2.1.weight': is missing", [&] { set_model_state_dict(*whole.root, lacks); });
}

TEST(WrappersTest, OneNameForTwoEntriesIsAnError) {
  const auto wrapper = DistributedDataParallel(nn::Linear(2, 2).ptr()).ptr();
  wrapper->register_parameter("weight", torch::ones(2));
  const auto root = std::make_shared<nn::Module>();
  root->register_module("net", wrapper);
  expect_error(ErrorKind::kKey, "key 'net.weight': would be the name of both 'net.weight' and 'net.module.weight'",
               [&] { get_model_state_dict(*root); });
}

TEST(WrappersTest, HooksInsideOfAWrapperMayRename) {
  Leaf leaf(3);
  HookHandle handles = register_state_dict_post_hook(*leaf, [](nn::Module&, Dict& state, const std::string& prefix) {
    Value value = state.at(prefix + "w");
    state.erase(prefix + "w");
    state.insert_or_assign(prefix + "w2", std::move(value));
  });
  handles.add(register_load_state_dict_pre_hook(*leaf, [](const LoadPreHookArgs& args) {
    Value value = args.state.at(args.prefix + "w2");
    args.state.erase(args.prefix + "w2");
    args.state.insert_or_assign(args.prefix + "w", std::move(value));
  }));
  const auto root = std::make_shared<nn::Module>();
  root->register_module("net", DistributedDataParallel(leaf.ptr()));
  Dict given = deep_copy(get_model_state_dict(*root));
  EXPECT_EQ(keys(given), (Strings{"net.b", "net.w2"}));
  given["net.w2"] = torch::full(2, 9.0f);
  set_model_state_dict(*root, given);
  EXPECT_EQ(first_difference(leaf->w.detach(), torch::full(2, 9.0f)), "");
}

}  // namespace
}  // namespace dcp::test
