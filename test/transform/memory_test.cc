// What collectives take of memory beside their results, counted at malloc over all ranks, which are threads.

#include <functional>

#include "test/support/memory_counter.h"
#include "test/transform/transform_support.h"
#include "torch_dcp/comm/rank_step.h"
#include "torch_dcp/transform/broadcast.h"
#include "torch_dcp/transform/gather.h"

namespace dcp {
namespace {

using namespace test;  // NOLINT: the support's names

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kBucket = 2 * kMiB;
/// What plans, steps and the groups' threads take.
constexpr std::int64_t kSlack = 1 * kMiB;
constexpr int kRanks = 3;

/// The peak of what all ranks do together in `work`.
std::int64_t peak_of(const std::function<std::function<void(Communicator&)>(RankContext&)>& prepare) {
  std::int64_t peak = 0;
  run_ranks(kRanks, [&](RankContext& ranks) {
    Communicator comm = ranks.communicator();
    const auto work = prepare(ranks);
    // Large messages once, so that the group's own buffers are there.
    all_gather_step(comm, "warm", [] { return std::string(1000, 'x'); });
    std::optional<testing::PeakMemory> memory;
    // Others wait in the step until this rank begins to count.
    if (ranks.rank() == 0) memory.emplace();
    status_step(comm, "begin", [] {});
    work(comm);
    status_step(comm, "end", [&] {
      if (memory) peak = memory->bytes();
    });
  });
  return peak;
}

TEST(TransformMemory, ABroadcastTakesABucketOnEachReceiver) {
  const at::Tensor whole = counted({16 * kMiB / 4});
  std::vector<Dict> locals(kRanks);
  const std::int64_t peak = peak_of([&](RankContext& ranks) -> std::function<void(Communicator&)> {
    const int rank = ranks.rank();
    locals[rank] = {{"plain", pattern({whole.numel()})},
                    {"rows", split_pattern({whole.numel() / 2, 2}, ranks)},
                    {"strided", pattern({2, whole.numel() / 2}).t()}};
    return [&, rank](Communicator& comm) {
      const at::Tensor matrix = whole.view({-1, 2});
      Dict full;
      if (comm.is_coordinator()) full = {{"plain", whole}, {"rows", matrix}, {"strided", matrix}};
      broadcast_state(full, locals[rank], comm, {.bucket_bytes = kBucket});
    };
  });
  // One on each of two receivers, two on the coordinator.
  EXPECT_LE(peak, 4 * kBucket + kSlack);
  expect_same(locals[1].at("plain"), whole);
  expect_same(locals[2].at("strided"), whole.view({-1, 2}));
}

TEST(TransformMemory, AGatherTakesItsWholesAndABucketOnEachRank) {
  const std::int64_t bytes = 12 * kMiB;
  const at::Tensor whole = counted({bytes / 4 / 3, 3});
  for (const std::vector<int>& chosen : std::vector<std::vector<int>>{{}, {0}, {1}}) {
    const std::int64_t peak = peak_of([&](RankContext& ranks) -> std::function<void(Communicator&)> {
      const Dict state = {{"a", split(whole, ranks)}, {"b", split(whole, ranks, 1)}};
      return [state, chosen](Communicator& comm) { gather(state, comm, {.ranks = chosen, .bucket_bytes = kBucket}); };
    });
    const auto keeping = static_cast<std::int64_t>(chosen.empty() ? kRanks : chosen.size());
    // The ranks bring one bucket together, which the coordinator has and makes one of; then two receive it.
    EXPECT_LE(peak, 2 * bytes * keeping + 4 * kBucket + kSlack) << chosen.size();
  }
}

TEST(TransformMemory, APartialTakesNoMoreThanABucketForAllSummands) {
  const std::int64_t bytes = 12 * kMiB;
  const std::int64_t peak = peak_of([&](RankContext& ranks) -> std::function<void(Communicator&)> {
    const DTensor sums(at::ones({bytes / 4}), mesh_of(ranks), {Placement::partial()}, {bytes / 4});
    return [sums](Communicator& comm) { gather({{"w", sums}}, comm, {.ranks = {0}, .bucket_bytes = kBucket}); };
  });
  EXPECT_LE(peak, bytes + 2 * kBucket + kSlack);
}

}  // namespace
}  // namespace dcp
