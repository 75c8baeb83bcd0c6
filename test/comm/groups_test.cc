// Saves and loads over groups of all kinds: whose backend takes no CPU tensors, several of one process at once.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/expect_error.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/storage/filesystem_reader.h"

namespace dcp::test {
namespace {

using std::chrono::milliseconds;

/// As NCCL: a backend that takes tensors of a device and refuses those in main memory.
class DeviceOnlyBackend final : public c10d::Backend {
 public:
  using c10d::Backend::Backend;
  const std::string getBackendName() const override { return "device-only"; }

  using Works = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  Works broadcast(Tensors&, const c10d::BroadcastOptions&) override { return refuse(); }
  Works allreduce(Tensors&, const c10d::AllreduceOptions&) override { return refuse(); }
  Works allgather(std::vector<Tensors>&, Tensors&, const c10d::AllgatherOptions&) override { return refuse(); }
  Works gather(std::vector<Tensors>&, Tensors&, const c10d::GatherOptions&) override { return refuse(); }
  Works scatter(Tensors&, std::vector<Tensors>&, const c10d::ScatterOptions&) override { return refuse(); }
  Works send(Tensors&, int, int) override { return refuse(); }
  Works recv(Tensors&, int, int) override { return refuse(); }
  Works barrier(const c10d::BarrierOptions&) override { return refuse(); }

  int calls() const { return calls_; }

 private:
  Works refuse() {
    ++calls_;
    TORCH_CHECK(false, "Tensors must be CUDA and dense");
  }

  std::atomic<int> calls_{0};
};

CommunicatorOptions on_loopback(int coordinator = 0, const std::string& name = "default") {
  CommunicatorOptions options;
  options.coordinator = coordinator;
  options.name = name;
  options.deadline = std::chrono::seconds(20);
  options.group_factory = gloo_group_factory({.hostname = "127.0.0.1", .interface = ""});
  return options;
}

TEST(Groups, OneWhoseBackendRefusesCpuTensorsIsNeverUsed) {
  const auto files = make_memory_file_system();
  run_ranks(3, [&](RankContext& ranks) {
    const auto backend = c10::make_intrusive<DeviceOnlyBackend>(ranks.rank(), ranks.size());
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(
        c10::make_intrusive<c10d::PrefixStore>("training", ranks.store()), ranks.rank(), ranks.size());
    for (const auto device : {c10::DeviceType::CUDA, c10::DeviceType::CPU}) {
      group->setBackend(device, c10d::ProcessGroup::BackendType::CUSTOM, backend);
    }
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    // The double does what it should.
    std::vector<at::Tensor> tensors{at::zeros({1})};
    EXPECT_ANY_THROW(group->broadcast(tensors)->wait());
    EXPECT_EQ(backend->calls(), 1);

    // The store is the group's own.
    SaveOptions save_options{.process_group = group, .communicator_options = on_loopback(2), .check_replicas = true};
    LoadOptions load_options{.process_group = group, .communicator_options = on_loopback(2), .rollback = true};
    const StateDict state = {{"w", split(counted({7, 2}), ranks)}, {"same", counted({5})}, {"n", 4}};
    Place{files}.save_with(state, "c", save_options);
    StateDict loaded = {{"w", split_pattern({7, 2}, ranks)}, {"same", pattern({5})}, {"n", 0}};
    Place{files}.load(loaded, "c", load_options);
    EXPECT_EQ(first_difference(loaded, state), "");
    EXPECT_EQ(backend->calls(), 1);
  });
}

/// A group of `members` over a store that other groups use too; null for others.
c10::intrusive_ptr<c10d::ProcessGroup> group_of(const std::vector<int>& members, const RankContext& ranks) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] == ranks.rank()) {
      return c10::make_intrusive<c10d::ProcessGroup>(ranks.store(), static_cast<int>(i),
                                                     static_cast<int>(members.size()));
    }
  }
  return {};
}

struct Side {
  std::string name;
  std::vector<int> members;
  int coordinator;  // within the group
};

