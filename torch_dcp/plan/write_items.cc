#include "torch_dcp/plan/write_items.h"

#include <unordered_map>

#include "torch_dcp/base/error.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/tensor/local_chunks.h"

namespace dcp {
namespace {

WriteItem tensor_item(const std::string& fqn, const Value& leaf, const TensorLike& tensor, const Box& box,
                      ScalarType dtype) {
  WriteItem item;
  item.index = {fqn, box.offsets, std::nullopt};
  item.type = leaf.is_tensor() ? WriteItemType::kTensor : WriteItemType::kShard;
  item.chunk = box;
  item.size = global_sizes(tensor);
  item.properties.dtype = dtype;
  item.properties.requires_grad = requires_grad(tensor);
  return item;
}

/// Offset names an item, so that of chunks at one offset only one can be offered: the one
/// with elements, if any (chunks of a rank do not overlap).
std::vector<LocalChunk> one_per_offset(std::vector<LocalChunk> chunks) {
  if (chunks.size() < 2) return chunks;
  std::unordered_map<Sizes, std::size_t, SizesHash> places;
  std::vector<LocalChunk> kept;
  for (LocalChunk& chunk : chunks) {
    const auto [place, is_new] = places.try_emplace(chunk.box.offsets, kept.size());
    if (is_new) {
      kept.push_back(std::move(chunk));
    } else if (kept[place->second].box.empty()) {
      kept[place->second] = std::move(chunk);
    }
  }
  return kept;
}

std::vector<WriteItemAndView> tensor_items(const std::string& fqn, const Value& leaf) {
  const TensorLike tensor = leaf.as_tensor_like();
  std::vector<WriteItemAndView> items;
  for (LocalChunk& chunk : one_per_offset(local_chunks(tensor))) {
    const ScalarType dtype = chunk.view.scalar_type();
    storage_name(dtype);  // Throws for what cannot be stored, before anything is written.
    items.push_back({tensor_item(fqn, leaf, tensor, chunk.box, dtype), std::move(chunk.view)});
  }
  return items;
}

}  // namespace

std::vector<WriteItemAndView> create_write_items(const std::string& fqn, const Value& leaf) {
  DCP_CHECK(leaf.kind() != ValueKind::kStateful, kType, "key '", fqn,
            "': a Stateful must be replaced by its state dict before it is saved");
  if (leaf.is_tensor_like()) {
    try {
      return tensor_items(fqn, leaf);
    } catch (const Error& error) {
      throw Error(error.kind(), "key '" + fqn + "': " + error.what_without_backtrace(), error.where());
    }
  }
  WriteItem item;
  item.index.fqn = fqn;
  return {{std::move(item), at::Tensor()}};
}

}  // namespace dcp
