#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/storage/verify.h"

// What the checks of all kinds of checkpoints have in common, and those checks. `files` is never null.

namespace dcp {

VerifyReport verify_dcp(const std::string& path, const VerifyOptions& options, std::shared_ptr<FileSystem> files);
VerifyReport verify_safetensors(const std::string& path, const VerifyOptions& options,
                                std::shared_ptr<FileSystem> files);
VerifyReport verify_torch_save(const std::string& path, const VerifyOptions& options,
                               std::shared_ptr<FileSystem> files);

/// Whether an error tells of the checkpoint, and not of whoever looks at it.
inline bool is_fault(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kIo:
    case ErrorKind::kComm:
    case ErrorKind::kDeadline:
    case ErrorKind::kCancelled:
      return false;
    default:
      return true;
  }
}

/// The bytes done of all threads.
class Progress {
 public:
  Progress(const VerifyOptions& options, std::int64_t total) : on_progress_(options.on_progress), total_(total) {}

  void add(std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_ = checked_add(done_, bytes).value_or(INT64_MAX);
    if (!on_progress_ || error_) return;
    try {
      on_progress_(done_, total_);
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

  /// Throws on what the callback threw, on whichever thread.
  void rethrow() {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const std::function<void(std::int64_t, std::int64_t)>& on_progress_;
  const std::int64_t total_;
  std::mutex mutex_;
  std::int64_t done_ = 0;
  std::exception_ptr error_;
};

/// The bytes of one item, so that they add up to its length however they are read.
class ItemProgress {
 public:
  ItemProgress(Progress& progress, std::int64_t length) : progress_(progress), left_(length) {}

  void add(std::int64_t bytes) {
    bytes = std::min(bytes, left_);
    left_ -= bytes;
    if (bytes > 0) progress_.add(bytes);
  }
  void finish() { add(left_); }

 private:
  Progress& progress_;
  std::int64_t left_;
};

/// Runs `call`; what it throws about the checkpoint becomes a fault of `file`. Returns whether it threw nothing.
///
/// \param progress  Of a call that tells it; may be null.
template <typename Call>
bool check_whole_file(VerifyReport& report, const std::string& file, const Call& call, Progress* progress = nullptr) {
  try {
    call();
    return true;
  } catch (const Error& error) {
    if (progress != nullptr) progress->rethrow();
    if (!is_fault(error.kind())) throw;
    report.faults.push_back({file, "", error.kind(), error.what_without_backtrace()});
    return false;
  }
}

}  // namespace dcp
