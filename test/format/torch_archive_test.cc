#include "torch_dcp/format/torch_archive.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "test/format/archive_support.h"
#include "test/support/expect_error.h"
#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/tensor_pickle_internal.h"
#include "torch_dcp/pickle/reader.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

using test::concat;
using test::CountingFile;
using test::expect_error;
using test::make_archive;
using test::make_item;
using test::open_item;
using test::read_file;
using test::small_item;

// One entry of a fixture that Python wrote, and its item.
struct Stored {
  nlohmann::json entry;
  Bytes item;

  Sizes sizes() const {
    const auto list = entry["shape"].get<std::vector<std::int64_t>>();
    return Sizes(list.begin(), list.end());
  }
  Bytes elements() const {
    const auto hex = entry["hex"].get<std::string>();
    Bytes bytes;
    for (std::size_t i = 0; i < hex.size(); i += 2) {
      bytes.push_back(static_cast<std::uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    return bytes;
  }
};

std::map<std::string, Stored> read_fixture(const std::string& name) {
  const std::string folder = "test/golden/fixtures/" + name;
  const auto expected = nlohmann::json::parse(read_file(folder + "/expected.json"));
  std::map<std::string, Stored> entries;
  for (const auto& [key, entry] : expected["entries"].items()) {
    const auto& stored = entry["stored"][0];
    const Bytes file = read_file(folder + "/ckpt/" + stored["file"].get<std::string>());
    const auto begin = file.begin() + stored["offset"].get<std::ptrdiff_t>();
    entries[key] = {entry, Bytes(begin, begin + stored["length"].get<std::ptrdiff_t>())};
  }
  return entries;
}

// The tensor's elements row-major, byte order, conj and neg resolved.
Bytes row_major(const TensorItem& item, const Bytes& storage) {
  const std::int64_t unit = element_bytes(item.dtype);
  const std::int64_t numel = *checked_numel(item.sizes);
  Bytes out;
  std::vector<std::int64_t> index(item.sizes.size(), 0);
  for (std::int64_t n = 0; n < numel; ++n) {
    std::int64_t at = item.storage_offset;
    for (std::size_t d = 0; d < index.size(); ++d) at += index[d] * item.strides[d];
    Bytes element(storage.begin() + at * unit, storage.begin() + (at + 1) * unit);
    const std::int64_t swap = swap_unit_bytes(item.dtype);
    for (std::int64_t i = 0; item.is_big_endian && i < unit; i += swap) {
      std::reverse(element.begin() + i, element.begin() + i + swap);
    }
    if (item.is_conj) element.back() ^= 0x80;
    out.insert(out.end(), element.begin(), element.end());
    for (std::size_t d = index.size(); d-- > 0 && ++index[d] == item.sizes[d];) index[d] = 0;
  }
  return out;
}

void expect_reads(const Stored& stored) {
  const TensorItem item = open_item(stored.item);
  EXPECT_EQ(dtype_name(item.dtype), stored.entry["dtype"].get<std::string>());
  EXPECT_EQ(item.sizes, stored.sizes());
  EXPECT_FALSE(item.is_neg);
  const Bytes storage = read_storage(SpanFile(stored.item), 0, item);
  EXPECT_EQ(row_major(item, storage), stored.elements());
  if (item.is_plain_contiguous()) {
    const auto begin = stored.item.begin() + item.data_position;
    EXPECT_EQ(Bytes(begin, begin + static_cast<std::ptrdiff_t>(stored.elements().size())), stored.elements());
  }
}

std::size_t find_text(ByteSpan bytes, std::string_view text, std::size_t from = 0) {
  const std::size_t at = as_text(bytes).find(text, from);
  EXPECT_NE(at, std::string_view::npos) << text;
  return at;
}

void expect_same(const TensorItem& a, const TensorItem& b) {
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.sizes, b.sizes);
  EXPECT_EQ(a.strides, b.strides);
  EXPECT_EQ(a.storage_offset, b.storage_offset);
  EXPECT_EQ(a.is_conj, b.is_conj);
  EXPECT_EQ(a.is_neg, b.is_neg);
  EXPECT_EQ(a.is_big_endian, b.is_big_endian);
  EXPECT_EQ(a.is_stored, b.is_stored);
  EXPECT_EQ(a.data_position, b.data_position);
  EXPECT_EQ(a.data_bytes, b.data_bytes);
  EXPECT_EQ(a.compressed_bytes, b.compressed_bytes);
  EXPECT_EQ(a.crc32, b.crc32);
}

// Blanks what differs by intent: the serialization id and its two CRCs.
Bytes without_id(Bytes item) {
  constexpr std::string_view kName = ".data/serialization_id";
  const std::size_t local = find_text(item, kName);
  const std::size_t data = (local + kName.size() + 4 + 63) / 64 * 64;
  const std::size_t record = find_text(item, kName, data) - 8 - 46;
  std::fill_n(item.begin() + static_cast<std::ptrdiff_t>(data), 40, 0);
  std::fill_n(item.begin() + static_cast<std::ptrdiff_t>(data) + 44, 4, 0);
  std::fill_n(item.begin() + static_cast<std::ptrdiff_t>(record) + 16, 4, 0);
  return item;
}

TEST(TorchArchiveWriter, WritesPythonsBytes) {
  const auto fixture = read_fixture("dtypes");
  int count = 0;
  for (const auto& [key, stored] : fixture) {
    SCOPED_TRACE(key);
    const auto dtype = dtype_from_name(stored.entry["dtype"].get<std::string>());
    if (!dtype) continue;  // one that this LibTorch lacks
    const Bytes ours = make_item(*dtype, stored.sizes(), stored.elements());
    EXPECT_EQ(without_id(ours), without_id(stored.item));
    EXPECT_EQ(begin_tensor_item(*dtype, stored.sizes()).item_bytes, static_cast<std::int64_t>(stored.item.size()));
    ++count;
  }
  EXPECT_GE(count, 36);
}

TEST(TensorItemForm, MakesAndOpensWhatTheLongWayDoes) {
  const auto fixture = read_fixture("dtypes");
  TensorItemForms forms;
  int count = 0;
  for (const auto& [key, stored] : fixture) {
    SCOPED_TRACE(key);
    const auto dtype = dtype_from_name(stored.entry["dtype"].get<std::string>());
    if (!dtype) continue;  // one that this LibTorch lacks
    const Bytes elements = stored.elements();
    TensorItemForm& form = forms.of(*dtype, stored.sizes());
    // A second time, so that nothing of the first stays.
    form.tail(0x01020304);
    const Bytes ours = concat({form.head(), elements, form.tail(crc32_of(elements))});
    EXPECT_EQ(ours, make_item(*dtype, stored.sizes(), elements));
    EXPECT_EQ(form.item_bytes(), static_cast<std::int64_t>(ours.size()));
    for (const Bytes& item : {ours, stored.item}) {
      const auto opened = form.open(SpanFile(item), 0, static_cast<std::int64_t>(item.size()));
      ASSERT_TRUE(opened.has_value());
      expect_same(*opened, open_item(item));
    }
    ++count;
  }
  EXPECT_GE(count, 36);
}

TEST(TensorItemForm, TakesNoItemThatHasAnotherByte) {
  TensorItemForms forms;
  for (const std::int64_t columns : {3, 30'000}) {  // read whole, and by its ends
    SCOPED_TRACE(columns);
    const Sizes sizes{2, columns};
    const auto data_bytes = static_cast<std::size_t>(8 * columns);
    const Bytes good = make_item(c10::ScalarType::Float, sizes, Bytes(data_bytes, 7));
    TensorItemForm& form = forms.of(c10::ScalarType::Float, sizes);
    const std::size_t head_bytes = form.head().size();
    std::size_t taken = 0;
    for (std::size_t at = 0; at < good.size(); ++at) {
      if (at == head_bytes) at += data_bytes;
      Bytes bad = good;
      bad[at] ^= 0x10;
      const auto opened = form.open(SpanFile(bad), 0, static_cast<std::int64_t>(bad.size()));
      if (!opened) continue;
      // The serialization id and its CRCs, which nobody reads.
      ++taken;
      expect_same(*opened, open_item(bad));
    }
    EXPECT_EQ(taken, 48u);
    EXPECT_FALSE(form.open(SpanFile(good), 0, static_cast<std::int64_t>(good.size()) - 1).has_value());
  }
}

TEST(TorchArchiveWriter, HasTheSizesOfFormatMd) {
  EXPECT_EQ(small_item().size(), 1577u);
  EXPECT_EQ(make_item(c10::ScalarType::Float, {0, 3}, {}).size(), 1513u);
  EXPECT_EQ(make_item(c10::ScalarType::Float, {0}, {}).size(), 1513u);
  EXPECT_EQ(begin_tensor_item(c10::ScalarType::Float, {2, 3}).head.size() % 64, 0u);
}

TEST(TorchArchiveWriter, ObjectsToo) {
  int count = 0;
  for (const auto& [key, stored] : read_fixture("objects")) {
    if (stored.entry["kind"] != "bytes" || stored.entry["value"]["t"] != "int") continue;
    const SpanFile file(stored.item);
    const auto archive = zip::read_archive(file, 0, static_cast<std::int64_t>(stored.item.size()), {});
    zip::Writer writer;
    writer.add("data.pkl", zip::read_member(file, 0, archive.at("data.pkl"), 1000));
    writer.add_format_members();
    writer.add_closing_members();
    EXPECT_EQ(without_id(writer.finish()), without_id(stored.item)) << key;
    count += stored.item.size() == 1261 ? 1 : 0;
  }
  EXPECT_GE(count, 1);
}

TEST(TorchArchiveWriter, IsDeterministicAndFollowsContent) {
  EXPECT_EQ(small_item(), small_item());
  const Bytes zeros = make_item(c10::ScalarType::Float, {2, 3}, Bytes(24));
  const auto id = [](const Bytes& item) {
    const SpanFile file(item);
    const auto archive = zip::read_archive(file, 0, static_cast<std::int64_t>(item.size()), {});
    return zip::read_member(file, 0, archive.at(".data/serialization_id"), 40);
  };
  EXPECT_NE(id(zeros), id(small_item()));
}

TEST(TorchArchiveWriter, RefusesWhatCannotBeWritten) {
  expect_error(ErrorKind::kUnsupported, "quantized", [] { begin_tensor_item(c10::ScalarType::QInt8, {2}); });
  expect_error(ErrorKind::kInvalidArgument, "cannot be written",
               [] { begin_tensor_item(c10::ScalarType::Float, {-1}); });
  expect_error(ErrorKind::kInvalidArgument, "cannot be written",
               [] { begin_tensor_item(c10::ScalarType::Float, {1ll << 62}); });
  expect_error(ErrorKind::kInvalidArgument, "a tensor of 9223372036854775807 bytes",
               [] { begin_tensor_item(c10::ScalarType::Byte, {std::numeric_limits<std::int64_t>::max()}); });
}

TEST(TorchArchive, RoundTripsEveryDtype) {
  int count = 0;
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    try {
      begin_tensor_item(dtype, {});
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kUnsupported) << i;
      continue;
    }
    ++count;
    for (const Sizes& sizes :
         {Sizes{}, Sizes{0}, Sizes{3}, Sizes{2, 3}, Sizes{5, 0, 2}, Sizes{1, 300, 1}, Sizes{1, 2, 1, 2, 70'000}}) {
      SCOPED_TRACE(c10::str(dtype, " ", c10::IntArrayRef(sizes)));
      Bytes elements(static_cast<std::size_t>(*checked_numel(sizes) * element_bytes(dtype)));
      for (std::size_t k = 0; k < elements.size(); ++k) elements[k] = static_cast<std::uint8_t>(k * 7 + 3);
      const Bytes bytes = make_item(dtype, sizes, elements);
      const TensorItem item = open_item(bytes);
      EXPECT_EQ(item.dtype, dtype);
      EXPECT_EQ(item.sizes, sizes);
      EXPECT_TRUE(item.is_plain_contiguous());
      EXPECT_EQ(item.data_position % 64, 0);
      EXPECT_EQ(item.data_bytes, static_cast<std::int64_t>(elements.size()));
      EXPECT_TRUE(read_storage(SpanFile(bytes), 0, item) == elements);
    }
  }
  EXPECT_GE(count, 18);
}

TEST(TorchArchiveReader, ReadsPythonsDtypes) {
  for (const auto& [key, stored] : read_fixture("dtypes")) {
    SCOPED_TRACE(key);
    if (!dtype_from_name(stored.entry["dtype"].get<std::string>())) continue;
    expect_reads(stored);
    EXPECT_TRUE(open_item(stored.item).is_plain_contiguous());
  }
}

TEST(TorchArchiveReader, ReadsPythonsStrides) {
  const auto fixture = read_fixture("strides");
  for (const auto& [key, stored] : fixture) {
    SCOPED_TRACE(key);
    expect_reads(stored);
  }
  const TensorItem transposed = open_item(fixture.at("transposed").item);
  EXPECT_EQ(transposed.strides, (Sizes{1, 4}));
  EXPECT_FALSE(transposed.is_plain_contiguous());
  EXPECT_EQ(open_item(fixture.at("channels_last").item).strides, (Sizes{24, 1, 8, 2}));
  EXPECT_EQ(open_item(fixture.at("overlapping").item).storage_offset, 1);
  EXPECT_TRUE(open_item(fixture.at("conj").item).is_conj);
  EXPECT_FALSE(open_item(fixture.at("conj").item).is_plain_contiguous());
  EXPECT_TRUE(open_item(fixture.at("zero_stride").item).is_plain_contiguous());
  EXPECT_TRUE(open_item(fixture.at("plain").item).is_plain_contiguous());
}

TEST(TorchArchiveReader, ReadsForeignForms) {
  const auto fixture = read_fixture("foreign_zips");
  for (const auto& [key, stored] : fixture) {
    SCOPED_TRACE(key);
    expect_reads(stored);
  }
  EXPECT_TRUE(open_item(fixture.at("big_endian").item).is_big_endian);
  EXPECT_FALSE(open_item(fixture.at("big_endian").item).is_plain_contiguous());
  EXPECT_FALSE(open_item(fixture.at("deflated").item).is_stored);
  EXPECT_FALSE(open_item(fixture.at("deflated").item).is_plain_contiguous());
  EXPECT_TRUE(open_item(fixture.at("minimal").item).is_plain_contiguous());
}

TEST(TorchArchiveReader, ReadsOtherAlignmentAndNoCrc) {
  const auto alignment = read_fixture("alignment");
  expect_reads(alignment.at("w"));
  expect_reads(alignment.at("v"));
  const auto no_crc = read_fixture("no_crc");
  expect_reads(no_crc.at("w"));
  EXPECT_EQ(open_item(no_crc.at("w").item).crc32, 0u);
  for (const auto* fixture : {&alignment, &no_crc}) {
    expect_error(ErrorKind::kCorruptData, "there should be a tensor, but there is a int",
                 [&] { open_item(fixture->at("o").item); });
  }
}

TEST(TorchArchiveReader, ReadsQuantizedTensors) {
  for (const auto& [key, stored] : read_fixture("dtypes_quantized")) {
    SCOPED_TRACE(key);
    expect_reads(stored);
    const TensorItem item = open_item(stored.item);
    EXPECT_TRUE(item.is_plain_contiguous());
    ASSERT_TRUE(item.quantizer);
    const at::Tensor tensor = read_tensor(SpanFile(stored.item), 0, item);
    ASSERT_TRUE(tensor.is_quantized());
    if (stored.entry["qscheme"] == "per_tensor_affine") {
      EXPECT_EQ(tensor.q_scale(), stored.entry["scale"].get<double>());
      EXPECT_EQ(tensor.q_zero_point(), stored.entry["zero_point"].get<std::int64_t>());
      continue;
    }
    EXPECT_EQ(tensor.q_per_channel_axis(), stored.entry["axis"].get<std::int64_t>());
    const at::Tensor scales = tensor.q_per_channel_scales();
    const at::Tensor zero_points = tensor.q_per_channel_zero_points();
    for (std::int64_t i = 0; i < scales.numel(); ++i) {
      EXPECT_EQ(scales.const_data_ptr<double>()[i], stored.entry["scales"][static_cast<std::size_t>(i)].get<double>());
      EXPECT_EQ(zero_points.const_data_ptr<std::int64_t>()[i],
                stored.entry["zero_points"][static_cast<std::size_t>(i)].get<std::int64_t>());
    }
  }
}

TEST(TorchArchiveReader, ReadsLittleOfALargeItem) {
  const Bytes elements(1 << 20, 0x11);
  const Bytes before(1000, 0xEE);
  const Bytes item = make_item(c10::ScalarType::Float, {1 << 18}, elements);
  const Bytes bytes = concat({before, item, before});
  const SpanFile file(bytes);
  const CountingFile counting(file);
  const TensorItem opened = open_tensor_item(counting, 1000, static_cast<std::int64_t>(item.size()));
  EXPECT_LE(counting.bytes(), 8u * 1024);
  EXPECT_LE(counting.reads(), 2u);
  EXPECT_EQ(bytes[static_cast<std::size_t>(1000 + opened.data_position)], 0x11);
  EXPECT_TRUE(read_storage(file, 1000, opened) == elements);

  const Bytes small = small_item();
  const SpanFile small_file(small);
  const CountingFile small_counting(small_file);
  open_tensor_item(small_counting, 0, static_cast<std::int64_t>(small.size()));
  EXPECT_EQ(small_counting.reads(), 1u);
}

TEST(TorchArchiveReader, RefusesEveryTruncation) {
  const Bytes item = small_item();
  for (std::size_t length = 0; length < item.size(); ++length) {
    const ByteSpan cut = ByteSpan(item).first(length);
    EXPECT_THROW(open_item(cut), Error) << length;
    EXPECT_THROW(open_tensor_item(SpanFile(cut), 0, static_cast<std::int64_t>(item.size())), Error) << length;
  }
}

TEST(TorchArchiveReader, NeverTakesAFlippedBitForAnotherTensor) {
  const Bytes good = small_item();
  const TensorItem expected = open_item(good);
  const Bytes elements = read_storage(SpanFile(good), 0, expected);
  int harmless = 0;
  Bytes bytes = good;
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    try {
      const TensorItem item = open_item(bytes);
      const Bytes storage = read_storage(SpanFile(bytes), 0, item);
      ASSERT_TRUE(item.dtype == expected.dtype && item.sizes == expected.sizes && item.strides == expected.strides &&
                  item.storage_offset == 0 && item.is_plain_contiguous() && storage == elements)
          << "bit " << bit;
      ++harmless;
    } catch (const Error& error) {
      ASSERT_TRUE(error.kind() == ErrorKind::kCorruptData || error.kind() == ErrorKind::kUnsupported) << bit;
    }
    bytes[bit / 8] = good[bit / 8];
  }
  EXPECT_LT(harmless, static_cast<int>(8 * good.size()) / 2);
}

TEST(TorchArchiveReader, RefusesHostileItemsForTheirReason) {
  const auto corrupt = ErrorKind::kCorruptData;
  const auto unsupported = ErrorKind::kUnsupported;
  const std::vector<std::tuple<std::string, ErrorKind, std::string>> cases = {
      {"data_flipped_pickle", corrupt, "\"data.pkl\""},
      {"data_flipped_tensor", corrupt, "CRC-32"},
      {"data_noise_item", corrupt, "no end record"},
      {"data_zeroed_item", corrupt, "no end record"},
      {"item_code", corrupt, "posix.system"},
      {"item_is_object", corrupt, "there should be a tensor"},
      {"item_key_path", corrupt, "../0"},
      {"item_numel_lies", corrupt, "has 48 bytes"},
      {"item_numel_negative", corrupt, "element count is -1"},
      {"item_numel_small", corrupt, "not inside its storage of 3"},
      {"item_offset_huge", corrupt, "not inside its storage"},
      {"item_offset_negative", corrupt, "storage offset is -1"},
      {"item_offset_outside", corrupt, "offset 9 is not inside"},
      {"item_rank_differs", corrupt, "2 sizes and 1 strides"},
      {"item_size_negative", corrupt, "size is -4"},
      {"item_size_overflow", corrupt, "more than 64 bits"},
      {"item_storage_unknown", unsupported, "torch.load"},
      {"item_stride_negative", corrupt, "stride is -3"},
      {"item_stride_outside", corrupt, "not inside its storage of 12"},
      {"item_stride_overflow", corrupt, "not inside its storage of 12"},
      {"zip_bad_method", unsupported, "method 99"},
      {"zip_bomb", corrupt, "has 67108864 bytes"},
      {"zip_byteorder_unknown", corrupt, "middle"},
      {"zip_declares_huge", corrupt, "2147483648 bytes"},
      {"zip_directory_count", corrupt, "no members"},
      {"zip_encrypted", unsupported, "encrypted"},
      {"zip_header_outside", corrupt, "goes past byte"},
      {"zip_header_wrong", corrupt, "goes past byte 33"},
      {"zip_no_data", corrupt, "no member \"data/0\""},
      {"zip_no_directory", corrupt, "no end record"},
      {"zip_no_pickle", corrupt, "no member \"data.pkl\""},
      {"zip_torchscript", unsupported, "TorchScript"},
      {"zip_twice", corrupt, "two members \"data/0\""},
      {"zip_two_tops", corrupt, "is no name of a member"},
      {"zip_version_99", unsupported, "version is 99"},
  };
  for (const auto& [name, kind, text] : cases) {
    SCOPED_TRACE(name);
    const Bytes bytes = read_file("test/fuzz/corpus/zip/" + name);
    expect_error(kind, text, [&] { read_storage(SpanFile(bytes), 0, open_item(bytes)); });
  }
  const Bytes zero_strides = read_file("test/fuzz/corpus/zip/item_zero_strides");
  EXPECT_EQ(open_item(zero_strides).strides, (Sizes{0, 0}));
  EXPECT_FALSE(open_item(zero_strides).is_plain_contiguous());
  EXPECT_TRUE(open_item(read_file("test/fuzz/corpus/zip/item_handmade_good")).is_plain_contiguous());
}

// A call that makes a tensor, every part as told.
struct Call {
  std::string function = "_rebuild_tensor_v2";
  std::string storage_module = "torch";
  std::string storage = "FloatStorage";
  std::string key = "0";
  std::int64_t numel = 6;
  std::int64_t offset = 0;
  std::vector<std::int64_t> sizes = {2, 3};
  std::vector<std::int64_t> strides = {3, 1};
  std::string dtype = {};
  std::vector<std::pair<std::string, bool>> bits = {};
  bool has_bits = false;
  int parameters = 0;
  bool has_hooks = false;
  bool has_state = false;
  int extra_arguments = 0;

