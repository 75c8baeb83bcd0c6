// What moves between devices, with a device that is made up for the test.

#include <functional>

#include "test/transform/fake_device.h"
#include "test/transform/transform_support.h"
#include "torch_dcp/transform/broadcast.h"
#include "torch_dcp/transform/clone.h"
#include "torch_dcp/transform/copy.h"
#include "torch_dcp/transform/cpu_twin.h"
#include "torch_dcp/transform/distribute.h"
#include "torch_dcp/transform/gather.h"
#include "torch_dcp/transform/offload.h"

namespace dcp {
namespace {

using namespace test;  // NOLINT: the support's names
using dcp::testing::fake_device;

at::Tensor away(const at::Tensor& tensor) { return tensor.to(fake_device()); }

DTensor away(const DTensor& tensor) {
  return DTensor(away(tensor.local()), tensor.mesh_ptr(), tensor.placements(), tensor.global_sizes());
}

bool is_away(const at::Tensor& tensor) { return tensor.device() == fake_device(); }

TEST(Devices, OffloadMovesEveryKindOfTensorAndKeepsLayouts) {
  const auto mesh = DeviceMesh::make({2}, 1);
  const DTensor rows = DTensor::distribute(counted({5, 2}), mesh, {Placement::shard(0)});
  const ShardedTensor shards({4}, at::kFloat, {{away(counted({1})), {3}}, {away(counted({2})), {0}}});
  const at::Tensor strided = away(counted({3, 2}).t().contiguous()).t();
  const at::Tensor tied = away(counted({2}));
  const Dict state = {{"plain", away(counted({3}))}, {"strided", strided},
                      {"rows", away(rows)},          {"shards", shards},
                      {"l", List{Value(tied)}},      {"t", Tuple{Value(tied), Value(1)}},
                      {"cpu", counted({2})}};
  const Dict offloaded = offload(state);
  expect_same(offloaded, Dict{{"plain", counted({3})},
                              {"strided", counted({3, 2})},
                              {"rows", rows},
                              {"shards", ShardedTensor({4}, at::kFloat, {{counted({1}), {3}}, {counted({2}), {0}}})},
                              {"l", List{Value(counted({2}))}},
                              {"t", Tuple{Value(counted({2})), Value(1)}},
                              {"cpu", counted({2})}});
  EXPECT_TRUE(offloaded.at("plain").as_tensor().is_cpu());
  EXPECT_TRUE(offloaded.at("rows").as_dtensor().local().is_cpu());
  EXPECT_TRUE(offloaded.at("shards").as_sharded_tensor().local_shards()[1].tensor.is_cpu());
  EXPECT_EQ(offloaded.at("strided").as_tensor().strides(), strided.strides());
  EXPECT_TRUE(offloaded.at("l").as_list()[0].as_tensor().is_same(offloaded.at("t").as_tuple()[0].as_tensor()));
  EXPECT_TRUE(offloaded.at("cpu").as_tensor().is_same(state.at("cpu").as_tensor()));
  EXPECT_TRUE(is_away(state.at("plain").as_tensor()));
}

TEST(Devices, AGatheredWholeLiesWhereTheLocalPartDoesOrOnTheCpu) {
  run_ranks(3, [](RankContext& ranks) {
    Communicator comm = ranks.communicator();
    const auto mesh = std::make_shared<const DeviceMesh>(Sizes{2}, std::vector<std::int64_t>{0, 2}, ranks.rank());
    const bool is_in = ranks.rank() != 1;
    const auto rows = [&] {
      if (!is_in) return DTensor(at::Tensor(), mesh, {Placement::shard(0)}, {5});
      return away(DTensor::distribute(counted({5}), mesh, {Placement::shard(0)}));
    };
    std::vector<Shard> shards;
    if (ranks.rank() == 0) shards = {{away(counted({4})), {0}}};
    const Dict state = {{"rows", rows()},
                        {"everywhere", away(placed(counted({3}), {3}, {Placement::replicate()}, ranks.rank()))},
                        {"shards", ShardedTensor({4}, at::kFloat, shards)},
                        {"plain", away(counted({2}))}};
    const Dict expected = {
        {"rows", counted({5})}, {"everywhere", counted({3})}, {"shards", counted({4})}, {"plain", counted({2})}};
    const Dict there = gather(state, comm, {.bucket_bytes = 8});
    EXPECT_EQ(is_away(there.at("rows").as_tensor()), is_in);
    EXPECT_EQ(is_away(there.at("shards").as_tensor()), ranks.rank() == 0);
    EXPECT_TRUE(is_away(there.at("everywhere").as_tensor()));
    EXPECT_TRUE(there.at("plain").as_tensor().is_same(state.at("plain").as_tensor()));
    expect_same(there, expected);
    const Dict here = gather(state, comm, {.cpu_offload = true});
    for (const auto& [key, value] : here) EXPECT_TRUE(value.as_tensor().is_cpu()) << to_string(key);
    expect_same(here, expected);
  });
}

TEST(Devices, BroadcastAndDistributeFillTargetsWhereTheyLie) {
  run_ranks(2, [](RankContext& ranks) {
    Communicator comm = ranks.communicator();
    const Dict full = {
        {"live", away(counted({5}))}, {"rows", counted({4, 3})}, {"new", counted({3})}, {"meta", counted({4})}};
    const auto targets = [&] {
      return Dict{{"live", away(pattern({5}))},
                  {"rows", away(split_pattern({4, 3}, ranks, 1))},
                  {"new", at::Tensor()},
                  {"meta", meta_of(split_pattern({4}, ranks))}};
    };
    const Dict expected = {{"live", counted({5})},
                           {"rows", split(counted({4, 3}), ranks, 1)},
                           {"new", counted({3})},
                           {"meta", split(counted({4}), ranks)}};
    const auto check = [&](const Dict& local, bool all_here) {
      expect_same(local, expected);
      EXPECT_EQ(is_away(local.at("live").as_tensor()), !all_here);
      EXPECT_EQ(is_away(local.at("rows").as_dtensor().local()), !all_here);
      EXPECT_EQ(is_away(local.at("new").as_tensor()), !all_here);
      EXPECT_EQ(is_away(local.at("meta").as_dtensor().local()), !all_here);
    };
    const Dict source = comm.is_coordinator() ? full : Dict();
    for (bool cpu_offload : {false, true}) {
      Dict local = targets();
      broadcast_state(source, local, comm, {.cpu_offload = cpu_offload, .device = fake_device(), .bucket_bytes = 20});
      check(local, cpu_offload);
      local = targets();
      distribute_state(full, local, {.cpu_offload = cpu_offload, .device = fake_device()});
      check(local, cpu_offload);
    }
  });
}

TEST(Devices, BroadcastOffloadsWithoutAKeyThatLocalLacks) {
  run_ranks(2, [](RankContext& ranks) {
    Communicator comm = ranks.communicator();
    const Dict full = {{"known", counted({3})}, {"unknown", counted({4})}, {"again", counted({3})}};
    const at::Tensor tied = away(pattern({3}));
    const at::Tensor untouched = away(counted({2}));
    Dict local = {{"known", tied}, {"again", tied}, {"mine", untouched}};
    const Dict source = comm.is_coordinator() ? full : Dict();
    const BroadcastReport report = broadcast_state(source, local, comm, {.cpu_offload = true, .bucket_bytes = 8});
    EXPECT_EQ(report.dropped, std::vector<std::string>{"unknown"});
    EXPECT_TRUE(local.at("known").as_tensor().is_cpu());
    EXPECT_TRUE(local.at("again").as_tensor().is_same(local.at("known").as_tensor()));
    EXPECT_TRUE(local.at("mine").as_tensor().is_same(untouched)) << "what the full state lacks keeps its device";
    expect_same(local, Dict{{"known", counted({3})}, {"again", counted({3})}, {"mine", counted({2})}});
  });
}

TEST(Devices, AGatherThatOffloadsMovesATensorThatIsThereTwiceOnce) {
  Communicator comm = Communicator::single();
  const at::Tensor tied = away(counted({3}));
  const Dict here = gather({{"a", tied}, {"b", tied}}, comm, {.cpu_offload = true});
  EXPECT_TRUE(here.at("a").as_tensor().is_cpu());
  EXPECT_TRUE(here.at("a").as_tensor().is_same(here.at("b").as_tensor()));
}

TEST(Devices, ClonesStayWhereTheyAreAndTwinsComeToTheCpu) {
  const at::Tensor flat = away(counted({6}));
  const Dict state = {{"flat", flat}, {"part", flat.narrow(0, 2, 3)}};
  const Dict copy = clone(state);
  expect_same(copy, state);
  EXPECT_TRUE(is_away(copy.at("part").as_tensor()));
  EXPECT_TRUE(copy.at("part").as_tensor().is_alias_of(copy.at("flat").as_tensor()));
  EXPECT_FALSE(copy.at("flat").as_tensor().is_alias_of(flat));
  Dict twin = make_cpu_twin(state);
  copy_into(state, twin, {.non_blocking = true});
  EXPECT_TRUE(twin.at("flat").as_tensor().is_cpu());
  expect_same(twin, state);
}

}  // namespace
}  // namespace dcp
