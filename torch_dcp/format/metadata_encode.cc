#include <cstddef>
#include <string>
#include <variant>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/metadata_names_internal.h"
#include "torch_dcp/format/metadata_pickle.h"
#include "torch_dcp/pickle/writer.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

namespace names = metadata_names;

/// Python's pickler writes dicts and lists in batches of this many entries.
constexpr std::size_t kBatch = 1000;
constexpr int kProtocol = 4;  // every Python since 3.4 reads it

class MetadataEncoder {
 public:
  Bytes run(const Metadata& metadata) &&;

 private:
  /// Writes an object of `cls` up to the first of its fields.
  void begin_object(std::string_view module, std::string_view cls);
  void end_object();
  void field(std::string_view name) { writer_.text(name); }

  template <typename Entries, typename WriteEntry>
  void dict(const Entries& entries, WriteEntry write_entry);

  void storage_metadata(const StorageMetadata& stored);
  void tensor(const TensorStorageMetadata& tensor);
  void properties(const TensorProperties& properties);
  void chunk(const Box& chunk);
  void chunks(const std::vector<Box>& chunks);
  void sizes(c10::IntArrayRef sizes);
  void path(const Path& path);
  void index(const MetadataIndex& index);
  void storage_info(const StorageInfo& info);
  void storage_meta(const StorageMeta& meta);
  void optional_text(const std::optional<std::string>& text);
  /// Makes a tuple of the last `count` values, before which `mark_tuple(count)` was called.
  void end_tuple(std::size_t count);
  void mark_tuple(std::size_t count) {
    if (count > 3) writer_.mark();
  }

  pickle::Writer writer_{kProtocol};
};

void MetadataEncoder::begin_object(std::string_view module, std::string_view cls) {
  writer_.global(module, cls);
  writer_.empty_tuple();
  writer_.new_object();
  writer_.empty_dict();
  writer_.mark();
}

void MetadataEncoder::end_object() {
  writer_.set_items_from_mark();
  writer_.build();
}

template <typename Entries, typename WriteEntry>
void MetadataEncoder::dict(const Entries& entries, WriteEntry write_entry) {
  writer_.empty_dict();
  std::size_t written = 0;
  for (const auto& entry : entries) {
    if (written % kBatch == 0) writer_.mark();
    write_entry(entry);
    ++written;
    if (written % kBatch == 0 || written == entries.size()) writer_.set_items_from_mark();
  }
}

void MetadataEncoder::end_tuple(std::size_t count) {
  if (count == 0) {
    writer_.empty_tuple();
  } else if (count <= 3) {
    writer_.tuple_of(static_cast<int>(count));
  } else {
    writer_.tuple_from_mark();
  }
}

void MetadataEncoder::sizes(c10::IntArrayRef sizes) {
  writer_.global("torch", "Size");
  mark_tuple(sizes.size());
  for (std::int64_t size : sizes) writer_.integer(size);
  end_tuple(sizes.size());
  writer_.tuple_of(1);
  writer_.reduce();
}

void MetadataEncoder::properties(const TensorProperties& properties) {
  writer_.global(names::kModule, names::kTensorProperties);
  writer_.empty_tuple();
  writer_.new_object();
  mark_tuple(5);
  writer_.global("torch", dtype_name(properties.dtype));
  writer_.global("torch.serialization", "_get_layout");
  writer_.text("torch.strided");
  writer_.tuple_of(1);
  writer_.reduce();
  writer_.boolean(properties.requires_grad);
  writer_.global(names::kModule, names::kMemoryFormat);
  writer_.integer(static_cast<std::int64_t>(properties.memory_format));
  writer_.tuple_of(1);
  writer_.reduce();
  writer_.boolean(properties.pin_memory);
  end_tuple(5);
  writer_.build();
}

void MetadataEncoder::chunk(const Box& chunk) {
  begin_object(names::kModule, names::kChunkStorageMetadata);
  field("offsets");
  sizes(chunk.offsets);
  field("sizes");
  sizes(chunk.sizes);
  end_object();
}