  void write_ordered_dict(pickle::Writer& writer, bool is_full) const {
    writer.global("collections", "OrderedDict");
    writer.empty_tuple();
    writer.reduce();
    if (!is_full) return;
    writer.integer(1);
    writer.integer(2);
    writer.set_item();
  }

  static void write_ints(pickle::Writer& writer, const std::vector<std::int64_t>& values) {
    writer.mark();
    for (std::int64_t value : values) writer.integer(value);
    writer.tuple_from_mark();
  }

  Bytes pickled() const {
    pickle::Writer writer(2);
    for (int i = 0; i < parameters; ++i) {
      writer.global("torch._utils", "_rebuild_parameter");
      writer.mark();
    }
    writer.global("torch._utils", function);
    writer.mark();
    writer.mark();
    writer.text("storage");
    writer.global(storage_module, storage);
    writer.text(key);
    writer.text("cuda:3");
    writer.integer(numel);
    writer.tuple_from_mark();
    writer.persistent_id();
    writer.integer(offset);
    write_ints(writer, sizes);
    write_ints(writer, strides);
    writer.boolean(true);
    write_ordered_dict(writer, has_hooks);
    if (!dtype.empty()) writer.global("torch", dtype);
    if (has_bits || !bits.empty()) {
      writer.empty_dict();
      for (const auto& [name, value] : bits) {
        writer.text(name);
        writer.boolean(value);
        writer.set_item();
      }
    }
    for (int i = 0; i < extra_arguments; ++i) writer.none();
    writer.tuple_from_mark();
    writer.reduce();
    if (has_state) {
      writer.empty_dict();
      writer.build();
    }
    for (int i = 0; i < parameters; ++i) {
      writer.boolean(true);
      write_ordered_dict(writer, false);
      writer.tuple_from_mark();
      writer.reduce();
    }
    return std::move(writer).finish();
  }
};

PickledTensor parse(const Call& call) {
  const Bytes bytes = call.pickled();
  const pickle::Pickle pickle = pickle::parse(bytes);
  EXPECT_TRUE(is_tensor_call(pickle.root));
  return parse_tensor_call(pickle.root, {});
}

TEST(TensorPickle, Parses) {
  const PickledTensor plain = parse({});
  EXPECT_EQ(plain.storage_key, "0");
  EXPECT_EQ(plain.dtype, c10::ScalarType::Float);
  EXPECT_EQ(plain.storage_numel, 6);
  EXPECT_EQ(plain.storage_bytes, 24);
  EXPECT_EQ(plain.sizes, (Sizes{2, 3}));
  EXPECT_EQ(plain.strides, (Sizes{3, 1}));

  EXPECT_EQ(parse({.key = "17", .parameters = 1}).storage_key, "17");
  const PickledTensor view = parse({.numel = 100, .offset = 4, .sizes = {2, 3}, .strides = {40, 20}});
  EXPECT_EQ(view.storage_offset, 4);
  EXPECT_EQ(view.storage_bytes, 400);

  const PickledTensor untyped = parse({.function = "_rebuild_tensor_v3",
                                       .storage_module = "torch.storage",
                                       .storage = "UntypedStorage",
                                       .numel = 12,
                                       .dtype = "uint16"});
  EXPECT_EQ(untyped.dtype, c10::ScalarType::UInt16);
  EXPECT_EQ(untyped.storage_numel, 6);
  EXPECT_EQ(untyped.storage_bytes, 12);

  const PickledTensor bits = parse({.storage = "ComplexFloatStorage", .bits = {{"conj", true}, {"neg", true}}});
  EXPECT_TRUE(bits.is_conj);
  EXPECT_TRUE(bits.is_neg);
  EXPECT_FALSE(parse({.has_bits = true}).is_neg);

  // Expanded, as an object may hold it.
  EXPECT_EQ(parse({.numel = 1, .sizes = {1000, 3}, .strides = {0, 0}}).storage_bytes, 4);
  // Without elements nothing lies anywhere.
  EXPECT_EQ(parse({.numel = 0, .offset = 1ll << 62, .sizes = {0, 3}, .strides = {1ll << 62, 1}}).storage_offset, 0);
}

TEST(TensorPickle, Refuses) {
  const auto corrupt = ErrorKind::kCorruptData;
  const auto unsupported = ErrorKind::kUnsupported;
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::tuple<ErrorKind, std::string, Call>> cases = {
      {corrupt, "not inside", {.numel = 5}},
      {corrupt, "not inside", {.offset = 1}},
      {corrupt, "not inside", {.offset = huge}},
      {corrupt, "not inside", {.strides = {huge, huge}}},
      {corrupt, "not inside", {.offset = 1, .strides = {huge - 2, 1}}},
      {corrupt, "stride is -1", {.strides = {-1, 1}}},
      {corrupt, "size is -2", {.sizes = {-2, -3}}},
      {corrupt, "64 bits", {.sizes = {1ll << 32, 1ll << 32}, .strides = {0, 0}}},
      {corrupt, "64 bits", {.sizes = {0, 1ll << 62, 1ll << 62}, .strides = {0, 0, 0}}},
      {corrupt, "64 bits", {.sizes = {1ll << 61}, .strides = {0}}},
      {corrupt, "64 bits", {.numel = huge}},
      {corrupt, "element count is -1", {.numel = -1}},
      {corrupt, "1 sizes and 2 strides", {.sizes = {2}}},
      {corrupt, "65 dimensions", {.sizes = std::vector<std::int64_t>(65, 1)}},
      {corrupt, "not a number", {.key = ""}},
      {corrupt, "not a number", {.key = "0a"}},
      {corrupt, "not a number", {.key = "-1"}},
      {corrupt, "not a number", {.key = std::string(21, '1')}},
      {unsupported, "torch.FooStorage", {.storage = "FooStorage"}},
      {unsupported, "os.FloatStorage", {.storage_module = "os"}},
      {unsupported, "quantized tensor, qint8", {.storage = "QInt8Storage"}},
      {corrupt, "6 arguments, not 7", {.function = "_rebuild_qtensor"}},
      {unsupported, "_rebuild_sparse_tensor", {.function = "_rebuild_sparse_tensor"}},
      {unsupported, "torch.nonsense", {.function = "_rebuild_tensor_v3", .dtype = "nonsense"}},
      {corrupt, "6 arguments", {.function = "_rebuild_tensor_v3"}},
      {corrupt, "9 arguments", {.extra_arguments = 3}},
      {corrupt, "metadata is a", {.extra_arguments = 1}},
      {corrupt,
       "its elements 8",
       {.function = "_rebuild_tensor_v3",
        .storage_module = "torch.storage",
        .storage = "UntypedStorage",
        .numel = 50,
        .dtype = "float64"}},
      {unsupported, "\"grad\"", {.bits = {{"grad", true}}}},
      {corrupt, "conjugated tensor of float32", {.bits = {{"conj", true}}}},
      {unsupported, "hooks", {.has_hooks = true}},
      {unsupported, "attributes", {.has_state = true}},
      {corrupt, "parameter holds a parameter", {.parameters = 2}},
  };
  for (const auto& [kind, text, call] : cases) {
    SCOPED_TRACE(text);
    expect_error(kind, text, [&, &call = call] { parse(call); });
  }
}

TEST(TensorPickle, TellsTensorsFromOthers) {
  const auto is_tensor = [](const char* module, const char* name) {
    pickle::Writer writer(2);
    writer.global(module, name);
    writer.empty_tuple();
    writer.reduce();
    const Bytes bytes = std::move(writer).finish();
    const pickle::Pickle pickle = pickle::parse(bytes);
    return is_tensor_call(pickle.root);
  };
  for (const char* name : {"_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor", "_rebuild_parameter",
                           "_rebuild_sparse_tensor"}) {
    EXPECT_TRUE(is_tensor("torch._utils", name)) << name;
  }
  EXPECT_FALSE(is_tensor("torch._utils", "_import_dotted_name"));
  EXPECT_FALSE(is_tensor("os", "_rebuild_tensor_v2"));
}

TEST(TorchArchiveReader, RefusesMoreElementsThanBytes) {
  const Call call = {.numel = 1, .sizes = {1ll << 30, 1ll << 30}, .strides = {0, 0}};
  const Bytes item = make_archive(call.pickled(), Bytes(4));
  expect_error(ErrorKind::kCorruptData, "more elements than its storage", [&] { open_item(item); });
}

TEST(TorchArchiveReader, BoundsThePickle) {
  const Bytes item = make_archive(Bytes(100'000), {});
  expect_error(ErrorKind::kCorruptData, "at most 65536", [&] { open_item(item); });
}

// An item whose elements are zeros that are nowhere stored.
class ZerosItem : public RandomAccessFile {
 public:
  ZerosItem(const TensorItemFrame& frame, Bytes tail) : frame_(frame), tail_(std::move(tail)) {}

  std::uint64_t size() const override { return tail_position() + tail_.size(); }
  void read_at(std::uint64_t offset, MutableByteSpan out) const override {
    ASSERT_LE(offset + out.size(), size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint64_t at = offset + i;
      out[i] = at < frame_.head.size() ? frame_.head[at] : at < tail_position() ? 0 : tail_[at - tail_position()];
    }
  }

 private:
  std::uint64_t tail_position() const { return frame_.head.size() + static_cast<std::uint64_t>(frame_.data_bytes); }

  const TensorItemFrame& frame_;
  Bytes tail_;
};

std::uint32_t crc32_of_zeros(std::int64_t count) {
  std::uint32_t sum = 0;
  std::int64_t done = 0;
  for (int bit = 62; bit >= 0; --bit) {
    sum = crc32_combine(sum, sum, done);
    done *= 2;
    if ((count >> bit & 1) == 0) continue;
    sum = crc32_of(Bytes(1), sum);
    ++done;
  }
  return sum;
}

TEST(TorchArchive, TakesTheZip64FormAtItsLimit) {
  EXPECT_EQ(crc32_of_zeros(1000), crc32_of(Bytes(1000)));
  constexpr std::int64_t kLimit = 0xFFFFFFFF;
  // The data before, at and after the limit; and headers behind them before and after it.
  for (std::int64_t numel : {kLimit - 2000, kLimit - 600, kLimit - 1, kLimit, kLimit + 1, kLimit + 21, 3 * kLimit}) {
    SCOPED_TRACE(numel);
    const TensorItemFrame frame = begin_tensor_item(c10::ScalarType::Byte, {numel});
    const std::uint32_t crc32 = crc32_of_zeros(numel);
    const ZerosItem file(frame, finish_tensor_item(frame, crc32));
    EXPECT_EQ(file.size(), static_cast<std::uint64_t>(frame.item_bytes));
    EXPECT_EQ(frame.head.size() % 64, 0u);
    const TensorItem item = open_tensor_item(file, 0, frame.item_bytes);
    EXPECT_EQ(item.sizes, Sizes{numel});
    EXPECT_EQ(item.data_bytes, numel);
    EXPECT_EQ(item.data_position, static_cast<std::int64_t>(frame.head.size()));
    EXPECT_EQ(item.crc32, crc32);
    EXPECT_TRUE(item.is_plain_contiguous());
  }
}

TEST(TorchArchive, LaysZip64OutAsPyTorchDoes) {
  const std::int64_t bytes = (1ll << 32) + 20;
  const TensorItemFrame frame = begin_tensor_item(c10::ScalarType::Byte, {bytes});
  const auto u16 = [](ByteSpan b, std::size_t at) { return b[at] | b[at + 1] << 8; };
  const auto u64 = [](ByteSpan b, std::size_t at) {
    std::int64_t value = 0;
    for (int i = 7; i >= 0; --i) value = value << 8 | b[at + static_cast<std::size_t>(i)];
    return value;
  };
  // The header's own sizes stay 0; the extra of sizes comes before "FB".
  const std::size_t name = find_text(frame.head, "archive/data/0");
  EXPECT_EQ(u64(frame.head, name - 12), 0);
  const std::size_t extra = name + 14;
  EXPECT_EQ(u16(frame.head, extra), 1);
  EXPECT_EQ(u16(frame.head, extra + 2), 16);
  EXPECT_EQ(u64(frame.head, extra + 4), bytes);
  EXPECT_EQ(u64(frame.head, extra + 12), bytes);
  EXPECT_EQ(as_text(ByteSpan(frame.head).subspan(extra + 20, 2)), "FB");

  // A descriptor of 24 bytes, then a member at a place that needs an extra too.
  const Bytes tail = finish_tensor_item(frame, 0x12345678);
  EXPECT_EQ(u64(tail, 8), bytes);
  EXPECT_EQ(u64(tail, 16), bytes);
  const std::size_t version = find_text(tail, "archive/version");
  EXPECT_EQ(version, 24u + 30);
  EXPECT_EQ(u16(tail, version + 15), 1);
  EXPECT_EQ(u16(tail, version + 17), 8);
  EXPECT_EQ(u64(tail, version + 19), static_cast<std::int64_t>(frame.head.size()) + bytes + 24);
  EXPECT_EQ(as_text(ByteSpan(tail).subspan(version + 27, 2)), "FB");
  EXPECT_EQ(as_text(ByteSpan(tail).subspan(tail.size() - 6, 4)), "\xff\xff\xff\xff");
}

}  // namespace
}  // namespace dcp
