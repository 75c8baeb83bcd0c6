// State of modules and generators: names against Python's, order, in-place loads and what they refuse.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "test/support/expect_error.h"
#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/checkpoint/save.h"
#include "torch_dcp/io/memory_file_system.h"
#include "torch_dcp/model_state/fqn.h"
#include "torch_dcp/model_state/model_state_dict.h"
#include "torch_dcp/model_state/random_state.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/per_rank.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/filesystem_writer.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

namespace nn = torch::nn;
using test::expect_error;
using Json = nlohmann::ordered_json;
using ModulePtr = std::shared_ptr<nn::Module>;

std::vector<std::string> names(const Dict& state) {
  std::vector<std::string> result;
  for (const auto& [key, value] : state) result.push_back(to_string(key));
  return result;
}

/// The values, apart from the module.
Dict copy_of(const Dict& state) {
  Dict copy;
  for (const auto& [key, value] : state) copy.insert_or_assign(key, value.as_tensor().detach().clone());
  return copy;
}

/// A state of the same names and shapes with other values.
Dict other_values(const Dict& state) {
  Dict other = copy_of(state);
  for (auto& [key, value] : other) value.as_tensor().fill_(7);
  return other;
}

// ---------------------------------------------------------------------------------------------------------------------

template <typename Holder>
ModulePtr ptr(Holder holder) {
  return holder.ptr();
}

std::map<std::string, std::function<ModulePtr()>> layers() {
  return {
      {"Linear(3,2)", [] { return ptr(nn::Linear(3, 2)); }},
      {"Linear(3,2,bias=False)", [] { return ptr(nn::Linear(nn::LinearOptions(3, 2).bias(false))); }},
      {"Bilinear(3,4,2)", [] { return ptr(nn::Bilinear(3, 4, 2)); }},
      {"Conv1d(4,6,3,groups=2)", [] { return ptr(nn::Conv1d(nn::Conv1dOptions(4, 6, 3).groups(2))); }},
      {"Conv2d(4,6,3)", [] { return ptr(nn::Conv2d(nn::Conv2dOptions(4, 6, 3))); }},
      {"Conv3d(2,3,2)", [] { return ptr(nn::Conv3d(nn::Conv3dOptions(2, 3, 2))); }},
      {"ConvTranspose1d(4,6,3)", [] { return ptr(nn::ConvTranspose1d(nn::ConvTranspose1dOptions(4, 6, 3))); }},
      {"ConvTranspose2d(4,6,3)", [] { return ptr(nn::ConvTranspose2d(nn::ConvTranspose2dOptions(4, 6, 3))); }},
      {"ConvTranspose3d(2,3,2)", [] { return ptr(nn::ConvTranspose3d(nn::ConvTranspose3dOptions(2, 3, 2))); }},
      {"BatchNorm1d(5)", [] { return ptr(nn::BatchNorm1d(5)); }},
      {"BatchNorm2d(5,affine=False)", [] { return ptr(nn::BatchNorm2d(nn::BatchNormOptions(5).affine(false))); }},
      {"BatchNorm3d(5,track_running_stats=False)",
       [] { return ptr(nn::BatchNorm3d(nn::BatchNormOptions(5).track_running_stats(false))); }},
      {"InstanceNorm1d(5)", [] { return ptr(nn::InstanceNorm1d(5)); }},
      {"InstanceNorm2d(5,affine=True,track_running_stats=True)",
       [] { return ptr(nn::InstanceNorm2d(nn::InstanceNormOptions(5).affine(true).track_running_stats(true))); }},
      {"InstanceNorm3d(5,affine=True)",
       [] { return ptr(nn::InstanceNorm3d(nn::InstanceNormOptions(5).affine(true))); }},
      {"GroupNorm(2,6)", [] { return ptr(nn::GroupNorm(2, 6)); }},
      {"LayerNorm([3,4])", [] { return ptr(nn::LayerNorm(nn::LayerNormOptions({3, 4}))); }},
      {"Embedding(7,3)", [] { return ptr(nn::Embedding(7, 3)); }},
      {"EmbeddingBag(7,3)", [] { return ptr(nn::EmbeddingBag(7, 3)); }},
      {"PReLU(3)", [] { return ptr(nn::PReLU(nn::PReLUOptions().num_parameters(3))); }},
  };
}

