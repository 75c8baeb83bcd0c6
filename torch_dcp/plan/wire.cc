#include "torch_dcp/plan/wire.h"

#include <algorithm>

#include "torch_dcp/plan/wire_codec_internal.h"

namespace dcp {
namespace {

// Types of their own, so that templates find all `put` and `get` of this file, whatever their order.
class Encoder : public WireEncoder {
  using WireEncoder::WireEncoder;
};
class Decoder : public WireDecoder {
  using WireDecoder::WireDecoder;
};

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
  // An entry may take much more room here than the byte it takes there.
  constexpr std::size_t kMostGrowth = 16;
  std::size_t count = in.count("entries");
  values.reserve(std::min(count, in.left() * kMostGrowth / sizeof(T)));
  for (; count > 0; --count) get(in, values.emplace_back());
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

void put(Encoder& out, const ChunkList& chunks) {
  out.number(chunks.size());
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    out.sizes(chunks.offsets(i));
    out.sizes(chunks.sizes(i));
  }
}

void get(Decoder& in, ChunkList& chunks) {
  chunks.clear();
  for (std::size_t left = in.count("chunks"); left > 0; --left) {
    Box chunk;
    chunk.offsets = in.sizes();
    chunk.sizes = in.sizes();
    chunks.push_back(chunk);
  }
  chunks.shrink_to_fit();
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

void put(Encoder& out, const StorageTable& table) {
  out.number(table.size());
  // By row: the encoder remembers the strings where they are, and those of a made `MetadataIndex` are gone at once.
  for (const StorageTable::Row& row : table.rows()) {
    out.text(row.fqn);
    out.u8(row.has_offset ? 1 : 0);
    if (row.has_offset) out.sizes(row.chunk_offsets);
    put(out, row.index);
    out.text(row.relative_path);
    out.integer(row.offset);
    out.integer(row.length);
    put(out, row.transform_descriptors);
  }
}

void get(Decoder& in, StorageTable& table) {
  table = {};
  for (std::size_t left = in.count("entries"); left > 0; --left) {
    MetadataIndex index;
    StorageInfo info;
    get(in, index);
    get(in, info);
    DCP_CHECK(table.insert(index, info), kCorruptData, "message has a key twice");
  }
  table.shrink_to_fit();
}

void put(Encoder& out, const WriteResult& result) {
  put(out, result.index);
  out.integer(result.size_in_bytes);
  put(out, result.storage);
  out.number(result.block_sums.size());
  for (const std::uint32_t sum : result.block_sums) out.number(sum);
}

void get(Decoder& in, WriteResult& result) {
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

void encode(ByteWriter& bytes, const LoadPlan& plan) {
  Encoder out(bytes);
  put(out, plan.items);
  put(out, plan.storage_data);
  out.finish();
}

void decode(ByteReader& bytes, LoadPlan& plan) {
  Decoder in(bytes);
  get(in, plan.items);
  get(in, plan.storage_data);
}

void encode(ByteWriter& bytes, const WriteResult& result) {
  Encoder out(bytes);
  put(out, result);
  out.finish();
}

void decode(ByteReader& bytes, WriteResult& result) {
  Decoder in(bytes);
  get(in, result);
}

void encode(ByteWriter& bytes, const std::vector<WriteResult>& results) {
  Encoder out(bytes);
  put(out, results);
  out.finish();
}

void decode(ByteReader& bytes, std::vector<WriteResult>& results) {
  Decoder in(bytes);
  get(in, results);
}

void encode(ByteWriter& bytes, const Metadata& metadata) {
  Encoder out(bytes);
  put(out, metadata.state_dict_metadata);
  put(out, metadata.planner_data);
  put(out, metadata.storage_data);
  put(out, metadata.storage_meta);
  put(out, metadata.version);
  out.finish();
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
