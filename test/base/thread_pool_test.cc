#include "torch_dcp/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>

namespace dcp {
namespace {

TEST(RunParallelTest, RunsEveryTaskOnce) {
  for (const std::size_t threads : {0, 1, 4}) {
    std::vector<std::atomic<int>> counts(100);
    run_parallel(threads, counts.size(), [&](std::size_t i) { ++counts[i]; });
    for (const auto& count : counts) EXPECT_EQ(count, 1);
  }
}

TEST(RunParallelTest, ATasksExceptionReachesTheCaller) {
  for (const std::size_t threads : {1, 3}) {
    try {
      run_parallel(threads, 10, [](std::size_t i) {
        if (i == 4) throw std::runtime_error("task 4");
      });
      FAIL() << "the exception was lost";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()), "task 4");
    }
  }
}

TEST(RunParallelTest, NoTasksIsFine) {
  run_parallel(2, 0, [](std::size_t) { FAIL(); });
}

}  // namespace
}  // namespace dcp
