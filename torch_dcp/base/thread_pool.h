#pragma once

#include <functional>
#include <vector>

#include "torch_dcp/base/export.h"

namespace dcp {

/// Runs `task_count` calls `task(0)` ... `task(task_count - 1)` on up to
/// `thread_count` threads, the caller's among them, and returns when all have ended.
///
/// Once a task has thrown, no further task starts; the exception of the
/// lowest-numbered task that threw is rethrown here, never lost.
DCP_API void run_parallel(std::size_t thread_count, std::size_t task_count,
                          const std::function<void(std::size_t)>& task);

}  // namespace dcp
