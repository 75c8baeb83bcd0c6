#pragma once

#include <string>
#include <utility>

#include "torch_dcp/base/error.h"

namespace dcp {

/// Collects all that is wrong, so that one error can name it all.
class FaultList {
 public:
  /// \param what  What the message begins with, such as "cannot load ckpt".
  explicit FaultList(std::string what) : what_(std::move(what)) {}

  void add(ErrorKind kind, const std::string& fault) {
    if (count_ == 0) kind_ = kind;
    ++count_;
    faults_ += "\n  " + fault;
  }

  bool empty() const { return count_ == 0; }

  /// Throws a `dcp::Error` of the first fault's kind that lists every fault; does nothing without one.
  void throw_if_any() const {
    if (count_ > 0) throw Error(kind_, what_ + ":" + faults_, DCP_WHERE);
  }

 private:
  std::string what_;
  ErrorKind kind_ = ErrorKind::kInternal;
  std::size_t count_ = 0;
  std::string faults_;
};

}  // namespace dcp
