#include "torch_dcp/tensor/device_mesh.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

std::int64_t checked_rank_count(const Sizes& shape) {
  for (std::int64_t size : shape) {
    DCP_CHECK(size >= 1, kInvalidArgument, "mesh of shape ", to_string(shape), ": every dimension needs a rank");
  }
  const auto count = checked_numel(shape);
  DCP_CHECK(count, kInvalidArgument, "mesh of shape ", to_string(shape), ": too many ranks");
  return *count;
}

}  // namespace

DeviceMesh::DeviceMesh(Sizes shape, std::vector<std::int64_t> ranks, std::int64_t my_rank,
                       std::vector<std::string> dim_names)
    : shape_(std::move(shape)), ranks_(std::move(ranks)), my_rank_(my_rank), dim_names_(std::move(dim_names)) {
  const std::int64_t count = checked_rank_count(shape_);
  DCP_CHECK(count == size(), kInvalidArgument, "mesh of shape ", to_string(shape_), " needs ", count, " ranks, got ",
            size());
  std::unordered_set<std::int64_t> seen;
  for (std::int64_t rank : ranks_) {
    DCP_CHECK(rank >= 0, kInvalidArgument, "mesh: rank ", rank, " is negative");
    DCP_CHECK(seen.insert(rank).second, kInvalidArgument, "mesh: rank ", rank, " is in it twice");
  }
  DCP_CHECK(dim_names_.empty() || dim_names_.size() == ndim(), kInvalidArgument, "mesh of ", ndim(), " dimensions has ",
            dim_names_.size(), " names");
  const std::unordered_set<std::string> names(dim_names_.begin(), dim_names_.end());
  DCP_CHECK(names.size() == dim_names_.size(), kInvalidArgument, "mesh: two dimensions have the same name");
  my_coordinate_ = coordinate_of(my_rank_);
}

std::shared_ptr<const DeviceMesh> DeviceMesh::make(Sizes shape, std::int64_t my_rank,
                                                   std::vector<std::string> dim_names) {
  std::vector<std::int64_t> ranks(checked_rank_count(shape));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_shared<const DeviceMesh>(std::move(shape), std::move(ranks), my_rank, std::move(dim_names));
}

std::optional<Sizes> DeviceMesh::coordinate_of(std::int64_t rank) const {
  const auto found = std::find(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end()) return std::nullopt;
  std::int64_t place = found - ranks_.begin();
  Sizes coordinate(ndim(), 0);
  for (std::size_t d = ndim(); d-- > 0;) {
    coordinate[d] = place % shape_[d];
    place /= shape_[d];
  }
  return coordinate;
}

}  // namespace dcp
