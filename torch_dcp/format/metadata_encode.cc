#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

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

/// The classes, functions and field names that occur in every item.
enum class Name : std::uint8_t {
  kTensorStorageMetadata,
  kBytesStorageMetadata,
  kChunkStorageMetadata,
  kTensorProperties,
  kMemoryFormat,
  kMetadataIndex,
  kStorageInfo,
  kSize,
  kPropertiesField,
  kSizeField,
  kChunksField,
  kOffsetsField,
  kSizesField,
  kFqnField,
  kIndexField,
  kOffsetField,
  kRelativePathField,
  kLengthField,
  kCount,
};

struct Spelling {
  std::string_view module;  ///< empty for a field
  std::string_view name;
};

constexpr std::array<Spelling, static_cast<std::size_t>(Name::kCount)> kSpellings = {{
    {names::kModule, names::kTensorStorageMetadata},
    {names::kModule, names::kBytesStorageMetadata},
    {names::kModule, names::kChunkStorageMetadata},
    {names::kModule, names::kTensorProperties},
    {names::kModule, names::kMemoryFormat},
    {names::kModule, names::kMetadataIndex},
    {names::kFileSystemModule, names::kStorageInfo},
    {"torch", "Size"},
    {"", "properties"},
    {"", "size"},
    {"", "chunks"},
    {"", "offsets"},
    {"", "sizes"},
    {"", "fqn"},
    {"", "index"},
    {"", "offset"},
    {"", "relative_path"},
    {"", "length"},
}};

class MetadataEncoder {
 public:
  Bytes run(const Metadata& metadata) &&;

 private:
  /// Writes a name, the second time as a reference by its number: the writer's own table of texts holds every key
  /// of the checkpoint, and looking names up in it would take most of the time.
  void name(Name name);
  void begin_new_object(std::string_view module, std::string_view cls);
  void begin_new_object(Name cls);
  /// Writes an object up to the first of its fields.
  template <typename... Class>
  void begin_object(Class... cls) {
    begin_new_object(cls...);
    writer_.empty_dict();
    writer_.mark();
  }
  void end_object();
  void field(Name field) { name(field); }
  void field(std::string_view name) { writer_.text(name); }

  template <typename Entries, typename WriteEntry>
  void dict(const Entries& entries, WriteEntry write_entry);

  /// Writes a key of the state dict where it is defined.
  void new_key(const std::string& key);
  /// Writes a key elsewhere, as a reference if it is defined.
  void key(const std::string& key);
  void index_keys();
  void storage_metadata(const StorageMetadata& stored);
  void tensor(const TensorStorageMetadata& tensor);
  void layout();
  void properties(const TensorProperties& properties);
  void chunk(c10::IntArrayRef offsets, c10::IntArrayRef extents);
  void chunks(const ChunkList& chunks);
  void sizes(c10::IntArrayRef sizes);
  /// \pre `of_key` was the last `key`.
  void path(const std::string& of_key, const Path& path);
  void index(const StorageTable::Row& row);
  void relative_path(const std::string& path);
  void storage_info(const StorageTable::Row& row);
  void storage_meta(const StorageMeta& meta);
  void optional_text(const std::optional<std::string>& text);
  /// Makes a tuple of the last `count` values, before which `mark_tuple(count)` was called.
  void end_tuple(std::size_t count);
  void mark_tuple(std::size_t count) {
    if (count > 3) writer_.mark();
  }

  pickle::Writer writer_{kProtocol};
  std::array<std::optional<std::uint32_t>, kSpellings.size()> numbers_;
  std::optional<std::uint32_t> layout_number_;
  std::vector<std::string_view> keys_;                               // of the state dict
  std::vector<std::uint32_t> key_numbers_;                           // of `keys_`, in its order
  std::size_t next_key_ = 0;                                         // where the next key is expected in `keys_`
  std::optional<std::uint32_t> last_key_number_;                     // of the key that `key` wrote last
  std::unordered_map<std::string_view, std::size_t> key_positions_;  // made when a key is not there
  std::string last_path_;                                            // items of one file follow one another
  std::uint32_t last_path_number_ = 0;
};

void MetadataEncoder::name(Name name) {
  auto& number = numbers_[static_cast<std::size_t>(name)];
  if (number) return writer_.get(*number);
  const Spelling& spelling = kSpellings[static_cast<std::size_t>(name)];
  if (spelling.module.empty()) {
    writer_.text(spelling.name);
  } else {
    writer_.global(spelling.module, spelling.name);
  }
  number = writer_.put();
}

void MetadataEncoder::begin_new_object(std::string_view module, std::string_view cls) {
  writer_.global(module, cls);
  writer_.empty_tuple();
  writer_.new_object();
}

void MetadataEncoder::begin_new_object(Name cls) {
  name(cls);
  writer_.empty_tuple();
  writer_.new_object();
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
  name(Name::kSize);
  mark_tuple(sizes.size());
  for (std::int64_t size : sizes) writer_.integer(size);
  end_tuple(sizes.size());
  writer_.tuple_of(1);
  writer_.reduce();
}

void MetadataEncoder::layout() {
  if (layout_number_) return writer_.get(*layout_number_);
  writer_.global("torch.serialization", "_get_layout");
  writer_.text("torch.strided");
  writer_.tuple_of(1);
  writer_.reduce();
  layout_number_ = writer_.put();
}