std::map<std::string, std::function<ModulePtr()>> sequence_layers() {
  return {
      {"RNN(3,4)", [] { return ptr(nn::RNN(3, 4)); }},
      {"RNN(3,4,layers=2,bidirectional,relu)",
       [] { return ptr(nn::RNN(nn::RNNOptions(3, 4).num_layers(2).bidirectional(true).nonlinearity(torch::kReLU))); }},
      {"LSTM(3,4,layers=2,bidirectional)",
       [] { return ptr(nn::LSTM(nn::LSTMOptions(3, 4).num_layers(2).bidirectional(true))); }},
      {"LSTM(3,4,proj_size=2)", [] { return ptr(nn::LSTM(nn::LSTMOptions(3, 4).proj_size(2))); }},
      {"LSTM(3,4,bias=False)", [] { return ptr(nn::LSTM(nn::LSTMOptions(3, 4).bias(false))); }},
      {"GRU(3,4,layers=2)", [] { return ptr(nn::GRU(nn::GRUOptions(3, 4).num_layers(2))); }},
      {"RNNCell(3,4)", [] { return ptr(nn::RNNCell(3, 4)); }},
      {"LSTMCell(3,4)", [] { return ptr(nn::LSTMCell(3, 4)); }},
      {"GRUCell(3,4,bias=False)", [] { return ptr(nn::GRUCell(nn::GRUCellOptions(3, 4).bias(false))); }},
      {"MultiheadAttention(8,2)", [] { return ptr(nn::MultiheadAttention(8, 2)); }},
      {"MultiheadAttention(8,2,kdim=4,vdim=6)",
       [] { return ptr(nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2).kdim(4).vdim(6))); }},
      {"MultiheadAttention(8,2,add_bias_kv=True)",
       [] { return ptr(nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2).add_bias_kv(true))); }},
      {"MultiheadAttention(8,2,bias=False)",
       [] { return ptr(nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2).bias(false))); }},
  };
}

nn::TransformerEncoderLayer encoder_layer() {
  return nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16));
}

nn::TransformerDecoderLayer decoder_layer() {
  return nn::TransformerDecoderLayer(nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(16));
}

std::map<std::string, std::function<ModulePtr()>> transformers() {
  return {
      {"TransformerEncoderLayer(8,2,dim_feedforward=16)", [] { return ptr(encoder_layer()); }},
      {"TransformerDecoderLayer(8,2,dim_feedforward=16)", [] { return ptr(decoder_layer()); }},
      {"TransformerEncoder(layer(8,2,16),2)", [] { return ptr(nn::TransformerEncoder(encoder_layer(), 2)); }},
      {"TransformerEncoder(layer(8,2,16),2,norm=LayerNorm([8]))",
       [] {
         const nn::AnyModule norm(nn::LayerNorm(nn::LayerNormOptions({8})));
         return ptr(nn::TransformerEncoder(nn::TransformerEncoderOptions(encoder_layer(), 2).norm(norm)));
       }},
      {"TransformerDecoder(layer(8,2,16),2)", [] { return ptr(nn::TransformerDecoder(decoder_layer(), 2)); }},
      {"Transformer(8,2,1,1,16)",
       [] { return ptr(nn::Transformer(nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(16))); }},
  };
}

nn::ParameterDict parameter_dict() {
  nn::ParameterDict dict;
  dict->insert("x", torch::zeros(2));
  dict->insert("y", torch::zeros({3, 2}));
  return dict;
}

nn::ModuleDict module_dict() {
  nn::ModuleDict dict;
  dict->update({{"a", ptr(nn::Linear(2, 3))}, {"b", ptr(nn::PReLU())}});
  return dict;
}

