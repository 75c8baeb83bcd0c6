#include "torch_dcp/format/torch_save_file.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "test/format/golden_support.h"
#include "torch_dcp/format/legacy_archive_internal.h"
#include "torch_dcp/format/tensor_pickle_internal.h"
#include "torch_dcp/format/zip_internal.h"
#include "torch_dcp/io/memory_file_system.h"
#include "torch_dcp/io/span_file.h"
#include "torch_dcp/pickle/extent.h"
#include "torch_dcp/pickle/reader.h"
#include "torch_dcp/pickle/writer.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/flatten.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

using test::expect_error;
using test::read_expected;
using test::read_golden;

constexpr const char* kFixture = "torch_save_file";

/// Bytes that are kept as long as the file is.
class OwnedFile : public RandomAccessFile {
 public:
  explicit OwnedFile(Bytes bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t size() const override { return bytes_.size(); }
  void read_at(std::uint64_t offset, MutableByteSpan out) const override { SpanFile(bytes_).read_at(offset, out); }

 private:
  Bytes bytes_;
};

TorchSaveFile open(Bytes bytes, const ParseLimits& limits = {}) {
  return TorchSaveFile(std::make_shared<OwnedFile>(std::move(bytes)), limits);
}

Bytes save(const Value& value, TorchSaveForm form = TorchSaveForm::kZip) {
  const auto files = make_memory_file_system();
  const auto out = files->create_file("file");
  TorchSaveWriter writer(*out, value, form);
  EXPECT_EQ(writer.awaited(), nullptr);
  writer.finish();
  out->close();
  return read_whole_file(*files, "file", 1u << 30);
}

Value round_trip(const Value& value, TorchSaveForm form) { return open(save(value, form)).read(); }

constexpr TorchSaveForm kForms[] = {TorchSaveForm::kZip, TorchSaveForm::kBeforeZip};

std::string hex_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.contiguous();
  std::string hex;
  for (std::size_t i = 0; i < plain.nbytes(); ++i) {
    hex += "0123456789abcdef"[static_cast<const std::uint8_t*>(plain.const_data_ptr())[i] >> 4];
    hex += "0123456789abcdef"[static_cast<const std::uint8_t*>(plain.const_data_ptr())[i] & 15];
  }
  return hex;
}

Value sample() {
  const at::Tensor base = at::arange(12, at::kFloat).view({3, 4});
  Value state = Dict{{"w", base},
                     {"tied", base},
                     {"view", base.narrow(0, 1, 2).slice(1, 0, 4, 2)},
                     {"t", base.t()},
                     {"half", at::ones({2}, at::kBFloat16)},
                     {"empty", at::empty({0, 3})},
                     {"scalar", at::scalar_tensor(7, at::kLong)},
                     {"mask", at::tensor({1, 0, 1}, at::kInt).to(at::kBool)},
                     {"z", at::ones({2}, at::kComplexFloat)},
                     {"step", 12345678901},
                     {"lr", 0.5},
                     {"name", "run"},
                     {"raw", Bytes{0, 255, 7}},
                     {"none", None()},
                     {"on", true},
                     {"list", List{1, "a", Tuple{2.5, Dict{{std::int64_t{3}, "three"}}}}}};
  state.as_dict().at("half").as_tensor().requires_grad_(true);
  return state;
}

// ---- what Python wrote -------------------------------------------------------------------------------

void expect_python_values(const Value& root, const std::string& label) {
  SCOPED_TRACE(label);
  const auto expected = read_expected(kFixture)["entries"];
  const FlatStateDict flat = flatten_state_dict(root.as_dict());
  ASSERT_EQ(flat.size(), expected.size());
  for (const auto& [key, entry] : expected.items()) {
    SCOPED_TRACE(key);
    const FlatLeaf* leaf = flat.find(key);
    ASSERT_NE(leaf, nullptr);
    if (entry["kind"] == "tensor") {
      const at::Tensor& tensor = leaf->value.as_tensor();
      EXPECT_EQ(dtype_name(tensor.scalar_type()), entry["dtype"].get<std::string>());
      EXPECT_EQ(tensor.sizes().vec(), entry["shape"].get<std::vector<std::int64_t>>());
      EXPECT_EQ(hex_of(tensor), entry["hex"].get<std::string>());
    }
  }
  EXPECT_EQ(root.as_dict().at("epoch").as_int(), 4);
  const Dict& meta = root.as_dict().at("meta").as_dict();
  EXPECT_EQ(meta.at("name").as_string(), "run");
  EXPECT_EQ(meta.at("lr").as_double(), 0.5);
  EXPECT_EQ(meta.at("tags").as_list()[1].as_string(), "b");
  EXPECT_TRUE(meta.at("none").is_none());
}

