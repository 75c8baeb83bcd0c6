#include "torch_dcp/plan/metadata.h"

namespace dcp {

std::string to_string(const MetadataIndex& index) {
  return index.offset ? index.fqn + " at " + to_string(c10::IntArrayRef(*index.offset)) : index.fqn;
}

std::optional<Box> find_chunk(const Metadata& metadata, const MetadataIndex& index) {
  const StorageMetadata* entry = metadata.state_dict_metadata.find(index.fqn);
  const auto* tensor = entry == nullptr ? nullptr : std::get_if<TensorStorageMetadata>(entry);
  if (tensor == nullptr || !index.offset) return std::nullopt;
  const ChunkList& chunks = tensor->chunks;
  const c10::IntArrayRef offset(*index.offset);
  if (index.index && *index.index >= 0 && static_cast<std::size_t>(*index.index) < chunks.size()) {
    const auto hinted = static_cast<std::size_t>(*index.index);
    if (chunks.offsets(hinted) == offset) return chunks[hinted];
  }
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (chunks.offsets(i) == offset) return chunks[i];
  }
  return std::nullopt;
}

std::string dtype_name(const TensorProperties& properties) {
  return dtype_name(NamedDtype{properties.dtype, properties.newer_dtype});
}

}  // namespace dcp