std::map<std::string, std::function<ModulePtr()>> losses_and_containers() {
  const at::Tensor w = torch::ones(3);
  return {
      {"NLLLoss(weight=3)", [w] { return ptr(nn::NLLLoss(nn::NLLLossOptions().weight(w))); }},
      {"CrossEntropyLoss(weight=3)",
       [w] { return ptr(nn::CrossEntropyLoss(nn::CrossEntropyLossOptions().weight(w))); }},
      {"BCELoss(weight=3)", [w] { return ptr(nn::BCELoss(nn::BCELossOptions().weight(w))); }},
      {"BCEWithLogitsLoss(weight=3,pos_weight=3)",
       [w] { return ptr(nn::BCEWithLogitsLoss(nn::BCEWithLogitsLossOptions().weight(w).pos_weight(w))); }},
      {"MultiLabelSoftMarginLoss(weight=3)",
       [w] { return ptr(nn::MultiLabelSoftMarginLoss(nn::MultiLabelSoftMarginLossOptions().weight(w))); }},
      {"MultiMarginLoss(weight=3)", [w] { return ptr(nn::MultiMarginLoss(nn::MultiMarginLossOptions().weight(w))); }},
      {"Sequential(Linear(2,3),ReLU,Linear(3,2))",
       [] { return ptr(nn::Sequential(nn::Linear(2, 3), nn::ReLU(), nn::Linear(3, 2))); }},
      {"ModuleList[Linear(2,3),Linear(3,2)]", [] { return ptr(nn::ModuleList(nn::Linear(2, 3), nn::Linear(3, 2))); }},
      {"ModuleDict{a:Linear(2,3),b:PReLU(1)}", [] { return ptr(module_dict()); }},
      {"ParameterList[(2),(3,2)]", [] { return ptr(nn::ParameterList(torch::zeros(2), torch::zeros({3, 2}))); }},
      {"ParameterDict{x:(2),y:(3,2)}", [] { return ptr(parameter_dict()); }},
  };
}

Json describe(const nn::Module& module) {
  Json entries = Json::array();
  for (const ModuleTensor& entry : module_tensors(module)) {
    entries.push_back({{"name", entry.fqn},
                       {"kind", entry.kind == ModuleTensorKind::kParameter ? "parameter" : "buffer"},
                       {"shape", entry.tensor.sizes().vec()},
                       {"dtype", dtype_name(entry.tensor.scalar_type())}});
  }
  return entries;
}

TEST(NamesTest, AreThoseOfPythonsModules) {
  std::ifstream in("test/model_state/data/names.json");
  const Json expected = Json::parse(in).at("modules");
  std::size_t compared = 0;
  for (const auto& table : {layers(), sequence_layers(), transformers(), losses_and_containers()}) {
    for (const auto& [title, make] : table) {
      ASSERT_TRUE(expected.contains(title)) << title;
      EXPECT_EQ(expected[title], describe(*make())) << title;
      ++compared;
    }
  }
  EXPECT_EQ(compared, expected.size() - 2) << "all but the two of the next test";
}

/// The only modules of Python's list that are not compared: LibTorch's own constructor fails where it was built
/// so that a fill with -1 is refused. Where it works the names are compared too.
TEST(NamesTest, AdaptiveLogSoftmaxAsFarAsLibTorchMakesIt) {
  std::ifstream in("test/model_state/data/names.json");
  const Json expected = Json::parse(in).at("modules");
  for (const bool head_bias : {false, true}) {
    const std::string title =
        std::string("AdaptiveLogSoftmaxWithLoss(8,20,[5,10]") + (head_bias ? ",head_bias=True)" : ")");
    ModulePtr module;
    try {
      module = ptr(
          nn::AdaptiveLogSoftmaxWithLoss(nn::AdaptiveLogSoftmaxWithLossOptions(8, 20, {5, 10}).head_bias(head_bias)));
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("out of bounds"), std::string::npos) << error.what();
      continue;
    }
    EXPECT_EQ(expected.at(title), describe(*module)) << title;
  }
}

// ---------------------------------------------------------------------------------------------------------------------

/// LibTorch takes a Sequential into another one only with a forward that is no template.
struct InnerImpl : nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(at::Tensor x) { return SequentialImpl::forward(x); }
};
TORCH_MODULE(Inner);

struct NetOfO31 : nn::Module {
  NetOfO31() {
    net = register_module("net", nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 2, 3)), nn::BatchNorm2d(2),
                                                Inner(nn::ReLU(), nn::Linear(8, 2))));
    table = register_buffer("table", torch::arange(3.0));
    cache = register_buffer("cache", torch::arange(4.0));
    undefined = register_buffer("undefined", at::Tensor());
    scale = register_parameter("scale", torch::full({2}, 0.5));
  }
  nn::Sequential net = nullptr;
  at::Tensor table, cache, undefined, scale;
};

const std::set<std::string> kCache = {"cache"};

