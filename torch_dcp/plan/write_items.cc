#include "torch_dcp/plan/write_items.h"

#include <unordered_map>

#include "torch_dcp/base/error.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/tensor/local_chunks.h"
#include "torch_dcp/tensor/quantized.h"

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
    // What cannot be stored is refused before anything is written.
    if (is_quantized_dtype(dtype)) {
      DCP_CHECK(!is_distributed(tensor), kUnsupported, "a distributed quantized tensor (", dtype_name(dtype),
                ") cannot be saved");
      quantizer_of(chunk.view);  // throws for one without a form
    }
    storage_name(dtype);
    items.push_back({tensor_item(fqn, leaf, tensor, chunk.box, dtype), std::move(chunk.view)});
  }
  return items;
}

/// Refuses what cannot lie inside an object, before anything is written.
///
/// \param place  Of `value` in the object, such as `[0]['a']`.
void check_object(const Value& value, const std::string& place, int depth) {
  constexpr int kMaxDepth = 450;  // The writer's own bound is 500 values in each other.
  DCP_CHECK(depth < kMaxDepth, kUnsupported, "values nested deeper than ", kMaxDepth);
  const auto check_all = [&](const auto& children) {
    std::size_t position = 0;
    for (const Value& child : children) check_object(child, c10::str(place, "[", position++, "]"), depth + 1);
  };
  switch (value.kind()) {
    case ValueKind::kList:
      return check_all(value.as_list());
    case ValueKind::kTuple:
      return check_all(value.as_tuple());
    case ValueKind::kDict:
      for (const auto& [key, child] : value.as_dict()) {
        check_object(child, c10::str(place, "['", to_string(key), "']"), depth + 1);
      }
      return;
    case ValueKind::kDTensor:
    case ValueKind::kShardedTensor:
    case ValueKind::kStateful:
    case ValueKind::kOpaque:
      DCP_THROW(kUnsupported, "a ", value_kind_name(value.kind()), " at ", place, " cannot lie inside an object");
    default:
      return;
  }
}

}  // namespace

std::vector<WriteItemAndView> create_write_items(const std::string& fqn, const Value& leaf) {
  DCP_CHECK(leaf.kind() != ValueKind::kStateful, kType, "key '", fqn,
            "': a Stateful must be replaced by its state dict before it is saved");
  if (leaf.is_tensor_like() || leaf.is_container()) {
    try {
      if (leaf.is_tensor_like()) return tensor_items(fqn, leaf);
      check_object(leaf, "", 0);
    } catch (const Error& error) {
      throw Error(error.kind(), "key '" + fqn + "': " + error.what_without_backtrace(), error.where());
    }
  }
  WriteItem item;
  item.index.fqn = fqn;
  return {{std::move(item), at::Tensor()}};
}

}  // namespace dcp
