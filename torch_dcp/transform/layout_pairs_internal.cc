#include "torch_dcp/transform/layout_pairs_internal.h"

#include <ATen/ops/empty.h>

#include <optional>

#include "torch_dcp/tensor/local_chunks.h"
#include "torch_dcp/tensor/quantized.h"
#include "torch_dcp/transform/local_parts_internal.h"
#include "torch_dcp/transform/tensor_elements_internal.h"

namespace dcp {
namespace {

bool is_outside_of_mesh(const Value& value) {
  return value.kind() == ValueKind::kDTensor && !value.as_dtensor().is_in_mesh();
}

/// Such as "a DTensor [Shard(0), Replicate()] on the mesh [2, 3]".
std::string describe_layout(const Value& value) {
  const std::string kind = value_kind_name(value.kind());
  if (value.kind() != ValueKind::kDTensor) return "a " + kind;
  const DTensor& tensor = value.as_dtensor();
  std::string placements;
  for (const Placement& placement : tensor.placements()) {
    placements += (placements.empty() ? "" : ", ") + to_string(placement);
  }
  return "a " + kind + " [" + placements + "] on the mesh " + to_string(tensor.mesh().shape());
}

std::string describe_boxes(const std::vector<LocalChunk>& chunks) {
  std::string boxes;
  for (const LocalChunk& chunk : chunks) {
    if (!chunk.box.empty()) boxes += (boxes.empty() ? "" : ", ") + to_string(chunk.box);
  }
  return boxes.empty() ? "nothing" : boxes;
}

/// Why a value has no local chunks that could be cut; empty if it has.
std::string why_not_cut(const Value& value) {
  if (value.kind() == ValueKind::kDTensor && value.as_dtensor().is_partial()) {
    return "the parts of a Partial DTensor are no parts of a whole";
  }
  if (is_outside_of_mesh(value)) return "";
  for (const at::Tensor& part : local_parts(value)) {
    if (const std::string why = why_without_elements(part); !why.empty()) return why + " cannot be copied";
    if (is_quantized_dtype(part.scalar_type())) return "a quantized tensor cannot be copied into another layout";
  }
  return "";
}

at::Tensor part_in(const LocalChunk& chunk, const Box& box) {
  Sizes offsets = box.offsets;
  for (std::size_t d = 0; d < offsets.size(); ++d) offsets[d] -= chunk.box.offsets[d];
  return part_of(chunk.view, offsets, box.sizes);
}

}  // namespace

LayoutPairs pair_layouts(const Value& source, const Value& target) {
  LayoutPairs pairs;
  for (const Value* value : {&source, &target}) {
    pairs.fault = why_not_cut(*value);
    pairs.kind = ErrorKind::kUnsupported;
    if (!pairs.fault.empty()) return pairs;
  }
  const std::vector<LocalChunk> given = local_chunks(source.as_tensor_like());
  const std::vector<LocalChunk> wanted = local_chunks(target.as_tensor_like());
  std::int64_t missing = 0;
  for (const LocalChunk& into : wanted) {
    missing += into.box.numel();
    for (const LocalChunk& from : given) {
      const std::optional<Box> common = intersect(from.box, into.box);
      if (!common) continue;
      missing -= common->numel();  // Chunks of one tensor do not overlap.
      pairs.views.emplace_back(part_in(from, *common), part_in(into, *common));
    }
  }
  if (missing != 0) {
    pairs.views.clear();
    pairs.kind = ErrorKind::kKey;
    pairs.fault = c10::str("the source is ", describe_layout(source), " with ", describe_boxes(given),
                           " on this rank, the target ", describe_layout(target), " with ", describe_boxes(wanted),
                           ", and no elements are sent between ranks");
  } else if (pairs.views.empty() && !is_outside_of_mesh(source) && !is_outside_of_mesh(target)) {
    const auto none_of = [](const Value& value) {
      return at::empty({0}, at::TensorOptions(dtype_of(value.as_tensor_like())));
    };
    pairs.views.emplace_back(none_of(source), none_of(target));
  }
  return pairs;
}

}  // namespace dcp
