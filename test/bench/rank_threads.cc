#include "test/bench/rank_threads.h"

#include <barrier>
#include <chrono>
#include <cstddef>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "test/bench/timing.h"
#include "torch_dcp/comm/group_factory.h"

namespace dcp::bench {
namespace {

/// Longer than anything that is measured.
constexpr std::chrono::minutes kDeadline{10};

GroupFactory loopback() { return gloo_group_factory({.hostname = "127.0.0.1", .interface = {}}); }

}  // namespace

RankThreads::RankThreads(int count)
    : store_(c10::make_intrusive<c10d::HashStore>()), groups_(static_cast<std::size_t>(count)) {
  run([&](int rank) {
    groups_[static_cast<std::size_t>(rank)] =
        loopback()(c10::make_intrusive<c10d::PrefixStore>("ranks", store_), rank, count, kDeadline);
  });
}

double RankThreads::run(const std::function<void(int rank)>& work) const {
  std::vector<std::exception_ptr> errors(groups_.size());
  std::barrier begin(static_cast<std::ptrdiff_t>(groups_.size()) + 1);
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < groups_.size(); ++rank) {
    threads.emplace_back([&, rank] {
      begin.arrive_and_wait();
      try {
        work(static_cast<int>(rank));
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  begin.arrive_and_wait();
  const double seconds = seconds_of([&] {
    for (std::jthread& thread : threads) thread.join();
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return seconds;
}

CommunicatorOptions RankThreads::communicator_options() const {
  CommunicatorOptions options;
  options.deadline = kDeadline;
  options.store = store_;
  options.group_factory = loopback();
  return options;
}

std::shared_ptr<Communicator> RankThreads::communicator(int rank) const {
  return std::make_shared<Communicator>(Communicator::create(group(rank), communicator_options()));
}

}  // namespace dcp::bench