void MetadataEncoder::chunks(const std::vector<Box>& chunks) {
  writer_.empty_list();
  if (chunks.size() == 1) {
    chunk(chunks[0]);
    writer_.append();
    return;
  }
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (i % kBatch == 0) writer_.mark();
    chunk(chunks[i]);
    if ((i + 1) % kBatch == 0 || i + 1 == chunks.size()) writer_.appends_from_mark();
  }
}

void MetadataEncoder::tensor(const TensorStorageMetadata& tensor) {
  begin_object(names::kModule, names::kTensorStorageMetadata);
  field("properties");
  properties(tensor.properties);
  field("size");
  sizes(tensor.size);
  field("chunks");
  chunks(tensor.chunks);
  end_object();
}

void MetadataEncoder::storage_metadata(const StorageMetadata& stored) {
  if (const auto* of_tensor = std::get_if<TensorStorageMetadata>(&stored)) return tensor(*of_tensor);
  writer_.global(names::kModule, names::kBytesStorageMetadata);
  writer_.empty_tuple();
  writer_.new_object();
}

void MetadataEncoder::path(const Path& path) {
  mark_tuple(path.size());
  for (const PathItem& item : path) {
    if (item.step == PathStep::kListIndex) {
      writer_.integer(item.index);
    } else {
      writer_.text(to_string(item));
    }
  }
  end_tuple(path.size());
}

void MetadataEncoder::index(const MetadataIndex& index) {
  begin_object(names::kModule, names::kMetadataIndex);
  field("fqn");
  writer_.text(index.fqn);
  field("index");
  if (index.index) {
    writer_.integer(*index.index);
  } else {
    writer_.none();
  }
  if (index.offset) {
    field("offset");
    sizes(*index.offset);
  }
  end_object();
}

void MetadataEncoder::storage_info(const StorageInfo& info) {
  begin_object(names::kFileSystemModule, names::kStorageInfo);
  field("relative_path");
  writer_.text(info.relative_path);
  field("offset");
  writer_.integer(info.offset);
  field("length");
  writer_.integer(info.length);
  if (!info.transform_descriptors.empty()) {
    field("transform_descriptors");
    writer_.empty_list();
    writer_.mark();
    for (const std::string& descriptor : info.transform_descriptors) writer_.text(descriptor);
    writer_.appends_from_mark();
  }
  end_object();
}

void MetadataEncoder::optional_text(const std::optional<std::string>& text) {
  if (text) {
    writer_.text(*text);
  } else {
    writer_.none();
  }
}

void MetadataEncoder::storage_meta(const StorageMeta& meta) {
  begin_object(names::kModule, names::kStorageMeta);
  field("checkpoint_id");
  optional_text(meta.checkpoint_id);
  field("save_id");
  optional_text(meta.save_id);
  field("load_id");
  optional_text(meta.load_id);
  field("modules");
  writer_.empty_list();
  end_object();
}

Bytes MetadataEncoder::run(const Metadata& metadata) && {
  begin_object(names::kModule, names::kMetadata);
  field("state_dict_metadata");
  dict(metadata.state_dict_metadata, [this](const auto& entry) {
    writer_.text(entry.first);
    storage_metadata(entry.second);
  });
  field("planner_data");
  if (metadata.planner_data) {
    dict(*metadata.planner_data, [this](const auto& entry) {
      writer_.text(entry.first);
      path(entry.second);
    });
  } else {
    writer_.none();
  }
  field("storage_data");
  dict(metadata.storage_data, [this](const auto& entry) {
    index(entry.first);
    storage_info(entry.second);
  });
  field("storage_meta");
  if (metadata.storage_meta) {
    storage_meta(*metadata.storage_meta);
  } else {
    writer_.none();
  }
  field("version");
  optional_text(metadata.version);
  end_object();
  return std::move(writer_).finish();
}

}  // namespace

Bytes encode_metadata(const Metadata& metadata) { return MetadataEncoder().run(metadata); }

}  // namespace dcp