TEST(TorchSaveGolden, ReadsPythonsFiles) {
  for (const auto& [name, form] : std::map<std::string, TorchSaveForm>{{"model.pt", TorchSaveForm::kZip},
                                                                       {"model_legacy.pt", TorchSaveForm::kBeforeZip},
                                                                       {"back.pt", TorchSaveForm::kZip}}) {
    const TorchSaveFile file = open(read_golden(std::string(kFixture) + "/" + name));
    EXPECT_EQ(file.form(), form) << name;
    EXPECT_TRUE(file.unread().empty());
    expect_python_values(file.read(), name);
    EXPECT_EQ(find_torch_save_form(SpanFile(read_golden(std::string(kFixture) + "/" + name))), form);
  }
}

TEST(TorchSaveGolden, SharesWhatPythonShared) {
  for (const char* name : {"model.pt", "model_legacy.pt"}) {
    SCOPED_TRACE(name);
    const TorchSaveFile file = open(read_golden(std::string(kFixture) + "/" + name));
    const Value root = file.read();
    const Dict& model = root.as_dict().at("model").as_dict();
    const at::Tensor w = model.at("w").as_tensor();
    EXPECT_TRUE(w.is_same(model.at("tied").as_tensor()));
    const at::Tensor view = model.at("view").as_tensor();
    EXPECT_TRUE(view.is_alias_of(w));
    EXPECT_EQ(view.strides().vec(), (std::vector<std::int64_t>{4, 2}));
    EXPECT_EQ(view.storage_offset(), 4);
    EXPECT_TRUE(root.as_dict().at("param").as_tensor().requires_grad());
    EXPECT_FALSE(w.requires_grad());
    // One after another: each has memory of its own.
    ASSERT_EQ(file.tensors().size(), 5u);
    EXPECT_EQ(describe(file.tensors()[1].path), "['model']['view']");
    EXPECT_EQ(file.tensors()[0].storage_key, file.tensors()[1].storage_key);
    EXPECT_TRUE(bit_equal(file.read_tensor(file.tensors()[1]), view));
    EXPECT_TRUE(file.read_tensor(file.tensors()[4]).requires_grad());
    EXPECT_TRUE(file.structure().as_dict().at("half").as_tensor().is_meta());
    EXPECT_EQ(file.structure().as_dict().at("half").as_tensor().scalar_type(), at::kBFloat16);
  }
}

/// The bytes but the serialization id and what follows from it, and the folder's name.
TEST(TorchSaveGolden, WritesWhatPythonWrote) {
  const Bytes theirs = read_golden("torch_save_file/model.pt");
  const Value root = open(theirs).read();
  const Bytes ours = save(root);
  const auto pickle_of = [](const Bytes& bytes) {
    const SpanFile file(bytes);
    const auto archive = zip::read_archive(file, 0, static_cast<std::int64_t>(bytes.size()), {});
    std::vector<std::string> names;
    for (const zip::Member& member : archive.members) names.push_back(member.name);
    return std::pair(names, zip::read_member(file, 0, archive.at("data/0"), 1000));
  };
  EXPECT_EQ(pickle_of(ours), pickle_of(theirs));
}

// ---- round trips ---------------------------------------------------------------------------------------

TEST(TorchSaveRoundTrip, KeepsValuesStridesAndSharing) {
  for (const TorchSaveForm form : kForms) {
    const Value state = sample();
    const Value loaded = round_trip(state, form);
    EXPECT_EQ(first_difference(state, loaded), "");
    const Dict& dict = loaded.as_dict();
    EXPECT_TRUE(dict.at("w").as_tensor().is_same(dict.at("tied").as_tensor()));
    for (const char* key : {"view", "t"}) {
      const at::Tensor& was = state.as_dict().at(key).as_tensor();
      const at::Tensor& is = dict.at(key).as_tensor();
      EXPECT_TRUE(is.is_alias_of(dict.at("w").as_tensor())) << key;
      EXPECT_EQ(is.strides(), was.strides()) << key;
      EXPECT_EQ(is.storage_offset(), was.storage_offset()) << key;
    }
    EXPECT_TRUE(dict.at("half").as_tensor().requires_grad());
    EXPECT_FALSE(dict.at("w").as_tensor().requires_grad());
    EXPECT_EQ(save(loaded, form), save(state, form));
  }
}

