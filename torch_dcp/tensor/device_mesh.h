#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/fwd.h"
#include "torch_dcp/tensor/box.h"

namespace dcp {

/// Ranks in a grid, seen from one rank.
///
/// Immutable and shared by the tensors that lie on it; safe to read from many
/// threads. Making one talks to nobody.
class DCP_API DeviceMesh {
 public:
  /// \param shape      Ranks per mesh dimension, [d0, ..., dn-1], each at least 1.
  /// \param ranks      Rank at each place of the grid, row-major; distinct. Their product is that of `shape`.
  /// \param my_rank    The rank this process has among them; may be none of them.
  /// \param dim_names  One per mesh dimension, or empty.
  /// \throws dcp::Error kInvalidArgument.
  DeviceMesh(Sizes shape, std::vector<std::int64_t> ranks, std::int64_t my_rank,
             std::vector<std::string> dim_names = {});

  /// Ranks 0 to product(shape) - 1 in row-major order.
  static std::shared_ptr<const DeviceMesh> make(Sizes shape, std::int64_t my_rank,
                                                std::vector<std::string> dim_names = {});

  std::size_t ndim() const { return shape_.size(); }
  const Sizes& shape() const { return shape_; }
  std::int64_t size() const { return static_cast<std::int64_t>(ranks_.size()); }
  const std::vector<std::int64_t>& ranks() const { return ranks_; }
  const std::vector<std::string>& dim_names() const { return dim_names_; }
  std::int64_t my_rank() const { return my_rank_; }

  /// Place of `rank` in the grid, [ndim]; nothing if it is not in the mesh.
  std::optional<Sizes> coordinate_of(std::int64_t rank) const;
  /// Place of this process.
  const std::optional<Sizes>& my_coordinate() const { return my_coordinate_; }

  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
    return a.shape_ == b.shape_ && a.ranks_ == b.ranks_;
  }

 private:
  Sizes shape_;
  std::vector<std::int64_t> ranks_;
  std::int64_t my_rank_;
  std::vector<std::string> dim_names_;
  std::optional<Sizes> my_coordinate_;
};

}  // namespace dcp
