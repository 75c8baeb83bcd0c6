#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/checkpoint/value_digest_internal.h"
#include "torch_dcp/plan/plan_cache.h"
#include "torch_dcp/storage/filesystem_writer.h"

namespace dcp::test {
namespace {

SaveOptions checked() {
  SaveOptions options;
  options.check_replicas = true;
  return options;
}

TEST(ReplicaCheck, ValuesThatDifferNameKeysAndGroupsOfRanks) {
  const auto files = make_memory_file_system();
  ErrorsByRank errors(5);
  run_ranks(5, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    const int rank = ranks.rank();
    const auto state_of = [&](bool is_sound) {
      at::Tensor weight = counted({3, 7});
      if (!is_sound && (rank == 1 || rank == 4)) weight[2][6] += 1;
      const at::Tensor shard = counted({10}) + (is_sound || rank != 3 ? 0 : 1);
      return StateDict{{"model", Dict{{"w", weight}, {"same", counted({4})}}},
                       {"cut", split(shard, ranks)},
                       {"epoch", is_sound ? 0 : rank % 2},
                       {"of rank " + std::to_string(rank), rank}};
    };
    place.save_with(state_of(true), "c", checked());
    const auto before = contents_of(*files, "c");
    errors.run(rank, [&] { place.save_with(state_of(false), "c", checked()); });
    EXPECT_EQ(contents_of(*files, "c"), before);
  });
  errors.expect({0}, {"2 faults", "'model.w at [0, 0]': ranks 0, 2-3 have ", "; ranks 1, 4 have ",
                      "'epoch': ranks 0, 2, 4 have ", "; ranks 1, 3 have "});
  EXPECT_EQ(errors.kind(), ErrorKind::kInvalidArgument);
  EXPECT_EQ(errors.text().find("model.same"), std::string::npos);
  EXPECT_EQ(errors.text().find("cut"), std::string::npos) << "each row has one holder";
}

TEST(ReplicaCheck, ShardsAreComparedWithinTheirGroupAndPositionsCount) {
  ErrorsByRank errors(4);
  const auto files = make_memory_file_system();
  run_ranks(4, [&](RankContext& ranks) {
    const auto mesh = DeviceMesh::make({2, 2}, ranks.rank());
    DTensor tensor = DTensor::distribute(counted({8, 3}), mesh, {Placement::replicate(), Placement::shard(0)});
    const Place place = place_of(ranks, files);
    place.save_with(
        {{"w", tensor},
         {"rows of few", DTensor::distribute(counted({1, 2}), mesh, {Placement::replicate(), Placement::shard(0)})}},
        "c", checked());
    // The same numbers in another order.
    if (ranks.rank() == 3) tensor.local().copy_(tensor.local().flip({0}).clone());
    errors.run(ranks.rank(), [&] { place.save_with({{"w", tensor}}, "c", checked()); });
  });
  errors.expect({0}, {"1 fault", "'w at [4, 0]': rank 1 has ", "; rank 3 has "});
}

TEST(ReplicaCheck, WithoutItTheLowestOrOneRanksValueIsSaved) {
  const auto files = make_memory_file_system();
  run_ranks(2, [&](RankContext& ranks) { place_of(ranks, files).save({{"n", ranks.rank()}}, "c"); });
  EXPECT_EQ(Place{files}.rebuild("c").at("n").as_int(), 0);
}

TEST(ReplicaCheck, NothingIsRevokedBeforeTheCheck) {
  const auto files = make_memory_file_system();
  ErrorsByRank errors(2);
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    place.save({{"n", 1}}, "c");
    FileSystemWriterOptions storage;
    storage.overwrite_form = OverwriteForm::kRevokeFirst;
    errors.run(ranks.rank(), [&] { place.save_with({{"n", ranks.rank()}}, "c", checked(), storage); });
  });
  errors.expect({0}, {"'n'"});
  EXPECT_EQ(Place{files}.rebuild("c").at("n").as_int(), 1);
}

TEST(ReplicaCheck, AFailureToReadAValueIsTheRanks) {
  ErrorsByRank errors(3);
  const auto files = make_memory_file_system();
  run_ranks(3, [&](RankContext& ranks) {
    StateDict state = {{"w", counted({2})}};
    if (ranks.rank() == 2) state["w"] = at::Tensor();
    errors.run(ranks.rank(), [&] { place_of(ranks, files).save_with(state, "c", checked()); });
  });
  errors.expect({2}, {"'w'"});
}

TEST(ReplicaCheck, WorksTogetherWithAPlanCacheAndAlone) {
  const auto files = make_memory_file_system();
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    SaveOptions options = checked();
    options.plan_cache = std::make_shared<SavePlanCache>();
    for (int round = 0; round < 3; ++round) {
      place.save_with({{"w", counted({5}) + round}, {"n", round}}, "c", options);
      EXPECT_EQ(options.plan_cache->last_use().sent_plan, round == 0);
    }
  });
  EXPECT_EQ(Place{files}.rebuild("c").at("n").as_int(), 2);
  Place{files}.save_with({{"n", 3}}, "c", checked());
  EXPECT_EQ(Place{files}.rebuild("c").at("n").as_int(), 3);
}

