#include "test/conformance/tensor_kinds_suite.h"

namespace dcp::test {
namespace {

std::vector<at::Tensor> parts_of(const TensorLike& tensor) {
  std::vector<at::Tensor> parts;
  if (const auto* plain = std::get_if<at::Tensor>(&tensor)) parts.push_back(*plain);
  if (const auto* distributed = std::get_if<DTensor>(&tensor)) {
    if (distributed->is_in_mesh()) parts.push_back(distributed->local());
  }
  if (const auto* sharded = std::get_if<ShardedTensor>(&tensor)) {
    for (const Shard& shard : sharded->local_shards()) parts.push_back(shard.tensor);
  }
  return parts;
}

TensorKindCase plain(std::string name, Sizes sizes) {
  return {std::move(name),
          1,
          std::move(sizes),
          [](const at::Tensor& whole, std::int64_t) { return whole.clone(); },
          parts_of,
          false,
          1};
}

/// `extra_ranks` are outside of the mesh.
TensorKindCase distributed(std::string name, Sizes sizes, Sizes mesh, Placements placements,
                           std::int64_t copy_count = 1, std::int64_t extra_ranks = 0) {
  return {std::move(name),
          c10::multiply_integers(mesh) + extra_ranks,
          std::move(sizes),
          [mesh, placements](const at::Tensor& whole, std::int64_t rank) {
            return DTensor::distribute(whole, DeviceMesh::make(mesh, rank), placements);
          },
          parts_of,
          true,
          copy_count};
}

/// `boxes[rank]` are the shards of that rank.
TensorKindCase sharded(std::string name, Sizes sizes, std::vector<std::vector<Box>> boxes) {
  return {std::move(name),
          static_cast<std::int64_t>(boxes.size()),
          sizes,
          [boxes](const at::Tensor& whole, std::int64_t rank) {
            std::vector<Shard> shards;
            for (const Box& box : boxes[static_cast<std::size_t>(rank)]) {
              at::Tensor part = whole;
              for (std::size_t d = 0; d < box.ndim(); ++d) {
                part = part.narrow(static_cast<std::int64_t>(d), box.offsets[d], box.sizes[d]);
              }
              shards.push_back({part.clone(), box.offsets});
            }
            return ShardedTensor(Sizes(whole.sizes()), whole.scalar_type(), std::move(shards));
          },
          parts_of,
          true,
          1};
}

const Placement kReplicate = Placement::replicate();

INSTANTIATE_TEST_SUITE_P(
    All, TensorKindsSuite,
    ::testing::Values(
        plain("plain", {3, 4}), plain("plain_scalar", {}), plain("plain_empty", {0, 3}),
        distributed("even_rows", {6, 2}, {3}, {Placement::shard(0)}),
        distributed("rows_that_run_out", {6, 2}, {4}, {Placement::shard(0)}),
        distributed("columns", {3, 5}, {2}, {Placement::shard(1)}),
        distributed("rows_and_columns", {5, 7}, {2, 3}, {Placement::shard(0), Placement::shard(1)}),
        distributed("rows_twice", {10, 2}, {2, 2}, {Placement::shard(0), Placement::shard(0)}),
        distributed("replicated", {3, 2}, {2}, {kReplicate}, 2),
        distributed("replicated_scalar", {}, {3}, {kReplicate}, 3),
        distributed("replicated_rows", {5, 2}, {2, 2}, {kReplicate, Placement::shard(0)}, 2),
        distributed("strided_rows", {11, 2}, {2, 2}, {Placement::strided_shard(0, 2), Placement::shard(0)}),
        distributed("strided_alone", {11, 2}, {2}, {Placement::strided_shard(0, 3)}),
        distributed("strided_both_ways", {8, 9}, {2, 2},
                    {Placement::strided_shard(0, 2), Placement::strided_shard(1, 3)}),
        distributed("with_ranks_outside", {6, 2}, {2}, {Placement::shard(0)}, 1, 2),
        distributed("empty_rows", {0, 2}, {2}, {Placement::shard(0)}),
        sharded("sharded_grid", {4, 6}, {{{{2, 3}, {2, 3}}, {{0, 0}, {2, 3}}}, {{{0, 3}, {2, 3}}, {{2, 0}, {2, 3}}}}),
        sharded("sharded_unevenly", {5}, {{{{0}, {1}}}, {}, {{{1}, {4}}}}),
        sharded("sharded_scalar", {}, {{Box()}, {}})),
    case_name);

}  // namespace
}  // namespace dcp::test