TEST(TorchSaveRoundTrip, EveryDtype) {
  int count = 0;
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    bool is_untyped = false;
    try {
      is_untyped = storage_name(dtype).is_untyped;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      continue;
    }
    if (c10::isQIntType(dtype)) continue;
    SCOPED_TRACE(dtype_name(dtype));
    ++count;
    const at::Tensor tensor = at::empty({3, 5}, dtype);
    auto* bytes = static_cast<std::uint8_t*>(tensor.mutable_data_ptr());
    for (std::size_t k = 0; k < tensor.nbytes(); ++k) bytes[k] = dtype == at::kBool ? k % 2 : 7 * k + 3;
    EXPECT_EQ(hex_of(round_trip(tensor, TorchSaveForm::kZip).as_tensor()), hex_of(tensor));
    if (is_untyped) {
      expect_error(ErrorKind::kUnsupported, dtype_name(dtype), [&] { save(tensor, TorchSaveForm::kBeforeZip); });
    } else {
      EXPECT_EQ(hex_of(round_trip(tensor, TorchSaveForm::kBeforeZip).as_tensor()), hex_of(tensor));
    }
  }
  EXPECT_GE(count, 20);
}

TEST(TorchSaveRoundTrip, QuantizedTensors) {
  const at::Tensor values = at::arange(12, at::kFloat).view({4, 3}) - 5;
  const at::Tensor scales = at::tensor({0.5, 0.25, 0.125}, at::kDouble);
  const Dict state{
      {"tensor", at::quantize_per_tensor(values, 0.25, 3, at::kQInt8)},
      {"wide", at::quantize_per_tensor(values, 0.125, -7, at::kQInt32).t()},
      {"channel", at::quantize_per_channel(values, scales, at::tensor({1, 2, 3}, at::kLong), 1, at::kQUInt8)},
      {"float", at::quantize_per_channel(values, scales.to(at::kFloat), at::tensor({0.5, 1.5, 2.5}, at::kFloat), 1,
                                         at::kQUInt8)}};
  for (const TorchSaveForm form : kForms) {
    const TorchSaveFile file = open(save(state, form));
    EXPECT_EQ(first_difference(Value(state), file.read()), "");
    EXPECT_EQ(file.read().as_dict().at("wide").as_tensor().strides(), state.at("wide").as_tensor().strides());
    for (const SavedTensor& tensor : file.tensors()) {
      EXPECT_EQ(first_difference(state.at(flat_key(tensor.path)), file.read_tensor(tensor)), "");
    }
    EXPECT_EQ(file.structure().as_dict().at("channel").as_tensor().scalar_type(), at::kQUInt8);
  }
  expect_error(ErrorKind::kInvalidArgument, "without a quantizer", [] { save(at::empty({2}, at::kQInt8)); });
}

TEST(TorchSaveRoundTrip, RootsThatAreNoDict) {
  for (const TorchSaveForm form : kForms) {
    for (const Value& root : {Value(5), Value("x"), Value(None()), Value(List{1, 2}), Value(Tuple{at::ones({2})}),
                              Value(Dict{}), Value(at::arange(3))}) {
      EXPECT_EQ(first_difference(root, round_trip(root, form)), "");
    }
  }
}

TEST(TorchSaveRoundTrip, ManyStorages) {
  Dict state;
  for (std::int64_t i = 0; i < 2500; ++i) state["t" + std::to_string(i)] = at::full({2}, i, at::kLong);
  for (const TorchSaveForm form : kForms) {
    const TorchSaveFile file = open(save(state, form));
    EXPECT_EQ(file.tensors().size(), 2500u);
    EXPECT_EQ(first_difference(Value(state), file.read()), "");
  }
}

TEST(TorchSaveRoundTrip, ConjugatesAndNegatives) {
  const at::Tensor z = at::complex(at::arange(4, at::kFloat), at::ones({4}));
  const Dict state{{"z", z}, {"conj", z.conj()}, {"neg", at::imag(z.conj())}};
  ASSERT_TRUE(state.at("conj").as_tensor().is_conj());
  ASSERT_TRUE(state.at("neg").as_tensor().is_neg());
  expect_error(ErrorKind::kUnsupported, "['neg']: a tensor of float32 and one of complex64 share their memory",
               [&] { save(state); });
  const Dict one{{"z", z}, {"conj", z.conj()}};
  EXPECT_EQ(first_difference(Value(one), round_trip(one, TorchSaveForm::kZip)), "");
}