TEST(ModelStateTest, O31_NamesOrderAndNonPersistentBuffers) {
  NetOfO31 module;
  const Dict state = get_model_state_dict(module, {.non_persistent_buffers = kCache});
  EXPECT_EQ(names(state), (std::vector<std::string>{"scale", "table", "net.0.weight", "net.0.bias", "net.1.weight",
                                                    "net.1.bias", "net.1.running_mean", "net.1.running_var",
                                                    "net.1.num_batches_tracked", "net.2.1.weight", "net.2.1.bias"}));
  EXPECT_TRUE(get_model_state_dict(module).contains("cache"));

  NetOfO31 other;
  const Dict given = other_values(state);
  const at::Tensor cache = other.cache.clone();
  const LoadReport report = set_model_state_dict(other, given, {.non_persistent_buffers = kCache});
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.converted.empty());
  EXPECT_TRUE(bit_equal(get_model_state_dict(other, {.non_persistent_buffers = kCache}), given));
  EXPECT_TRUE(torch::equal(other.cache, cache));
}

TEST(ModelStateTest, O31_ThroughACheckpoint) {
  NetOfO31 saved, loaded;
  set_model_state_dict(saved, other_values(get_model_state_dict(saved)));
  const auto files = make_memory_file_system();
  FileSystemWriter writer("ckpt", {.file_system = files});
  save({{"model", get_model_state_dict(saved, {.non_persistent_buffers = kCache})}}, writer);
  Dict state = {{"model", get_model_state_dict(loaded, {.non_persistent_buffers = kCache})}};
  FileSystemReader reader("ckpt", {.file_system = files});
  load(state, reader);
  set_model_state_dict(loaded, state.at("model").as_dict(), {.non_persistent_buffers = kCache});
  EXPECT_TRUE(bit_equal(get_model_state_dict(loaded, {.non_persistent_buffers = kCache}),
                        get_model_state_dict(saved, {.non_persistent_buffers = kCache})));
  EXPECT_TRUE(torch::equal(loaded.cache, torch::arange(4.0)));
}

TEST(ModelStateTest, NamesOfBuffersThatAreNotThere) {
  NetOfO31 module;
  const std::set<std::string> wrong = {"cache", "cash", "scale"};
  for (const char* name : {"'cash'", "'scale'"}) {
    expect_error(ErrorKind::kKey, name, [&] { get_model_state_dict(module, {.non_persistent_buffers = wrong}); });
  }
}

TEST(ModelStateTest, TheGetterGivesTheLiveTensors) {
  nn::Linear layer(3, 2);
  const Dict state = get_model_state_dict(*layer);
  EXPECT_TRUE(state.at("weight").as_tensor().is_same(layer->weight));
  EXPECT_TRUE(state.at("weight").as_tensor().requires_grad());
}

TEST(ModelStateTest, TheSetterWritesInPlaceAndKeepsGradients) {
  nn::Linear layer(3, 2);
  layer->weight.mutable_grad() = torch::ones({2, 3});
  const at::Tensor held = layer->weight;
  const Dict given = other_values(get_model_state_dict(*layer));
  set_model_state_dict(*layer, given);
  EXPECT_TRUE(held.is_same(layer->weight));
  EXPECT_TRUE(bit_equal(held, torch::full({2, 3}, 7.0f)));
  EXPECT_TRUE(held.requires_grad() && held.is_leaf());
  EXPECT_TRUE(bit_equal(held.grad(), torch::ones({2, 3})));
  given.at("weight").as_tensor().fill_(1);
  EXPECT_TRUE(bit_equal(held, torch::full({2, 3}, 7.0f))) << "the given dict must not be aliased";
}

TEST(ModelStateTest, AStateThatExchangesTheModulesOwnTensors) {
  nn::Sequential module(nn::Linear(2, 2), nn::Linear(2, 2));
  const Dict live = get_model_state_dict(*module);
  const Dict before = copy_of(live);
  Dict exchanged = live;
  std::swap(exchanged.at("0.weight"), exchanged.at("1.weight"));
  set_model_state_dict(*module, exchanged);
  EXPECT_TRUE(bit_equal(live.at("0.weight"), before.at("1.weight")));
  EXPECT_TRUE(bit_equal(live.at("1.weight"), before.at("0.weight")));
  EXPECT_TRUE(bit_equal(live.at("1.bias"), before.at("1.bias")));
}

TEST(ModelStateTest, AllFaultsAreNamedAndNothingChanges) {
  nn::Sequential module(nn::Linear(2, 3), nn::Linear(3, 2));
  const Dict before = copy_of(get_model_state_dict(*module));
  Dict given = other_values(before);
  given.erase("0.bias");
  given["extra"] = torch::ones(1);
  given[std::int64_t{5}] = torch::ones(1);
  given["0.weight"] = torch::ones({3, 2}, torch::kDouble);
  given["1.weight"] = 3;
  given["1.bias"] = torch::ones(3);
  for (const char* fault : {"'0.bias': is missing", "'extra': is unexpected", "'5': is unexpected",
                            "'0.weight': the given tensor is float64", "'1.weight': a plain tensor is needed",
                            "'1.bias': the given tensor has shape [3], the current one [2]"}) {
    expect_error(ErrorKind::kType, fault, [&] { set_model_state_dict(*module, given); });
  }
  EXPECT_TRUE(bit_equal(get_model_state_dict(*module), before));
}

