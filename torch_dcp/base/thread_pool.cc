#include "torch_dcp/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

namespace dcp {

void run_parallel(std::size_t thread_count, std::size_t task_count, const std::function<void(std::size_t)>& task) {
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> has_failed = false;
  std::vector<std::exception_ptr> errors(task_count);
  const auto work = [&] {
    while (!has_failed.load()) {
      const std::size_t number = next.fetch_add(1);
      if (number >= task_count) return;
      try {
        task(number);
      } catch (...) {
        errors[number] = std::current_exception();
        has_failed.store(true);
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    const std::size_t wanted = std::min(thread_count, task_count);
    for (std::size_t i = 1; i < wanted; ++i) threads.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace dcp