/// Two dtypes that PyTorch both counts in bytes share a storage.
TEST(TorchSaveRoundTrip, OneStorageOfTwoUntypedDtypes) {
  const at::Tensor bits = at::arange(4, at::kShort).view(at::kUInt16);
  const Dict state{{"bits", bits}, {"f8", bits.view(at::kFloat8_e5m2)}};
  const Value loaded = round_trip(state, TorchSaveForm::kZip);
  EXPECT_EQ(first_difference(Value(state), loaded), "");
  EXPECT_TRUE(loaded.as_dict().at("f8").as_tensor().is_alias_of(loaded.as_dict().at("bits").as_tensor()));
}

TEST(TorchSaveWriter, WritesAViewsWholeStorage) {
  const at::Tensor large = at::arange(10'000, at::kFloat);
  const Bytes bytes = save(large.narrow(0, 5000, 3));
  EXPECT_GT(bytes.size(), 40'000u);
  const TorchSaveFile file = open(bytes);
  EXPECT_EQ(file.tensors()[0].item.data_bytes, 40'000);
  EXPECT_TRUE(bit_equal(file.read_tensor(file.tensors()[0]), large.narrow(0, 5000, 3)));
  EXPECT_LE(file.read_tensor(file.tensors()[0]).storage().nbytes(), 12u);
  EXPECT_EQ(file.read().as_tensor().storage().nbytes(), 40'000u);
}

// ---- one tensor after another -----------------------------------------------------------------------------

TEST(TorchSaveWriter, TakesTensorsOneAfterAnother) {
  const Value state = sample();
  for (const TorchSaveForm form : kForms) {
    // Without the tensors that share memory, which a structure of descriptions does not know of.
    Dict whole;
    Dict structure;
    for (const auto& [key, value] : state.as_dict()) {
      if (key == Key("view") || key == Key("t")) continue;
      whole.insert_or_assign(key, value);
      structure.insert_or_assign(key, value);
    }
    const at::Tensor described = at::empty({3, 4}, at::TensorOptions(at::kMeta));
    structure["w"] = described;
    structure["tied"] = described;
    structure["empty"] = at::empty({0, 3}, at::TensorOptions(at::kMeta));
    structure["z"] = at::empty({2}, at::TensorOptions(at::kComplexFloat).device(at::kMeta));
    const auto files = make_memory_file_system();
    const auto out = files->create_file("file");
    TorchSaveWriter writer(*out, structure, form);
    std::size_t count = 0;
    while (const at::Tensor* awaited = writer.awaited()) {
      ++count;
      const char* key = awaited->is_same(described) ? "w" : awaited->numel() == 0 ? "empty" : "z";
      const at::Tensor tensor = whole.at(key).as_tensor();
      if (key[0] == 'w') {
        expect_error(ErrorKind::kShape, "[4, 3]", [&] { writer.write(tensor.t()); });
        expect_error(ErrorKind::kType, "float64", [&] { writer.write(tensor.to(at::kDouble)); });
        expect_error(ErrorKind::kState, "missing", [&] { writer.finish(); });
        const auto* bytes = static_cast<const std::uint8_t*>(tensor.const_data_ptr());
        writer.write_part({bytes, 20});
        expect_error(ErrorKind::kState, "a part", [&] { writer.write(tensor); });
        expect_error(ErrorKind::kInvalidArgument, "28 left", [&] { writer.write_part({bytes, 29}); });
        writer.write_part({bytes + 20, 28});
      } else {
        writer.write(tensor);
      }
    }
    EXPECT_EQ(count, 3u);
    expect_error(ErrorKind::kState, "no tensor is left", [&] { writer.write(at::ones({2})); });
    writer.finish();
    out->close();
    const Bytes bytes = read_whole_file(*files, "file", 1 << 20);
    EXPECT_EQ(bytes, save(whole, form));
  }
}

TEST(TorchSaveWriter, RefusesWithThePlace) {
  const auto refused = [](const Value& value, ErrorKind kind, const std::string& text) {
    expect_error(kind, text, [&] { save(value); });
  };
  refused(Dict{{"a", List{at::Tensor()}}}, ErrorKind::kInvalidArgument, "['a'][0]: the tensor is undefined");
  refused(Dict{{"q", at::empty({2}, at::TensorOptions(at::kQInt8).device(at::kMeta))}}, ErrorKind::kUnsupported,
          "['q']: a quantized tensor on the meta device");
  refused(Dict{{"s", at::eye(2).to_sparse()}}, ErrorKind::kUnsupported, "Sparse");
  refused(Dict{{"b", at::empty({2}, at::kBits8)}}, ErrorKind::kUnsupported, "bits8");
  refused(Dict{{"o", Opaque{std::make_shared<const Bytes>(), "my.Class"}}}, ErrorKind::kUnsupported, "my.Class");
}

// ---- objects ---------------------------------------------------------------------------------------------

Bytes zip_of(ByteSpan pickle, const std::vector<Bytes>& storages = {}) {
  zip::Writer writer;
  writer.add("data.pkl", pickle);
  writer.add_format_members();
  for (std::size_t i = 0; i < storages.size(); ++i) writer.add("data/" + std::to_string(i), storages[i]);
  writer.add_closing_members();
  return writer.finish();
}

Bytes concat(std::initializer_list<Bytes> parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

Bytes pickle_of(std::string_view opcodes) { return concat({{0x80, 2}, bytes_of(opcodes), {'.'}}); }

/// The form before zip of a pickle with any storages behind it.
Bytes legacy_of(const Bytes& pickle, const Bytes& keys_and_storages) {
  return concat({legacy::write_prefix(), pickle, keys_and_storages});
}

TEST(TorchSaveObjects, ListsWhatNoValueHolds) {
  pickle::Writer writer(2);
  writer.empty_dict();
  writer.mark();
  writer.text("a");
  writer.integer(1);
  writer.text("args");
  writer.global("argparse", "Namespace");
  writer.empty_tuple();
  writer.new_object();
  writer.empty_dict();
  writer.build();
  writer.text("l");
  writer.empty_list();
  writer.mark();
  writer.integer(2);
  writer.global("torch", "float32");
  writer.appends_from_mark();
  writer.set_items_from_mark();
  const Bytes pickle = std::move(writer).finish();
  for (const Bytes& bytes : {zip_of(pickle), legacy_of(pickle, legacy::write_keys(0))}) {
    const TorchSaveFile file = open(bytes);
    ASSERT_EQ(file.unread().size(), 2u);
    EXPECT_EQ(describe(file.unread()[0].path), "['args']");
    EXPECT_EQ(file.unread()[0].type_name, "argparse.Namespace");
    EXPECT_EQ(describe(file.unread()[1].path), "['l'][1]");
    EXPECT_EQ(file.unread()[1].type_name, "torch.dtype");
    const Value value = file.read();
    EXPECT_EQ(value.as_dict().at("a").as_int(), 1);
    EXPECT_TRUE(value.as_dict().at("args").is_none());
    EXPECT_EQ(value.as_dict().at("l").as_list()[0].as_int(), 2);
  }
}

TEST(TorchSaveObjects, ReadsAModulesOrderedDict) {
  // What Module.state_dict() gives: an OrderedDict with the attribute _metadata.
  using namespace std::string_literals;
  const auto dict = [](std::string_view state) {
    return pickle_of("ccollections\nOrderedDict\n)RX\x01\0\0\0aK\x01s"s + std::string(state) + "b");
  };
  const TorchSaveFile file = open(zip_of(dict("}X\x09\0\0\0_metadataccollections\nOrderedDict\n)Rs"s)));
  EXPECT_TRUE(file.unread().empty());
  EXPECT_EQ(file.read().as_dict().at("a").as_int(), 1);
  EXPECT_EQ(open(zip_of(dict("}X\x01\0\0\0xK\x01s"s))).unread().size(), 1u);
}

TEST(TorchSaveObjects, RefusesNamesThatRunCode) {
  using namespace std::string_literals;
  const Bytes pickle = pickle_of("cposix\nsystem\nX\x02\0\0\0ls\x85R"s);
  expect_error(ErrorKind::kUnsupported, "posix.system", [&] { open(zip_of(pickle)); });
  expect_error(ErrorKind::kUnsupported, "posix.system", [&] { open(legacy_of(pickle, legacy::write_keys(0))); });
}

// ---- damage ----------------------------------------------------------------------------------------------

TEST(TorchSaveDamage, EveryTruncationIsRefused) {
  for (const TorchSaveForm form : kForms) {
    const Bytes whole = save(sample(), form);
    for (std::size_t length = 0; length < whole.size(); ++length) {
      try {
        open(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length))).read();
        ADD_FAILURE() << "cut after " << length << " bytes of " << whole.size();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kCorruptData) << length << ": " << error.what_without_backtrace();
      }
    }
  }
}

TEST(TorchSaveDamage, FlippedBitsNeverGiveOtherValuesInAZip) {
  const Value state = Dict{{"w", at::arange(6, at::kFloat).view({2, 3})}, {"n", 5}};
  const Bytes whole = save(state);
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    Bytes bytes = whole;
    bytes[at] ^= 1u << (at % 8);
    try {
      EXPECT_EQ(first_difference(state, open(std::move(bytes)).read()), "") << "byte " << at;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

/// Nothing records a checksum there, but no flip may crash, hang or allocate beyond the file.
TEST(TorchSaveDamage, FlippedBitsInTheFormBeforeZip) {
  const Value state = Dict{{"w", at::arange(6, at::kFloat).view({2, 3})}, {"n", 5}};
  const Bytes whole = save(state, TorchSaveForm::kBeforeZip);
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes bytes = whole;
      bytes[at] ^= static_cast<std::uint8_t>(1u << bit);
      try {
        open(std::move(bytes)).read();
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

struct LegacyParts {
  PickledTensor tensor = contiguous_tensor("0", at::kFloat, {2, 3});
  Bytes keys = legacy::write_keys(1);
  Bytes count = legacy::write_count(6);
  Bytes data = Bytes(24);

  Bytes file() const {
    pickle::Writer writer(2);
    write_tensor_call(writer, tensor, true);
    return legacy_of(std::move(writer).finish(), concat({keys, count, data}));
  }
};

TEST(TorchSaveDamage, LegacyFilesThatLie) {
  const auto refused = [](const std::string& text, const std::function<void(LegacyParts&)>& change,
                          ErrorKind kind = ErrorKind::kCorruptData) {
    LegacyParts parts;
    change(parts);
    expect_error(kind, text, text, [&] { open(parts.file()); });
  };
  EXPECT_EQ(open(LegacyParts().file()).read().as_tensor().numel(), 6);
  refused("7 elements, its tensors say 6", [](LegacyParts& parts) { parts.count = legacy::write_count(7); });
  refused("elements", [](LegacyParts& parts) { parts.count = Bytes(8, 0xFF); });
  refused("24 bytes", [](LegacyParts& parts) { parts.data.resize(23); });
  refused("is not in the file", [](LegacyParts& parts) { parts.keys = legacy::write_keys(0); });
  refused("listed twice", [](LegacyParts& parts) {
    parts.keys =
        pickle_of(std::string_view("](X\x01\0\0\0"
                                   "0X\x01\0\0\0"
                                   "0e",
                                   15));
    parts.data = concat({parts.data, parts.count, parts.data});
  });
  refused("keys are a dict", [](LegacyParts& parts) { parts.keys = pickle_of("}"); });
  refused("key of a storage is a int", [](LegacyParts& parts) {
    parts.keys = pickle_of(
        "]K\x01"
        "a");
  });
  const std::int64_t huge = std::int64_t{1} << 55;
  refused("but the file ends", [&](LegacyParts& parts) {
    parts.tensor = contiguous_tensor("0", at::kFloat, {huge});
    parts.count = legacy::write_count(huge);
  });
}

TEST(TorchSaveDamage, LegacyPrefixes) {
  const Bytes rest = concat({pickle_of("K\x01"), legacy::write_keys(0)});
  EXPECT_EQ(open(concat({legacy::write_prefix(), rest})).read().as_int(), 1);
  Bytes magic = legacy::write_prefix();
  magic[2] = 0x8b;  // another opcode: no longer recognized
  expect_error(ErrorKind::kCorruptData, "no zip archive", "magic", [&] { open(concat({magic, rest})); });
  // The magic number among other things is none.
  const Bytes prefix = legacy::write_prefix();
  const Bytes magic_inside = concat({{0x80, 2, ']'}, Bytes(prefix.begin() + 2, prefix.begin() + 14), {'a', '.'}});
  expect_error(ErrorKind::kCorruptData, "magic number is another", "inside", [&] { open(magic_inside); });
  Bytes version = legacy::write_prefix();
  version[18] ^= 1;  // 1001, little-endian
  expect_error(ErrorKind::kUnsupported, "protocol version is 1000", "version", [&] { open(concat({version, rest})); });
  // Pickles without an end, short and long.
  for (const std::size_t count : {10u, 100'000u}) {
    expect_error(ErrorKind::kCorruptData, "in the pickle of the value", "endless",
                 [&] { open(concat({legacy::write_prefix(), {0x80, 2}, Bytes(count, 'N')})); });
  }
  ParseLimits limits;
  limits.max_string_bytes = 5000;
  expect_error(ErrorKind::kCorruptData, "more than 5000 bytes", "limit",
               [&] { open(concat({legacy::write_prefix(), {0x80, 2}, Bytes(100'000, 'N'), {'.'}}), limits); });
}

TEST(TorchSaveDamage, LegacyFormsOfOldPythons) {
  using namespace std::string_literals;
  // A part of another storage, as PyTorch before 0.4 wrote.
  const std::string tensor =
      "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0"
      "0X\x03\0\0\0cpuK\x06"s;
  const std::string rest =
      "tQK\0K\x06\x85K\x01\x85\x89"
      "ccollections\nOrderedDict\n)RtR"s;
  const Bytes storages = concat({legacy::write_keys(1), legacy::write_count(6), Bytes(24)});
  EXPECT_EQ(open(legacy_of(pickle_of(tensor + "N" + rest), storages)).read().as_tensor().numel(), 6);
  expect_error(ErrorKind::kUnsupported, "before 0.4", "view", [&] {
    open(legacy_of(pickle_of(tensor +
                             "X\x01\0\0\0"
                             "1K\0K\x01\x87"s +
                             rest),
                   storages));
  });
  // A module saved with its source: ('module', class, file, source).
  expect_error(ErrorKind::kCorruptData, "persistent id that is no storage", "module", [&] {
    open(legacy_of(pickle_of("(X\x06\0\0\0modulecm\nC\nX\x01\0\0\0fX\x01\0\0\0stQ"s), legacy::write_keys(0)));
  });
  // A storage of unknown class: nothing behind it could be found.
  std::string unknown = tensor;
  unknown.replace(unknown.find("FloatStorage"), 12, "OtherStorage");
  expect_error(ErrorKind::kUnsupported, "torch.OtherStorage", "class",
               [&] { open(legacy_of(pickle_of(unknown + "N" + rest), storages)); });
}

TEST(TorchSaveDamage, QuantizersThatLie) {
  const at::Tensor values = at::ones({2, 3});
  const at::Tensor scales = at::tensor({0.5, 0.25}, at::kDouble);
  const Value channel = at::quantize_per_channel(values, scales, at::tensor({1, 2}, at::kLong), 0, at::kQInt8);
  const Bytes good = save(channel);
  const SpanFile file(good);
  const auto archive = zip::read_archive(file, 0, static_cast<std::int64_t>(good.size()), {});
  const std::string pickle(as_text(zip::read_member(file, 0, archive.at("data.pkl"), 10'000)));
  const auto refused = [&](ErrorKind kind, const std::string& text, std::string_view from, std::string_view to,
                           Bytes scale_bytes = Bytes(16)) {
    std::string changed = pickle;
    const std::size_t at = changed.rfind(from);
    ASSERT_NE(at, std::string::npos) << text;
    changed.replace(at, from.size(), to);
    expect_error(kind, text, text, [&] {
      open(zip_of(as_bytes(changed).size() ? Bytes(changed.begin(), changed.end()) : Bytes(),
                  {Bytes(6), scale_bytes, Bytes(16)}));
    });
  };
  const auto corrupt = ErrorKind::kCorruptData;
  refused(corrupt, "has 8 bytes", "", "", Bytes(8));
  refused(ErrorKind::kUnsupported, "torch.per_row", "per_channel_affine", "per_row");
  refused(corrupt, "zero points are of dtype int64", "per_channel_affine", "per_channel_affine_float_qparams");
  refused(corrupt, "quantized tensor of int8", "QInt8Storage", "CharStorage");
  refused(corrupt, "scales are of dtype int64", "DoubleStorage", "LongStorage");
}

TEST(TorchSaveDamage, ExpandedTensorsAreNotCopied) {
  const at::Tensor one = at::ones({1});
  const Bytes bytes = save(one.expand({1000, 1000}));
  const TorchSaveFile file = open(bytes);
  EXPECT_EQ(file.read().as_tensor().storage().nbytes(), 4u);
  EXPECT_EQ(file.read_tensor(file.tensors()[0]).storage().nbytes(), 4u);
  expect_error(ErrorKind::kUnsupported, "memory", [&] { open(save(one.expand({1'000'000, 1'000'000}))); });
}

/// {KEY * 1 MB: [element, element, ...]}, the element by reference: 2 bytes of pickle for each path that is told.
Bytes many_below_a_long_key(const std::function<void(pickle::Writer&)>& write_element) {
  pickle::Writer writer(2);
  writer.empty_dict();
  writer.mark();
  writer.text(std::string(1 << 20, 'k'));
  writer.empty_list();
  writer.mark();
  write_element(writer);
  const std::uint32_t number = writer.put();
  for (int i = 0; i < 1000; ++i) writer.get(number);
  writer.appends_from_mark();
  writer.set_items_from_mark();
  return std::move(writer).finish();
}

TEST(TorchSaveDamage, PathsOfSharedPartsAreBounded) {
  const Bytes tensors =
      many_below_a_long_key([](pickle::Writer& writer) { write_tensor_call(writer, "0", at::kFloat, {2, 3}); });
  expect_error(ErrorKind::kUnsupported, "memory", "tensors", [&] { open(zip_of(tensors, {Bytes(24)})); });
  const Bytes unread = many_below_a_long_key([](pickle::Writer& writer) { writer.global("torch", "float32"); });
  expect_error(ErrorKind::kUnsupported, "memory", "unread parts", [&] { open(zip_of(unread)); });
}

TEST(TorchSaveDamage, NegativesOfOneStorageAreBounded) {
  // Each gets memory of its own: 500 times 1 MiB in a file of one.
  const at::Tensor base = at::zeros({1 << 18});
  const auto negatives = [&](int count) {
    List views;
    for (int i = 0; i < count; ++i) views.push_back(base._neg_view());
    return save(views);
  };
  EXPECT_EQ(open(negatives(4)).read().as_list().size(), 4u);
  expect_error(ErrorKind::kUnsupported, "memory", "negatives", [&] { open(negatives(500)); });
}

TEST(TorchSaveDamage, QuantizersOfSharedTensorsAreReadOnce) {
  const at::Tensor channels = at::quantize_per_channel(at::ones({2, 3}), at::tensor({0.5, 0.25}, at::kDouble),
                                                       at::tensor({1, 2}, at::kLong), 0, at::kQInt8);
  const TorchSaveFile file = open(save(List{channels, channels, channels}));
  ASSERT_EQ(file.tensors().size(), 3u);
  const at::Tensor& scales = file.tensors()[0].item.quantizer->scales;
  EXPECT_TRUE(file.tensors()[2].item.quantizer->scales.is_same(scales));
  EXPECT_TRUE(at::equal(scales, at::tensor({0.5, 0.25}, at::kDouble)));
}

TEST(PickleExtent, FindsTheEndInAnyParts) {
  pickle::Writer writer(4);
  writer.empty_dict();
  writer.mark();
  writer.text("key with a . in it");
  writer.integer(1ll << 40);
  writer.global("module", "name");
  writer.bytes(Bytes(70'000, '.'));
  writer.set_items_from_mark();
  const Bytes one = std::move(writer).finish();
  const Bytes two = concat({one, pickle_of("cmodule\nwith.dot\n(lp0\nI5\n"), one});
  for (const std::size_t part : {std::size_t{1}, std::size_t{7}, std::size_t{4096}, two.size()}) {
    pickle::ExtentScanner scanner;
    std::size_t at = 0;
    while (!scanner.feed(ByteSpan(two).subspan(at, std::min(part, two.size() - at)))) at += part;
    EXPECT_EQ(scanner.extent(), one.size());
  }
  pickle::ExtentScanner second;
  EXPECT_TRUE(second.feed(ByteSpan(two).subspan(one.size())));
  EXPECT_EQ(second.extent(), two.size() - 2 * one.size());
  expect_error(ErrorKind::kCorruptData, "the byte 255 at offset 2", "opcode", [] {
    pickle::ExtentScanner bad;
    bad.feed(Bytes{0x80, 2, 0xFF});
  });
}

}  // namespace
}  // namespace dcp
