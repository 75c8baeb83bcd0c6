#include "torch_dcp/tensor/layout.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "test/support/expect_error.h"
#include "test/tensor/layout_spelling.h"

namespace dcp {
namespace {

using nlohmann::json;
using test::expect_error;
using test::placement_of;
using test::sizes_of;

std::vector<std::int64_t> indices_of(const std::vector<IndexRun>& runs) {
  std::vector<std::int64_t> indices;
  for (const IndexRun& run : runs) {
    for (std::int64_t i = 0; i < run.length; ++i) indices.push_back(run.offset + i);
  }
  return indices;
}

bool are_runs_in_good_form(const std::vector<IndexRun>& runs) {
  if (runs.empty()) return false;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs.size() > 1 && runs[i].length == 0) return false;
    if (i > 0 && runs[i].offset <= runs[i - 1].offset + runs[i - 1].length) return false;
  }
  return true;
}

/// Whether the rank holds what PyTorch gives it.
void expect_rank(const json& rank, const LocalLayout& layout, const std::string& name) {
  EXPECT_EQ(layout.local_sizes, sizes_of(rank["local_shape"])) << name;
  EXPECT_EQ(layout.offsets, sizes_of(rank["global_offset"])) << name;
  ASSERT_EQ(layout.runs.size(), rank["indices"].size()) << name;
  for (std::size_t d = 0; d < layout.runs.size(); ++d) {
    EXPECT_EQ(indices_of(layout.runs[d]), rank["indices"][d].get<std::vector<std::int64_t>>()) << name << " dim " << d;
    EXPECT_TRUE(are_runs_in_good_form(layout.runs[d])) << name << " dim " << d;
  }
}

struct Seen {
  std::size_t case_count = 0;
  std::size_t many_runs_count = 0;  ///< of ranks and dimensions
};

/// Compares all ranks of all cases of a file with what PyTorch gives them.
Seen expect_layouts_of(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path << " cannot be opened";
  const json all = json::parse(file);
  Seen seen;
  for (const json& entry : all["cases"]) {
    ++seen.case_count;
    Placements placements;
    for (const json& spelled : entry["placements"]) placements.push_back(placement_of(spelled.get<std::string>()));
    const Sizes shape = sizes_of(entry["shape"]);
    const auto mesh = DeviceMesh::make(sizes_of(entry["mesh"]), 0);
    EXPECT_EQ(static_cast<std::int64_t>(entry["ranks"].size()), mesh->size());
    for (std::int64_t rank = 0; rank < mesh->size(); ++rank) {
      const LocalLayout layout = compute_local_layout(shape, *mesh, placements, *mesh->coordinate_of(rank));
      const std::string name = "shape " + entry["shape"].dump() + " mesh " + entry["mesh"].dump() + " placements " +
                               entry["placements"].dump() + " rank " + std::to_string(rank);
      expect_rank(entry["ranks"][rank], layout, name);
      for (const auto& runs : layout.runs) seen.many_runs_count += runs.size() > 1;
    }
  }
  return seen;
}

TEST(LocalLayout, IsThatOfPyTorchForPlainAndPairedShards) {
  const Seen seen = expect_layouts_of("test/tensor/data/layouts.json");
  EXPECT_EQ(seen.case_count, 1500u);
  EXPECT_EQ(seen.many_runs_count, 0u);
}

TEST(LocalLayout, IsThatOfPyTorchForAnyStridedShards) {
  const Seen seen = expect_layouts_of("test/tensor/data/strided_layouts.json");
  EXPECT_EQ(seen.case_count, 500u);
  EXPECT_GT(seen.many_runs_count, 500u) << "too few ranks with several runs to tell";
}

TEST(LocalLayout, CutsAsTorchChunkDoes) {
  EXPECT_EQ(chunk_of(6, 4, 0), (IndexRun{0, 2}));
  EXPECT_EQ(chunk_of(6, 4, 2), (IndexRun{4, 2}));
  EXPECT_EQ(chunk_of(6, 4, 3), (IndexRun{6, 0}));
  EXPECT_EQ(chunk_of(9, 4, 2), (IndexRun{6, 3}));
  EXPECT_EQ(chunk_of(9, 4, 3), (IndexRun{9, 0}));
  EXPECT_EQ(chunk_of(7, 2, 1), (IndexRun{4, 3}));
  EXPECT_EQ(chunk_of(0, 3, 1), (IndexRun{0, 0}));
  EXPECT_EQ(chunk_of(1, 3, 2), (IndexRun{1, 0}));
  const std::int64_t max = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(chunk_of(max, 2, 1), (IndexRun{max / 2 + 1, max / 2}));
  EXPECT_EQ(chunk_of(max, 2, max), (IndexRun{max, 0}));
}