TEST(ModelStateTest, NotStrictSetsWhatFitsAndReportsTheRest) {
  nn::Linear layer(3, 2);
  const at::Tensor bias = layer->bias.detach().clone();
  const LoadReport report = set_model_state_dict(
      *layer, {{"weight", torch::full({2, 3}, 2.0f)}, {"extra", torch::ones(1)}}, {.strict = false});
  EXPECT_EQ(report.missing, std::vector<std::string>{"bias"});
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"extra"});
  EXPECT_TRUE(bit_equal(layer->weight, torch::full({2, 3}, 2.0f)));
  EXPECT_TRUE(bit_equal(layer->bias, bias));
}

TEST(ModelStateTest, DtypesByPolicy) {
  nn::Linear layer(nn::LinearOptions(2, 2).bias(false));
  const Dict narrow = {{"weight", torch::full({2, 2}, 1.5, torch::kBFloat16)}};
  const Dict wide = {{"weight", torch::full({2, 2}, 1.5, torch::kDouble)}};
  const auto set = [&](const Dict& given, DtypePolicy policy) {
    return set_model_state_dict(*layer, given, {.dtype_policy = policy});
  };
  expect_error(ErrorKind::kType, "bfloat16", [&] { set(narrow, DtypePolicy::kExact); });
  expect_error(ErrorKind::kType, "float64", [&] { set(wide, DtypePolicy::kLossless); });
  EXPECT_EQ(set(narrow, DtypePolicy::kLossless).converted,
            (std::vector<DtypeConversion>{{"weight", "bfloat16", "float32"}}));
  EXPECT_EQ(set(wide, DtypePolicy::kAny).converted.size(), 1);
  EXPECT_TRUE(bit_equal(layer->weight, torch::full({2, 2}, 1.5f)));
}

struct Tensors : nn::Module {
  explicit Tensors(const std::map<std::string, at::Tensor>& tensors) {
    for (const auto& [name, tensor] : tensors) register_parameter(name, tensor);
  }
};

TEST(ModelStateTest, O15_SizesDifferThroughSetModel) {
  const at::Tensor stored = torch::ones({4, 3});
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{3, 4}, {12}, {4}, {4, 3, 1}}) {
    Tensors module({{"p", torch::zeros(sizes)}});
    for (const bool strict : {true, false}) {
      const std::string text =
          c10::str("'p': the given tensor has shape [4, 3], the current one ", c10::IntArrayRef(sizes));
      expect_error(ErrorKind::kShape, text, [&] { set_model_state_dict(module, {{"p", stored}}, {.strict = strict}); });
      EXPECT_TRUE(bit_equal(get_model_state_dict(module).at("p"), torch::zeros(sizes)));
    }
  }
}

TEST(ModelStateTest, O15_VectorsAndTensorsWithoutDimensions) {
  Tensors scalar({{"p", torch::zeros({})}}), vector({{"p", torch::zeros(5)}});
  expect_error(ErrorKind::kShape, "shape [5], the current one []",
               [&] { set_model_state_dict(scalar, {{"p", torch::ones(5)}}); });
  expect_error(ErrorKind::kShape, "shape [], the current one [5]",
               [&] { set_model_state_dict(vector, {{"p", torch::ones({})}}); });
}

TEST(ModelStateTest, O15_AllThreeBadKeysAreNamed) {
  Tensors module({{"a", torch::zeros(2)}, {"b", torch::zeros(2)}, {"c", torch::zeros(2)}, {"d", torch::zeros(2)}});
  const Dict given = {{"a", torch::ones(3)}, {"b", torch::ones(4)}, {"c", torch::ones({})}, {"d", torch::ones(2)}};
  for (const char* key : {"'a': the given tensor has shape [3]", "'b': the given tensor has shape [4]",
                          "'c': the given tensor has shape []"}) {
    expect_error(ErrorKind::kShape, key, [&] { set_model_state_dict(module, given); });
  }
  EXPECT_TRUE(bit_equal(get_model_state_dict(module).at("d"), torch::zeros(2)));
}