void MetadataEncoder::properties(const TensorProperties& properties) {
  begin_new_object(Name::kTensorProperties);
  mark_tuple(5);
  writer_.global("torch", dtype_name(properties));
  layout();
  writer_.boolean(properties.requires_grad);
  name(Name::kMemoryFormat);
  writer_.integer(static_cast<std::int64_t>(properties.memory_format));
  writer_.tuple_of(1);
  writer_.reduce();
  writer_.boolean(properties.pin_memory);
  end_tuple(5);
  writer_.build();
}

void MetadataEncoder::chunk(c10::IntArrayRef offsets, c10::IntArrayRef extents) {
  begin_object(Name::kChunkStorageMetadata);
  field(Name::kOffsetsField);
  sizes(offsets);
  field(Name::kSizesField);
  sizes(extents);
  end_object();
}

void MetadataEncoder::chunks(const ChunkList& chunks) {
  writer_.empty_list();
  if (chunks.size() == 1) {
    chunk(chunks.offsets(0), chunks.sizes(0));
    writer_.append();
    return;
  }
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (i % kBatch == 0) writer_.mark();
    chunk(chunks.offsets(i), chunks.sizes(i));
    if ((i + 1) % kBatch == 0 || i + 1 == chunks.size()) writer_.appends_from_mark();
  }
}

void MetadataEncoder::tensor(const TensorStorageMetadata& tensor) {
  begin_object(Name::kTensorStorageMetadata);
  field(Name::kPropertiesField);
  properties(tensor.properties);
  field(Name::kSizeField);
  sizes(tensor.size);
  field(Name::kChunksField);
  chunks(tensor.chunks);
  end_object();
}

void MetadataEncoder::new_key(const std::string& key) {
  keys_.push_back(key);
  key_numbers_.push_back(writer_.untracked_text(key));
}

void MetadataEncoder::key(const std::string& key) {
  // Nearly always the keys come in the same order again; looking each up would take most of the time.
  if (next_key_ == keys_.size()) next_key_ = 0;
  if (keys_.empty() || keys_[next_key_] != key) {
    if (key_positions_.empty()) index_keys();
    const auto found = key_positions_.find(key);
    if (found == key_positions_.end()) {
      last_key_number_.reset();
      return writer_.text(key);
    }
    next_key_ = found->second;
  }
  last_key_number_ = key_numbers_[next_key_++];
  writer_.get(*last_key_number_);
}

void MetadataEncoder::index_keys() {
  key_positions_.reserve(keys_.size());
  for (std::size_t i = 0; i < keys_.size(); ++i) key_positions_.emplace(keys_[i], i);
}

void MetadataEncoder::storage_metadata(const StorageMetadata& stored) {
  if (const auto* of_tensor = std::get_if<TensorStorageMetadata>(&stored)) return tensor(*of_tensor);
  begin_new_object(Name::kBytesStorageMetadata);
}

void MetadataEncoder::path(const std::string& of_key, const Path& path) {
  mark_tuple(path.size());
  for (const PathItem& item : path) {
    if (item.step == PathStep::kListIndex) {
      writer_.integer(item.index);
    } else if (item.step == PathStep::kDictKey && item.key == of_key && last_key_number_) {
      writer_.get(*last_key_number_);
    } else if (item.step == PathStep::kDictKey) {
      writer_.text(item.key);
    } else {
      writer_.text(to_string(item));
    }
  }
  end_tuple(path.size());
}

void MetadataEncoder::index(const StorageTable::Row& row) {
  begin_object(Name::kMetadataIndex);
  field(Name::kFqnField);
  key(row.fqn);
  field(Name::kIndexField);
  if (row.index) {
    writer_.integer(*row.index);
  } else {
    writer_.none();
  }
  if (row.has_offset) {
    field(Name::kOffsetField);
    sizes(row.chunk_offsets);
  }
  end_object();
}

void MetadataEncoder::relative_path(const std::string& path) {
  if (!last_path_.empty() && path == last_path_) return writer_.get(last_path_number_);
  writer_.text(path);
  last_path_ = path;
  last_path_number_ = writer_.put();
}

void MetadataEncoder::storage_info(const StorageTable::Row& row) {
  begin_object(Name::kStorageInfo);
  field(Name::kRelativePathField);
  relative_path(row.relative_path);
  field(Name::kOffsetField);
  writer_.integer(row.offset);
  field(Name::kLengthField);
  writer_.integer(row.length);
  if (!row.transform_descriptors.empty()) {
    field("transform_descriptors");
    writer_.empty_list();
    writer_.mark();
    for (const std::string& descriptor : row.transform_descriptors) writer_.text(descriptor);
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
    new_key(entry.first);
    storage_metadata(entry.second);
  });
  field("planner_data");
  if (metadata.planner_data) {
    dict(*metadata.planner_data, [this](const auto& entry) {
      key(entry.first);
      path(entry.first, entry.second);
    });
  } else {
    writer_.none();
  }
  field("storage_data");
  dict(metadata.storage_data.rows(), [this](const StorageTable::Row& row) {
    index(row);
    storage_info(row);
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
