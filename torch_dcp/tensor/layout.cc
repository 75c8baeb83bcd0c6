#include "torch_dcp/tensor/layout.h"

#include <algorithm>

#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

using Runs = std::vector<IndexRun>;

std::int64_t total_length(const Runs& runs) {
  std::int64_t total = 0;
  for (const IndexRun& run : runs) total += run.length;
  return total;
}

/// Appends what `runs` hold at the positions `part`, counted through all of them.
void append_slice(Runs& out, const Runs& runs, IndexRun part) {
  std::int64_t run_begin = 0;
  for (const IndexRun& run : runs) {
    const std::int64_t begin = std::max(part.offset, run_begin);
    const std::int64_t end = std::min(part.offset + part.length, run_begin + run.length);
    if (begin < end) {
      const IndexRun piece{run.offset + begin - run_begin, end - begin};
      if (!out.empty() && out.back().offset + out.back().length == piece.offset) {
        out.back().length += piece.length;
      } else {
        out.push_back(piece);
      }
    }
    run_begin += run.length;
    if (run_begin >= part.offset + part.length) return;
  }
}

/// Cuts into `split_factor` parts first, of each of which every rank gets a chunk.
Runs cut(const Runs& runs, const Placement& placement, std::int64_t parts, std::int64_t index) {
  const std::int64_t size = total_length(runs);
  Runs out;
  for (std::int64_t split = 0; split < placement.split_factor; ++split) {
    const IndexRun outer = chunk_of(size, placement.split_factor, split);
    if (outer.length == 0) break;  // So are all that follow.
    const IndexRun inner = chunk_of(outer.length, parts, index);
    append_slice(out, runs, {outer.offset + inner.offset, inner.length});
  }
  return out;
}

void check_placement(const Placement& placement, std::size_t mesh_dim, c10::IntArrayRef global_sizes) {
  DCP_CHECK(placement.kind != PlacementKind::kPartial, kUnsupported, "placement ", to_string(placement),
            " of mesh dimension ", mesh_dim, ": the ranks hold summands, not parts of the tensor");
  if (!placement.is_shard()) return;
  DCP_CHECK(placement.dim >= 0 && placement.dim < static_cast<std::int64_t>(global_sizes.size()), kInvalidArgument,
            "placement ", to_string(placement), " of mesh dimension ", mesh_dim, ": a tensor of sizes ",
            to_string(global_sizes), " lacks this dimension");
  DCP_CHECK(placement.split_factor >= 1, kInvalidArgument, "placement ", to_string(placement), " of mesh dimension ",
            mesh_dim, ": the split factor must be at least 1");
}

void check_arguments(c10::IntArrayRef global_sizes, const DeviceMesh& mesh, const Placements& placements,
                     const Sizes& coordinate) {
  for (std::int64_t size : global_sizes) {
    DCP_CHECK(size >= 0, kInvalidArgument, "layout of a tensor of sizes ", to_string(global_sizes));
  }
  DCP_CHECK(placements.size() == mesh.ndim(), kInvalidArgument, placements.size(), " placements for a mesh of ",
            mesh.ndim(), " dimensions");
  DCP_CHECK(coordinate.size() == mesh.ndim(), kInvalidArgument, "coordinate ", to_string(coordinate),
            " in a mesh of shape ", to_string(mesh.shape()));
  for (std::size_t d = 0; d < mesh.ndim(); ++d) {
    DCP_CHECK(coordinate[d] >= 0 && coordinate[d] < mesh.shape()[d], kInvalidArgument, "coordinate ",
              to_string(coordinate), " lies outside of a mesh of shape ", to_string(mesh.shape()));
    check_placement(placements[d], d, global_sizes);
  }
}

}  // namespace

IndexRun chunk_of(std::int64_t size, std::int64_t parts, std::int64_t index) {
  const std::int64_t full = size / parts + (size % parts != 0 ? 1 : 0);
  std::int64_t begin = 0;
  if (__builtin_mul_overflow(full, index, &begin) || begin > size) begin = size;
  return {begin, std::min(full, size - begin)};
}

LocalLayout compute_local_layout(c10::IntArrayRef global_sizes, const DeviceMesh& mesh, const Placements& placements,
                                 const Sizes& coordinate) {
  check_arguments(global_sizes, mesh, placements, coordinate);
  LocalLayout layout;
  layout.runs.reserve(global_sizes.size());
  for (std::int64_t size : global_sizes) layout.runs.push_back({{0, size}});
  for (std::size_t d = 0; d < mesh.ndim(); ++d) {
    if (!placements[d].is_shard()) continue;
    Runs& runs = layout.runs[placements[d].dim];
    runs = cut(runs, placements[d], mesh.shape()[d], coordinate[d]);
    if (runs.empty()) runs.push_back({global_sizes[placements[d].dim], 0});
  }
  for (const Runs& runs : layout.runs) {
    layout.local_sizes.push_back(total_length(runs));
    layout.offsets.push_back(runs.front().offset);
  }
  return layout;
}

std::vector<LayoutPiece> pieces_of(const LocalLayout& layout) {
  std::vector<LayoutPiece> pieces(1);
  for (const Runs& runs : layout.runs) {
    std::vector<LayoutPiece> longer;
    longer.reserve(pieces.size() * runs.size());
    for (const LayoutPiece& piece : pieces) {
      std::int64_t local_offset = 0;
      for (const IndexRun& run : runs) {
        LayoutPiece& next = longer.emplace_back(piece);
        next.box.offsets.push_back(run.offset);
        next.box.sizes.push_back(run.length);
        next.local_offsets.push_back(local_offset);
        local_offset += run.length;
      }
    }
    pieces = std::move(longer);
  }
  return pieces;
}

}  // namespace dcp