struct Tied : nn::Module {
  Tied() : layer(4, 4) {
    register_module("a", layer);
    register_module("b", layer);
  }
  nn::Linear layer;
};

TEST(ModelStateTest, O25_EveryNameOfATiedTensor) {
  Tied module;
  const Dict state = get_model_state_dict(module);
  EXPECT_EQ(names(state), (std::vector<std::string>{"a.weight", "a.bias", "b.weight", "b.bias"}));
  EXPECT_TRUE(state.at("a.weight").as_tensor().is_same(state.at("b.weight").as_tensor()));
  EXPECT_EQ(unique_parameters(module).size(), 2);
  EXPECT_EQ(unique_parameters(module).at(0).fqn, "a.weight");

  Tied loaded;
  set_model_state_dict(loaded, copy_of(state));
  EXPECT_TRUE(bit_equal(loaded.layer->weight, module.layer->weight));
}

TEST(ModelStateTest, O25_DifferentValuesOfOneTensor) {
  Tied module;
  const at::Tensor before = module.layer->weight.detach().clone();
  Dict given = copy_of(get_model_state_dict(module));
  given.at("b.weight").as_tensor().fill_(3);
  for (const char* name : {"a.weight", "b.weight"}) {
    expect_error(ErrorKind::kInvalidArgument, name, [&] { set_model_state_dict(module, given); });
  }
  EXPECT_TRUE(bit_equal(module.layer->weight, before));
  given.at("a.weight").as_tensor().fill_(2);
  set_model_state_dict(module, given, {.strict = false});
  EXPECT_TRUE(bit_equal(module.layer->weight, torch::full({4, 4}, 2.0f)));
}

// ---------------------------------------------------------------------------------------------------------------------

TEST(RandomStateTest, ContinuesWhereItWasTaken) {
  torch::manual_seed(5);
  torch::randn(3);  // leaves one normal number for later
  const at::Tensor state = get_random_state();
  EXPECT_EQ(state.scalar_type(), at::kByte);
  EXPECT_EQ(state.sizes(), (std::vector<std::int64_t>{5056}));
  const at::Tensor expected = torch::cat({torch::randn(5), torch::rand(700)});
  torch::manual_seed(6);
  set_random_state(state);
  EXPECT_TRUE(bit_equal(get_random_state(), state));
  EXPECT_TRUE(bit_equal(torch::cat({torch::randn(5), torch::rand(700)}), expected));
}

TEST(RandomStateTest, BytesAreThoseOfPython) {
  torch::manual_seed(5);
  const at::Tensor state = get_random_state();
  const auto* bytes = state.const_data_ptr<std::uint8_t>();
  // torch.manual_seed(5); torch.get_rng_state()[:24]: the seed, left = 1, seeded = 1, next = 0.
  const std::vector<std::uint8_t> head = {5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(std::vector<std::uint8_t>(bytes, bytes + head.size()), head);
  // The generator's array begins with the seed, in 64-bit places.
  EXPECT_EQ(std::vector<std::uint8_t>(bytes + 24, bytes + 32), (std::vector<std::uint8_t>{5, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(RandomStateTest, AGeneratorOfOnesOwn) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(9);
  const at::Tensor state = get_random_state(generator);
  const at::Tensor expected = torch::rand(3, generator);
  set_random_state(state, generator);
  EXPECT_TRUE(bit_equal(torch::rand(3, generator), expected));
}

TEST(RandomStateTest, RefusesWhatIsNoState) {
  const at::Tensor before = get_random_state();
  expect_error(ErrorKind::kType, "uint8", [] { set_random_state(torch::zeros(5056)); });
  expect_error(ErrorKind::kType, "uint8", [] { set_random_state(at::Tensor()); });
  expect_error(ErrorKind::kShape, "[16]", [] { set_random_state(torch::zeros(16, torch::kByte)); });
  expect_error(ErrorKind::kCorruptData, "refuses", [] { set_random_state(torch::full(5056, 255, torch::kByte)); });
  EXPECT_TRUE(bit_equal(get_random_state(), before));
}

TEST(PerRankTest, CarriesTheRank) {
  EXPECT_EQ(per_rank_key("rng", 3), "rng.rank3");
  EXPECT_EQ(per_rank_key("a.b", 0), "a.b.rank0");
  expect_error(ErrorKind::kInvalidArgument, "-1", [] { per_rank_key("rng", -1); });
}

}  // namespace
}  // namespace dcp
