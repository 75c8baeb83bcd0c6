#include <algorithm>
#include <set>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/plan/validate.h"
#include "torch_dcp/storage/safetensors_parts_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {

void SafetensorsParts::add(const std::string& file, const SafetensorsHeader& header) {
  for (const SafetensorsTensor& tensor : header.tensors) add(file, header.data_position + tensor.position, tensor);
}

Metadata SafetensorsParts::finish(const std::string& heading) {
  Metadata metadata;
  for (auto& [name, parts] : tensors_) {
    drop_empty_parts(parts);
    if (parts.global_size) parts.tensor.size = *std::move(parts.global_size);
    std::vector<StorageInfo>& places = parts.places;
    std::optional<std::string> fault = find_chunk_fault(parts.tensor, /*must_cover=*/true);
    for (std::size_t i = 0; i < places.size() && !fault; ++i) {
      const MetadataIndex index{name, parts.tensor.chunks[i].offsets, static_cast<std::int64_t>(i)};
      if (!metadata.storage_data.insert(index, places[i])) fault = "its " + to_string(index) + " is there twice";
    }
    if (fault) {
      faults_.add(ErrorKind::kCorruptData, name, *fault + "; it lies in " + files_of(parts));
    } else {
      metadata.state_dict_metadata.insert(name, std::move(parts.tensor));
    }
  }
  faults_.throw_if_any(heading, DCP_WHERE);
  return metadata;
}

void SafetensorsParts::add(const std::string& file, std::int64_t position, const SafetensorsTensor& found) {
  Box box;
  box.sizes = found.sizes;
  box.offsets = found.saved_offsets ? *found.saved_offsets : Sizes(found.sizes.size(), 0);
  Parts* parts = tensors_.find(found.name);
  if (parts == nullptr) {
    parts = &tensors_[found.name];
    parts->tensor.properties.dtype = found.dtype;
    parts->tensor.size.assign(found.sizes.size(), 0);
  }
  if (const std::optional<std::string> fault = contradiction(*parts, found)) {
    faults_.add(ErrorKind::kCorruptData, found.name, file + " has " + *fault);
    return;
  }
  if (found.global_size) parts->global_size = found.global_size;
  // The header's check has seen that these sums fit.
  for (std::size_t d = 0; d < box.ndim(); ++d) {
    parts->tensor.size[d] = std::max(parts->tensor.size[d], box.offsets[d] + box.sizes[d]);
  }
  parts->tensor.chunks.push_back(box);
  parts->places.push_back({file, position, found.byte_count, {}});
}

std::optional<std::string> SafetensorsParts::contradiction(const Parts& parts, const SafetensorsTensor& found) {
  const TensorStorageMetadata& tensor = parts.tensor;
  if (tensor.properties.dtype != found.dtype || tensor.size.size() != found.sizes.size()) {
    return c10::str(dtype_name(found.dtype), " ", to_string(found.sizes), ", ", files_of(parts), " has ",
                    dtype_name(tensor.properties.dtype), " of ", tensor.size.size(), " dimensions");
  }
  if (parts.global_size && found.global_size && *parts.global_size != *found.global_size) {
    return c10::str("a part of size ", to_string(*found.global_size), ", ", files_of(parts), " of size ",
                    to_string(*parts.global_size));
  }
  return std::nullopt;
}

/// Empty shards have nothing to read, and the offset of one may be that of a part with elements. A tensor without any
/// keeps the first.
void SafetensorsParts::drop_empty_parts(Parts& parts) {
  std::vector<Box> chunks = parts.tensor.chunks.boxes();
  const bool has_elements = std::any_of(chunks.begin(), chunks.end(), [](const Box& box) { return !box.empty(); });
  std::size_t kept = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (has_elements ? chunks[i].empty() : kept == 1) continue;
    std::swap(chunks[kept], chunks[i]);
    std::swap(parts.places[kept++], parts.places[i]);
  }
  chunks.resize(kept);
  parts.tensor.chunks = ChunkList(chunks);
  parts.places.resize(kept);
}

std::string SafetensorsParts::files_of(const Parts& parts) {
  constexpr std::size_t kMaxNamed = 8;
  std::set<std::string> names;
  for (const StorageInfo& place : parts.places) names.insert(place.relative_path);
  std::string text;
  std::size_t count = 0;
  for (const std::string& name : names) {
    if (++count > kMaxNamed) return c10::str(text, " and ", names.size() - kMaxNamed, " others");
    text += (count == 1 ? "" : ", ") + name;
  }
  return text;
}

}  // namespace dcp
