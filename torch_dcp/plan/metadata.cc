#include "torch_dcp/plan/metadata.h"

namespace dcp {

std::string to_string(const MetadataIndex& index) {
  return index.offset ? index.fqn + " at " + to_string(c10::IntArrayRef(*index.offset)) : index.fqn;
}

const Box* find_chunk(const Metadata& metadata, const MetadataIndex& index) {
  const StorageMetadata* entry = metadata.state_dict_metadata.find(index.fqn);
  const auto* tensor = entry == nullptr ? nullptr : std::get_if<TensorStorageMetadata>(entry);
  if (tensor == nullptr || !index.offset) return nullptr;
  const std::vector<Box>& chunks = tensor->chunks;
  if (index.index && *index.index >= 0 && static_cast<std::size_t>(*index.index) < chunks.size()) {
    const Box& hinted = chunks[static_cast<std::size_t>(*index.index)];
    if (hinted.offsets == *index.offset) return &hinted;
  }
  for (const Box& chunk : chunks) {
    if (chunk.offsets == *index.offset) return &chunk;
  }
  return nullptr;
}

std::string dtype_name(const TensorProperties& properties) {
  return dtype_name(NamedDtype{properties.dtype, properties.newer_dtype});
}

}  // namespace dcp
