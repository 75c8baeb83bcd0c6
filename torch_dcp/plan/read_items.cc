#include "torch_dcp/plan/read_items.h"

#include <optional>

#include "torch_dcp/base/error.h"
#include "torch_dcp/plan/box_sweep_internal.h"

namespace dcp {
namespace {

void check_ndim(const std::string& fqn, const TensorStorageMetadata& stored, const std::vector<Box>& boxes,
                const char* what) {
  for (const Box& box : boxes) {
    DCP_CHECK(box.offsets.size() == stored.size.size() && box.sizes.size() == stored.size.size(), kInvalidArgument,
              "key '", fqn, "': ", what, " ", to_string(box), " has another number of dimensions than the stored size ",
              to_string(c10::IntArrayRef(stored.size)));
  }
}

Sizes difference(const Sizes& a, const Sizes& b) {
  Sizes result = a;
  for (std::size_t dim = 0; dim < b.size(); ++dim) result[dim] -= b[dim];
  return result;
}

MetadataIndex index_of(const std::string& fqn, const Box& box, std::size_t number) {
  return {fqn, box.offsets, static_cast<std::int64_t>(number)};
}

}  // namespace

std::vector<ReadItem> create_read_items(const std::string& fqn, const TensorStorageMetadata& stored,
                                        const std::vector<Box>& wanted) {
  const std::vector<Box> chunks = stored.chunks.boxes();
  check_ndim(fqn, stored, chunks, "stored chunk");
  check_ndim(fqn, stored, wanted, "wanted box");
  std::vector<ReadItem> items;
  const auto add_common = [&](std::size_t i, std::size_t j) {
    const Box& chunk = chunks[j];
    const std::optional<Box> common = intersect(wanted[i], chunk);
    if (!common) return;
    items.push_back({ReadItemType::kTensor, index_of(fqn, wanted[i], i), difference(common->offsets, wanted[i].offsets),
                     index_of(fqn, chunk, j), difference(common->offsets, chunk.offsets), common->sizes});
  };
  if (chunks.size() == 1) {  // Most tensors: nothing is to be searched for.
    for (std::size_t i = 0; i < wanted.size(); ++i) add_common(i, 0);
    return items;
  }
  const OverlapFinder finder(chunks);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    for (const std::size_t j : finder.overlaps(wanted[i])) add_common(i, j);
  }
  return items;
}

}  // namespace dcp
