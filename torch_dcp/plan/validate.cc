#include "torch_dcp/plan/validate.h"

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/plan/validate_internal.h"

namespace dcp {
namespace {

std::string spell(const Sizes& sizes) { return to_string(c10::IntArrayRef(sizes)); }

/// A fault of one chunk by itself; nothing if it lies within `size`.
std::optional<std::string> find_box_fault(const Box& chunk, const Sizes& size) {
  if (chunk.offsets.size() != size.size() || chunk.sizes.size() != size.size()) {
    return "chunk " + to_string(chunk) + " has another number of dimensions than the size " + spell(size);
  }
  for (std::size_t dim = 0; dim < size.size(); ++dim) {
    if (chunk.offsets[dim] < 0) return "chunk " + to_string(chunk) + " has a negative offset";
    if (chunk.sizes[dim] < 0) return "chunk " + to_string(chunk) + " has a negative size";
    const auto end = checked_add(chunk.offsets[dim], chunk.sizes[dim]);
    if (!end || *end > size[dim]) return "chunk " + to_string(chunk) + " is out of bounds of the size " + spell(size);
  }
  return std::nullopt;
}

}  // namespace

ChunkCheck check_chunks(const TensorStorageMetadata& tensor, SweepCounters* counters) {
  ChunkCheck check;
  const auto numel = checked_numel(tensor.size);
  if (!numel) {
    check.fault = "size " + spell(tensor.size) + " is negative or has more elements than fit 64 bits";
    return check;
  }
  check.numel = *numel;
  const std::vector<Box> chunks = tensor.chunks.boxes();
  for (const Box& chunk : chunks) {
    check.fault = find_box_fault(chunk, tensor.size);
    if (check.fault) return check;
  }
  if (const auto overlapping = find_overlap(chunks, counters)) {
    check.fault = "chunks " + to_string(chunks[overlapping->first]) + " and " + to_string(chunks[overlapping->second]) +
                  " overlap";
    return check;
  }
  // Disjoint and within bounds: the sum cannot exceed numel.
  for (const Box& chunk : chunks) check.covered_numel += chunk.numel();
  return check;
}

std::optional<std::string> find_chunk_fault(const TensorStorageMetadata& tensor, bool must_cover) {
  const ChunkCheck check = check_chunks(tensor);
  if (check.fault || !must_cover || check.covers_all()) return check.fault;
  std::string fault = "chunks hold " + std::to_string(check.covered_numel) + " of " + std::to_string(check.numel) +
                      " elements of the size " + spell(tensor.size);
  if (const auto hole = find_uncovered(whole_box(tensor.size), tensor.chunks.boxes())) {
    fault += "; none holds " + to_string(*hole);
  }
  return fault;
}

void validate_global_plan(const Metadata& metadata, bool must_cover) {
  FaultList faults;
  for (const auto& [key, entry] : metadata.state_dict_metadata) {
    const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
    if (tensor == nullptr) continue;
    if (const auto fault = find_chunk_fault(*tensor, must_cover)) faults.add(ErrorKind::kInvalidArgument, key, *fault);
  }
  faults.throw_if_any("global plan is not valid", DCP_WHERE);
}

}  // namespace dcp
