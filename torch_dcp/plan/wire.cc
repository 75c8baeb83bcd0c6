#include "torch_dcp/plan/wire.h"

#include <string_view>
#include <unordered_map>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/limits.h"

namespace dcp {
namespace {

// Numbers take 7 bits a byte, and each string is written once: keys, dict keys and file names
// come again and again, and the coordinator receives all ranks' plans.

constexpr std::size_t kMaxNdim = ParseLimits().max_ndim;

class Encoder {
 public:
  explicit Encoder(ByteWriter& out) : out_(out) {}

  void u8(std::uint8_t value) { out_.u8(value); }

  void number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.u8(static_cast<std::uint8_t>(value | 0x80));
    out_.u8(static_cast<std::uint8_t>(value));
  }

  /// Small numbers of either sign take few bytes.
  void integer(std::int64_t value) {
    number((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
  }

  /// \param text  Must outlive the encoder.
  void text(std::string_view text) {
    const auto [it, is_new] = numbers_.try_emplace(text, numbers_.size() + 1);
    number(is_new ? 0 : it->second);
    if (!is_new) return;
    number(text.size());
    out_.raw(as_bytes(text));
  }

  void sizes(const Sizes& sizes) {
    number(sizes.size());
    for (std::int64_t size : sizes) integer(size);
  }

 private:
  ByteWriter& out_;
  std::unordered_map<std::string_view, std::size_t> numbers_;
};

class Decoder {
 public:
  explicit Decoder(ByteReader& in) : in_(in) {}

  std::uint8_t u8() { return in_.u8(); }

  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint8_t byte = in_.u8();
      DCP_CHECK(shift < 63 || byte <= 1, kCorruptData, "message has a number of more than 64 bits");
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    DCP_THROW(kCorruptData, "message has a number of more than 64 bits");
  }

  std::int64_t integer() {
    const std::uint64_t value = number();
    return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
  }

  /// A count of things that take a byte each at least.
  std::size_t count(std::string_view what) {
    const std::uint64_t value = number();
    DCP_CHECK(value <= in_.left(), kCorruptData, "message announces ", value, " ", what, ", ", in_.left(),
              " bytes are left");
    return static_cast<std::size_t>(value);
  }

  const std::string& text() {
    const std::uint64_t known = number();
    if (known != 0) {
      DCP_CHECK(known <= texts_.size(), kCorruptData, "message names string ", known, " of ", texts_.size());
      return texts_[known - 1];
    }
    texts_.emplace_back(as_text(in_.raw(count("characters"))));
    return texts_.back();
  }

  Sizes sizes() {
    const std::size_t ndim = count("dimensions");
    DCP_CHECK(ndim <= kMaxNdim, kCorruptData, "message has ", ndim, " dimensions");
    Sizes sizes(ndim);
    for (std::int64_t& size : sizes) size = integer();
    return sizes;
  }

  /// An enumerator below `end`.
  template <typename Enum>
  Enum enumerator(int end, std::string_view what) {
    const int value = in_.u8();
    DCP_CHECK(value < end, kCorruptData, "message has ", value, " for a ", what);
    return static_cast<Enum>(value);
  }

  bool boolean() { return in_.boolean(); }

 private:
  ByteReader& in_;
  std::vector<std::string> texts_;
};

void put(Encoder& out, const std::string& text) { out.text(text); }
void get(Decoder& in, std::string& text) { text = in.text(); }

template <typename T>
void put(Encoder& out, const std::optional<T>& value) {
  out.u8(value ? 1 : 0);
  if (value) put(out, *value);
}

template <typename T>
void get(Decoder& in, std::optional<T>& value) {
  value.reset();
  if (in.boolean()) get(in, value.emplace());
}

template <typename T>
void put(Encoder& out, const std::vector<T>& values) {
  out.number(values.size());
  for (const T& value : values) put(out, value);
}

template <typename T>
void get(Decoder& in, std::vector<T>& values) {
  values.clear();
  // Grows while reading: an entry may take much more room here than the byte it takes there.
  for (std::size_t left = in.count("entries"); left > 0; --left) get(in, values.emplace_back());
}

template <typename K, typename V, typename Hash>
void put(Encoder& out, const OrderedMap<K, V, Hash>& map) {
  out.number(map.size());
  for (const auto& [key, value] : map) {
    put(out, key);
    put(out, value);
  }
}

template <typename K, typename V, typename Hash>
void get(Decoder& in, OrderedMap<K, V, Hash>& map) {
  map = {};
  for (std::size_t left = in.count("entries"); left > 0; --left) {
    K key;
    V value;
    get(in, key);
    get(in, value);
    DCP_CHECK(map.insert(std::move(key), std::move(value)), kCorruptData, "message has a key twice");
  }
}

void put(Encoder& out, const Sizes& sizes) { out.sizes(sizes); }
void get(Decoder& in, Sizes& sizes) { sizes = in.sizes(); }
void put(Encoder& out, std::int64_t value) { out.integer(value); }
void get(Decoder& in, std::int64_t& value) { value = in.integer(); }

void put(Encoder& out, const PathItem& item) {
  out.u8(static_cast<std::uint8_t>(item.step));
  if (item.step == PathStep::kDictKey) {
    out.text(item.key);
  } else {
    out.integer(item.index);
  }
}

void get(Decoder& in, PathItem& item) {
  item.step = in.enumerator<PathStep>(3, "path step");
  if (item.step == PathStep::kDictKey) {
    item.key = in.text();
  } else {
    item.index = in.integer();
  }
}

void put(Encoder& out, const MetadataIndex& index) {
  out.text(index.fqn);
  put(out, index.offset);
  put(out, index.index);
}

void get(Decoder& in, MetadataIndex& index) {
  index.fqn = in.text();
  get(in, index.offset);
  get(in, index.index);
}

void put(Encoder& out, const Box& box) {
  out.sizes(box.offsets);
  out.sizes(box.sizes);
}

void get(Decoder& in, Box& box) {
  box.offsets = in.sizes();
  box.sizes = in.sizes();
}

void put(Encoder& out, const TensorProperties& properties) {
  out.u8(static_cast<std::uint8_t>(properties.dtype));
  out.u8(static_cast<std::uint8_t>(properties.newer_dtype));
  out.u8(properties.requires_grad ? 1 : 0);
  out.u8(static_cast<std::uint8_t>(properties.memory_format));
  out.u8(properties.pin_memory ? 1 : 0);
}

void get(Decoder& in, TensorProperties& properties) {
  properties.dtype = in.enumerator<c10::ScalarType>(static_cast<int>(c10::ScalarType::NumOptions), "dtype");
  properties.newer_dtype = in.enumerator<NewerDtype>(static_cast<int>(NewerDtype::kBComplex32) + 1, "newer dtype");
  properties.requires_grad = in.boolean();
  properties.memory_format = in.enumerator<MemoryFormat>(3, "memory format");
  properties.pin_memory = in.boolean();
}

void put(Encoder& out, const WriteItem& item) {
  out.u8(static_cast<std::uint8_t>(item.type));
  put(out, item.index);
  if (!item.is_tensor()) return;
  put(out, item.chunk);
  put(out, item.size);
  put(out, item.properties);
}

void get(Decoder& in, WriteItem& item) {
  item.type = in.enumerator<WriteItemType>(3, "write item type");
  get(in, item.index);
  if (!item.is_tensor()) return;
  get(in, item.chunk);
  get(in, item.size);
  get(in, item.properties);
}

void put(Encoder& out, const ReadItem& item) {
  out.u8(static_cast<std::uint8_t>(item.type));
  put(out, item.dest_index);
  put(out, item.dest_offsets);
  put(out, item.storage_index);
  put(out, item.storage_offsets);
  put(out, item.lengths);
}

void get(Decoder& in, ReadItem& item) {
  item.type = in.enumerator<ReadItemType>(2, "read item type");
  get(in, item.dest_index);
  get(in, item.dest_offsets);
  get(in, item.storage_index);
  get(in, item.storage_offsets);
  get(in, item.lengths);
}

void put(Encoder& out, const StorageMetadata& entry) {
  const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
  out.u8(tensor == nullptr ? 0 : 1);
  if (tensor == nullptr) return;
  put(out, tensor->properties);
  put(out, tensor->size);
  put(out, tensor->chunks);
}

void get(Decoder& in, StorageMetadata& entry) {
  if (!in.boolean()) {
    entry = BytesStorageMetadata{};
    return;
  }
  TensorStorageMetadata& tensor = entry.emplace<TensorStorageMetadata>();
  get(in, tensor.properties);
  get(in, tensor.size);
  get(in, tensor.chunks);
}

void put(Encoder& out, const StorageInfo& info) {
  out.text(info.relative_path);
  out.integer(info.offset);
  out.integer(info.length);
  put(out, info.transform_descriptors);
}

void get(Decoder& in, StorageInfo& info) {
  info.relative_path = in.text();
  info.offset = in.integer();
  info.length = in.integer();
  get(in, info.transform_descriptors);
}

void put(Encoder& out, const StorageMeta& meta) {
  put(out, meta.checkpoint_id);
  put(out, meta.save_id);
  put(out, meta.load_id);
}

void get(Decoder& in, StorageMeta& meta) {
  get(in, meta.checkpoint_id);
  get(in, meta.save_id);
  get(in, meta.load_id);
}

}  // namespace

void encode(ByteWriter& bytes, const SavePlan& plan) {
  Encoder out(bytes);
  put(out, plan.planner_data);
  put(out, plan.items);
  put(out, plan.storage_data);
}

void decode(ByteReader& bytes, SavePlan& plan) {
  Decoder in(bytes);
  get(in, plan.planner_data);
  get(in, plan.items);
  get(in, plan.storage_data);
}

void encode(ByteWriter& bytes, const LoadPlan& plan) {
  Encoder out(bytes);
  put(out, plan.items);
  put(out, plan.storage_data);
}

void decode(ByteReader& bytes, LoadPlan& plan) {
  Decoder in(bytes);
  get(in, plan.items);
  get(in, plan.storage_data);
}

void encode(ByteWriter& bytes, const WriteResult& result) {
  Encoder out(bytes);
  put(out, result.index);
  out.integer(result.size_in_bytes);
  put(out, result.storage);
  out.number(result.block_sums.size());
  for (const std::uint32_t sum : result.block_sums) out.number(sum);
}

void decode(ByteReader& bytes, WriteResult& result) {
  Decoder in(bytes);
  get(in, result.index);
  result.size_in_bytes = in.integer();
  get(in, result.storage);
  result.block_sums.resize(in.count("sums"));
  for (std::uint32_t& sum : result.block_sums) {
    const std::uint64_t value = in.number();
    DCP_CHECK(value <= UINT32_MAX, kCorruptData, "message has a sum of more than 32 bits");
    sum = static_cast<std::uint32_t>(value);
  }
}

void encode(ByteWriter& bytes, const Metadata& metadata) {
  Encoder out(bytes);
  put(out, metadata.state_dict_metadata);
  put(out, metadata.planner_data);
  put(out, metadata.storage_data);
  put(out, metadata.storage_meta);
  put(out, metadata.version);
}

void decode(ByteReader& bytes, Metadata& metadata) {
  Decoder in(bytes);
  get(in, metadata.state_dict_metadata);
  get(in, metadata.planner_data);
  get(in, metadata.storage_data);
  get(in, metadata.storage_meta);
  get(in, metadata.version);
}

}  // namespace dcp
