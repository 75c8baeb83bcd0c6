#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/tensor/layout_spelling.h"

// The layouts for which PyTorch has said what each rank holds, saved and loaded. What a rank must have afterwards is
// taken from PyTorch's list of indices, not from this library's idea of the layout.

namespace dcp::test {
namespace {

using nlohmann::json;

/// One case of the files.
struct Layout {
  std::string key;
  Sizes shape;
  Sizes mesh;
  Placements placements;
  /// By rank and dimension of the tensor: the indices that the rank holds.
  std::vector<std::vector<at::Tensor>> indices;
  std::size_t from = 0;  ///< the case whose tensor is loaded into this one: the one before it of the same shape

  int world() const { return static_cast<int>(c10::multiply_integers(mesh)); }
  at::Tensor whole(std::size_t number) const {
    return counted(shape, at::kInt) + static_cast<std::int64_t>(10'000 * number);
  }
  at::Tensor part(const at::Tensor& whole, int rank) const {
    at::Tensor part = whole;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      part = part.index_select(static_cast<std::int64_t>(d), indices[static_cast<std::size_t>(rank)][d]);
    }
    return part;
  }
};

std::vector<Layout> read_layouts() {
  std::vector<Layout> layouts;
  for (const char* path : {"test/tensor/data/layouts.json", "test/tensor/data/strided_layouts.json"}) {
    std::ifstream file(path);
    EXPECT_TRUE(file) << path << " cannot be opened";
    const json all = json::parse(file);
    for (const json& entry : all["cases"]) {
      Layout layout;
      layout.key = std::to_string(layouts.size()) + ": " + entry["shape"].dump() + " on " + entry["mesh"].dump() + " " +
                   entry["placements"].dump();
      layout.shape = sizes_of(entry["shape"]);
      layout.mesh = sizes_of(entry["mesh"]);
      for (const json& spelled : entry["placements"]) layout.placements.push_back(placement_of(spelled));
      for (const json& rank : entry["ranks"]) {
        layout.indices.emplace_back();
        for (const json& of_dim : rank["indices"]) {
          layout.indices.back().push_back(at::tensor(of_dim.get<std::vector<std::int64_t>>(), at::kLong));
        }
      }
      layouts.push_back(std::move(layout));
    }
  }
  std::map<std::vector<std::int64_t>, std::vector<std::size_t>> by_shape;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    by_shape[{layouts[i].shape.begin(), layouts[i].shape.end()}].push_back(i);
  }
  for (const auto& [shape, numbers] : by_shape) {
    for (std::size_t i = 0; i < numbers.size(); ++i)
      layouts[numbers[i]].from = numbers[i > 0 ? i - 1 : numbers.size() - 1];
  }
  return layouts;
}

TEST(ReshardLayouts, WhatPyTorchSaysARankHoldsIsWhatItLoads) {
  const std::vector<Layout> layouts = read_layouts();
  ASSERT_EQ(layouts.size(), 2000u);
  std::set<int> worlds;
  for (const Layout& layout : layouts) worlds.insert(layout.world());
  const auto files = make_memory_file_system();
  const auto path_of = [](int world) { return "of " + std::to_string(world); };
  for (const int world : worlds) {
    run_ranks(world, [&](RankContext& ranks) {
      StateDict state;
      for (std::size_t i = 0; i < layouts.size(); ++i) {
        const Layout& layout = layouts[i];
        if (layout.world() != world) continue;
        state[layout.key] = DTensor(layout.part(layout.whole(i), ranks.rank()),
                                    DeviceMesh::make(layout.mesh, ranks.rank()), layout.placements, layout.shape);
      }
      place_of(ranks, files).save(state, path_of(world));
    });
  }
  // Whole, so that a place saved wrong is not put right by one loaded wrong.
  std::size_t whole_count = 0;
  for (const int world : worlds) {
    const StateDict found = Place{files}.rebuild(path_of(world));
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      if (layouts[i].world() != world) continue;
      EXPECT_TRUE(bit_equal(found.at(layouts[i].key), layouts[i].whole(i))) << layouts[i].key;
      ++whole_count;
    }
  }
  EXPECT_EQ(whole_count, layouts.size());
  for (const int world : worlds) {
    run_ranks(world, [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      for (const int saved_on : worlds) {
        StateDict state;
        StateDict wanted;
        for (const Layout& layout : layouts) {
          const Layout& from = layouts[layout.from];
          if (layout.world() != world || from.world() != saved_on) continue;
          const auto mesh = DeviceMesh::make(layout.mesh, ranks.rank());
          state[from.key] = pattern_on(mesh, layout.placements, layout.shape, at::kInt);
          wanted[from.key] =
              DTensor(layout.part(from.whole(layout.from), ranks.rank()), mesh, layout.placements, layout.shape);
        }
        place.load(state, path_of(saved_on));
        EXPECT_EQ(first_difference(state, wanted), "") << "rank " << ranks.rank() << " of " << world;
      }
    });
  }
}

}  // namespace
}  // namespace dcp::test
