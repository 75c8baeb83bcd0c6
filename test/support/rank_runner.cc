#include "test/support/rank_runner.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "test/support/gloo_group.h"
#include "torch_dcp/base/error.h"

namespace dcp::testing {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

int index_in(const std::vector<int>& ranks, int rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

c10::intrusive_ptr<c10d::Store> prefixed(const std::string& prefix, const c10::intrusive_ptr<c10d::Store>& store) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

}  // namespace

struct RankRunnerState {
  struct Rank {
    std::string note = "started";
    std::string error;
    bool ended = false;
  };

  explicit RankRunnerState(int world_size) : ranks(world_size) {}

  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::condition_variable ended_signal;
  std::vector<Rank> ranks;
};

struct RankContext::Groups {
  Group all;
  std::map<std::string, Group> by_name;
};

RankContext::RankContext(RankRunnerState& state, int rank, int size)
    : state_(state), rank_(rank), size_(size), groups_(std::make_unique<Groups>()) {}

RankContext::~RankContext() = default;

const c10::intrusive_ptr<c10d::Store>& RankContext::store() const { return state_.store; }

const Group& RankContext::group() {
  if (!groups_->all) groups_->all = make_gloo_group(prefixed("all", store()), rank_, size_);
  return groups_->all;
}

const Group& RankContext::sub_group(const std::vector<int>& ranks, const std::string& name) {
  const auto [place, is_new] = groups_->by_name.try_emplace(name);
  const int rank = index_in(ranks, rank_);
  if (is_new && rank >= 0) {
    place->second = make_gloo_group(prefixed("sub/" + name, store()), rank, static_cast<int>(ranks.size()));
  }
  return place->second;
}

Group RankContext::unconnected_group() const {
  return c10::make_intrusive<c10d::ProcessGroup>(prefixed("unconnected", store()), rank_, size_);
}

Group RankContext::unconnected_sub_group(const std::vector<int>& ranks, const std::string& name) const {
  const int rank = index_in(ranks, rank_);
  if (rank < 0) return {};
  return c10::make_intrusive<c10d::ProcessGroup>(prefixed("unconnected/" + name, store()), rank,
                                                 static_cast<int>(ranks.size()));
}

Communicator RankContext::communicator(CommunicatorOptions options) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) ranks.push_back(rank);
  return sub_communicator(ranks, "communicator of all", std::move(options));
}

Communicator RankContext::sub_communicator(const std::vector<int>& ranks, const std::string& name,
                                           CommunicatorOptions options) const {
  if (options.deadline == CommunicatorOptions().deadline) options.deadline = std::chrono::seconds(20);
  if (!options.store) options.store = prefixed("unconnected/" + name, store());
  options.group_factory = gloo_group_factory({.hostname = "127.0.0.1", .interface = ""});
  return Communicator::create(unconnected_sub_group(ranks, name), options);
}

void RankContext::note(const std::string& text) {
  const std::lock_guard<std::mutex> lock(state_.mutex);
  state_.ranks[rank_].note = text;
}

namespace {

std::string what_was_thrown() {
  try {
    throw;
  } catch (const Error& error) {
    return c10::str(error_kind_name(error.kind()), ": ", error.what_without_backtrace());
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

void run_rank(RankRunnerState& state, int rank, const std::function<void(RankContext&)>& body) {
  std::string error;
  try {
    RankContext context(state, rank, static_cast<int>(state.ranks.size()));
    body(context);
  } catch (...) {
    error = what_was_thrown();
  }
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.ranks[rank].error = std::move(error);
  state.ranks[rank].ended = true;
  state.ended_signal.notify_all();
}

[[noreturn]] void give_up(const RankRunnerState& state, std::chrono::milliseconds deadline) {
  std::fflush(stdout);
  std::fprintf(stderr, "run_ranks: not all ranks ended within %lld ms\n", static_cast<long long>(deadline.count()));
  for (std::size_t rank = 0; rank < state.ranks.size(); ++rank) {
    const RankRunnerState::Rank& one = state.ranks[rank];
    std::fprintf(stderr, "  rank %zu: %s; last note: %s%s%s\n", rank, one.ended ? "ended" : "HANGS", one.note.c_str(),
                 one.error.empty() ? "" : "; threw: ", one.error.c_str());
  }
  std::fflush(stderr);
  std::_Exit(1);
}

void throw_if_any_failed(const RankRunnerState& state) {
  std::string text;
  for (std::size_t rank = 0; rank < state.ranks.size(); ++rank) {
    const RankRunnerState::Rank& one = state.ranks[rank];
    if (!one.error.empty()) text += c10::str("\n  rank ", rank, " (last note: ", one.note, "): ", one.error);
  }
  if (!text.empty()) throw std::runtime_error("ranks failed:" + text);
}

}  // namespace

void run_ranks(int world_size, const std::function<void(RankContext&)>& body, RankRunnerOptions options) {
  RankRunnerState state(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&state, &body, rank] { run_rank(state, rank, body); });
  }
  {
    std::unique_lock<std::mutex> lock(state.mutex);
    const bool ended = state.ended_signal.wait_for(lock, options.deadline, [&] {
      return std::all_of(state.ranks.begin(), state.ranks.end(), [](const auto& rank) { return rank.ended; });
    });
    if (!ended) give_up(state, options.deadline);
  }
  for (std::thread& thread : threads) thread.join();
  throw_if_any_failed(state);
}

}  // namespace dcp::testing