TEST(LocalLayout, AppliesPlacementsFromTheFirstToTheLast) {
  const auto mesh = DeviceMesh::make({2, 2}, 0);
  std::vector<std::int64_t> rows;
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const auto layout =
        compute_local_layout({10, 2}, *mesh, {Placement::shard(0), Placement::shard(0)}, *mesh->coordinate_of(rank));
    rows.push_back(layout.local_sizes[0]);
  }
  EXPECT_EQ(rows, (std::vector<std::int64_t>{3, 2, 3, 2}));
}

TEST(LocalLayout, GivesAnEmptyPartTheEndOfTheDimension) {
  const auto mesh = DeviceMesh::make({4}, 0);
  const auto layout = compute_local_layout({6, 2}, *mesh, {Placement::shard(0)}, {3});
  EXPECT_EQ(layout.local_sizes, (Sizes{0, 2}));
  EXPECT_EQ(layout.offsets, (Sizes{6, 0}));
  const auto pieces = pieces_of(layout);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].box, (Box{{6, 0}, {0, 2}}));
}

TEST(LocalLayout, BoundsTheWorkOfAHugeSplitFactor) {
  const auto mesh = DeviceMesh::make({2}, 0);
  const auto huge = std::int64_t{1} << 60;
  const auto layout = compute_local_layout({5}, *mesh, {Placement::strided_shard(0, huge)}, {0});
  EXPECT_EQ(layout.runs[0], (std::vector<IndexRun>{{0, 5}}));
  EXPECT_EQ(compute_local_layout({5}, *mesh, {Placement::strided_shard(0, huge)}, {1}).local_sizes, (Sizes{0}));
}

TEST(LocalLayout, CutsSeveralRunsPerDimensionIntoTheirProduct) {
  const auto mesh = DeviceMesh::make({2, 2}, 0);
  const auto layout =
      compute_local_layout({8, 4}, *mesh, {Placement::strided_shard(0, 2), Placement::strided_shard(1, 2)}, {1, 0});
  const auto pieces = pieces_of(layout);
  ASSERT_EQ(pieces.size(), 4u);
  EXPECT_EQ(pieces[0].box, (Box{{2, 0}, {2, 1}}));
  EXPECT_EQ(pieces[1].box, (Box{{2, 2}, {2, 1}}));
  EXPECT_EQ(pieces[2].box, (Box{{6, 0}, {2, 1}}));
  EXPECT_EQ(pieces[3].box, (Box{{6, 2}, {2, 1}}));
  EXPECT_EQ(pieces[0].local_offsets, (Sizes{0, 0}));
  EXPECT_EQ(pieces[1].local_offsets, (Sizes{0, 1}));
  EXPECT_EQ(pieces[2].local_offsets, (Sizes{2, 0}));
  EXPECT_EQ(pieces[3].local_offsets, (Sizes{2, 1}));
}

TEST(LocalLayout, RefusesWhatDoesNotFit) {
  const auto mesh = DeviceMesh::make({2}, 0);
  const auto compute = [&](Sizes sizes, Placements placements, Sizes coordinate) {
    return [=] { compute_local_layout(sizes, *mesh, placements, coordinate); };
  };
  const auto kind = ErrorKind::kInvalidArgument;
  expect_error(kind, "2 placements for a mesh of 1 dimensions",
               compute({4}, {Placement::shard(0), Placement::shard(0)}, {0}));
  expect_error(kind, "Shard(1) of mesh dimension 0: a tensor of sizes [4]", compute({4}, {Placement::shard(1)}, {0}));
  expect_error(kind, "Shard(-1)", compute({4}, {Placement::shard(-1)}, {0}));
  expect_error(kind, "Shard(0)", compute({}, {Placement::shard(0)}, {0}));
  expect_error(kind, "split factor", compute({4}, {Placement::strided_shard(0, 0)}, {0}));
  expect_error(kind, "lies outside", compute({4}, {Placement::shard(0)}, {2}));
  expect_error(kind, "lies outside", compute({4}, {Placement::shard(0)}, {-1}));
  expect_error(kind, "coordinate [0, 0]", compute({4}, {Placement::shard(0)}, {0, 0}));
  expect_error(kind, "sizes [-4]", compute({-4}, {Placement::shard(0)}, {0}));
  expect_error(ErrorKind::kUnsupported, "Partial(sum)", compute({4}, {Placement::partial()}, {0}));
}

}  // namespace
}  // namespace dcp