// Each process belongs to a row, a column and the whole, and saves with all three at once.
TEST(Groups, SeveralOfOneProcessSaveAtOnce) {
  const std::vector<Side> sides = {{"row 0", {0, 1}, 0},
                                   {"row 1", {2, 3}, 1},
                                   {"column 0", {2, 0}, 0},
                                   {"column 1", {1, 3}, 1},
                                   {"all", {3, 1, 0, 2}, 2}};
  constexpr int kRounds = 3;
  const auto files = make_memory_file_system();
  run_ranks(4,
            [&](RankContext& ranks) {
              std::vector<std::jthread> savers;
              for (std::size_t i = 0; i < sides.size(); ++i) {
                const auto group = group_of(sides[i].members, ranks);
                if (!group) continue;
                savers.emplace_back([&, i, group] {
                  const Side& side = sides[i];
                  const int rank = group->getRank();
                  const auto mesh = DeviceMesh::make({group->getSize()}, rank);
                  const CommunicatorOptions communicator = on_loopback(side.coordinator, side.name);
                  for (int round = 0; round < kRounds; ++round) {
                    const at::Tensor whole = counted({7}) + static_cast<double>(100 * i + round);
                    const DTensor mine = DTensor::distribute(whole, mesh, {Placement::shard(0)});
                    Place{files}.save_with({{"w", mine}, {"round", round}}, side.name,
                                           {.process_group = group, .communicator_options = communicator});
                    StateDict state = {{"w", pattern({7})}, {"round", -1}};
                    Place{files}.load(state, side.name, {.process_group = group, .communicator_options = communicator});
                    EXPECT_EQ(first_difference(state, StateDict{{"w", whole}, {"round", round}}), "") << side.name;
                  }
                });
              }
            },
            {.deadline = std::chrono::seconds(90)});
}

class FailingPlanner final : public DefaultSavePlanner {
 public:
  SavePlan create_local_plan() override { DCP_THROW(kUnsupported, "no plan today"); }
};

// A rank of a group is named by its number there, and other groups of the same processes hear nothing of it.
TEST(Groups, AFailureIsOfItsGroupAlone) {
  const auto files = make_memory_file_system();
  std::mutex mutex;
  std::vector<std::string> errors;
  run_ranks(4, [&](RankContext& ranks) {
    const Side row = ranks.rank() < 2 ? Side{"row 0", {0, 1}, 0} : Side{"row 1", {2, 3}, 1};
    const Side column = ranks.rank() % 2 == 0 ? Side{"column 0", {0, 2}, 0} : Side{"column 1", {1, 3}, 0};
    const auto save_with = [&](const Side& side) {
      const auto group = group_of(side.members, ranks);
      SaveOptions options{.process_group = group, .communicator_options = on_loopback(side.coordinator, side.name)};
      if (ranks.rank() == 3 && side.name == "column 1") options.planner = std::make_shared<FailingPlanner>();
      Place{files}.save_with({{"w", counted({4})}}, side.name, options);
    };
    std::jthread other([&] { save_with(row); });
    try {
      save_with(column);
    } catch (const CheckpointError& error) {
      const std::lock_guard<std::mutex> lock(mutex);
      errors.push_back(c10::str(ranks.rank(), ": ", error.failures().at(0).rank, " of ", error.failures().size()));
    }
  });
  std::sort(errors.begin(), errors.end());
  EXPECT_EQ(errors, (std::vector<std::string>{"1: 1 of 1", "3: 1 of 1"}));
  for (const char* name : {"row 0", "row 1", "column 0"}) EXPECT_TRUE(is_complete(name, files)) << name;
  EXPECT_FALSE(is_complete("column 1", files));
}

TEST(Groups, ADeadlineOfAStepThatIsNoneIsRefused) {
  run_ranks(2, [](RankContext& ranks) {
    SaveOptions options{.process_group = ranks.unconnected_group(), .communicator_options = on_loopback()};
    options.communicator_options.deadlines.by_step["comit"] = milliseconds(1000);
    expect_error(ErrorKind::kInvalidArgument, "comit", [&] { Place{}.save_with({}, "c", options); });
    options.communicator_options.deadlines.by_step = {{"commit", milliseconds(0)}};
    expect_error(ErrorKind::kInvalidArgument, "commit", [&] { Place{}.save_with({}, "c", options); });
  });
}

}  // namespace
}  // namespace dcp::test