// The digests.

TEST(ValueDigest, EveryBitOfATensorCounts) {
  for (const std::int64_t numel : {1, 3, 4, 5, 31, 32, 33, 1000}) {
    at::Tensor tensor = at::arange(numel, at::kByte);
    std::set<std::uint64_t> digests = {digest_of(tensor)};
    for (std::int64_t i = 0; i < numel; ++i) {
      for (const int bit : {1, 128}) {
        tensor[i].bitwise_xor_(bit);
        EXPECT_TRUE(digests.insert(digest_of(tensor)).second) << numel << ": " << i;
        tensor[i].bitwise_xor_(bit);
      }
    }
    EXPECT_EQ(digest_of(tensor), digest_of(tensor.clone()));
  }
}

/// Words 32 bytes apart follow each other in one lane: no two bits of theirs may undo each other.
TEST(ValueDigest, TwoBitsOfNeighbouringWordsCount) {
  at::Tensor tensor = at::arange(64, at::kByte);
  auto* const bytes = tensor.mutable_data_ptr<std::uint8_t>();
  std::set<std::uint64_t> digests = {digest_of(tensor)};
  const auto flip = [&](int word, int bit) { bytes[8 * word + bit / 8] ^= static_cast<std::uint8_t>(1 << (bit % 8)); };
  for (int first = 0; first < 64; ++first) {
    for (int second = 0; second < 64; ++second) {
      flip(1, first);
      flip(5, second);
      EXPECT_TRUE(digests.insert(digest_of(tensor)).second) << first << ", " << second;
      flip(1, first);
      flip(5, second);
    }
  }
}

TEST(ValueDigest, LayoutInMemoryDoesNotCount) {
  const at::Tensor large = at::arange(6'000'000, at::kFloat).view({2000, 3000});
  EXPECT_EQ(digest_of(large), digest_of(large.t().contiguous().t()));
  EXPECT_EQ(digest_of(large), digest_of(at::stack({large, large}, 2).select(2, 0)));
  EXPECT_NE(digest_of(large), digest_of(large.t()));
  const at::Tensor odd = at::arange(3 * 5'000'001, at::kByte).view({5'000'001, 3});
  EXPECT_EQ(digest_of(odd), digest_of(odd.t().contiguous().t()));
  EXPECT_EQ(digest_of(at::conj(at::full({2}, c10::complex<float>(1, 2)))),
            digest_of(at::full({2}, c10::complex<float>(1, -2))));
}

TEST(ValueDigest, DtypesSizesAndQuantizersCount) {
  const at::Tensor zeros = at::zeros({4});
  const at::Tensor quantized = at::quantize_per_tensor(zeros, 0.5, 1, at::kQInt8);
  const std::vector<at::Tensor> tensors = {zeros,
                                           at::zeros({2, 2}),
                                           at::zeros({4, 1}),
                                           at::zeros({4}, at::kInt),
                                           -zeros,
                                           at::zeros({5}),
                                           at::zeros({0}),
                                           at::zeros({}),
                                           quantized,
                                           at::quantize_per_tensor(zeros, 0.25, 1, at::kQInt8),
                                           at::full({4}, std::nan(""))};
  std::set<std::uint64_t> digests;
  for (const at::Tensor& tensor : tensors) digests.insert(digest_of(tensor));
  EXPECT_EQ(digests.size(), tensors.size());
  EXPECT_EQ(digest_of(at::full({4}, std::nan(""))), digest_of(at::full({4}, std::nan(""))));
  EXPECT_EQ(digest_of(quantized), digest_of(quantized.clone()));
}

TEST(ValueDigest, KindsKeysOrderAndNestingOfValuesCount) {
  const std::vector<Value> values = {Value(),
                                     false,
                                     true,
                                     0,
                                     1,
                                     0.0,
                                     -0.0,
                                     "",
                                     "a",
                                     std::string("a\0", 2),
                                     Bytes{},
                                     Bytes{'a'},
                                     List{},
                                     Tuple{},
                                     Dict{},
                                     List{1, 2},
                                     Tuple{1, 2},
                                     List{2, 1},
                                     List{List{1}, 2},
                                     List{List{1, 2}},
                                     List{"ab", "c"},
                                     List{"a", "bc"},
                                     Dict{{"a", 1}},
                                     Dict{{std::int64_t{1}, 1}},
                                     Dict{{"1", 1}},
                                     Dict{{"a", 1}, {"b", 2}},
                                     Dict{{"b", 2}, {"a", 1}},
                                     at::ones({2}),
                                     List{at::ones({2})}};
  std::set<std::uint64_t> digests;
  for (const Value& value : values) digests.insert(digest_of(value));
  EXPECT_EQ(digests.size(), values.size());
  expect_error(ErrorKind::kUnsupported, "DTensor", [] {
    digest_of(Value(List{DTensor(at::ones({2}), DeviceMesh::make({1}, 0), {Placement::replicate()}, {2})}));
  });
}

}  // namespace
}  // namespace dcp::test
