#pragma once

#include <sys/types.h>

#include <cstdint>

#include "torch_dcp/base/bytes.h"

namespace dcp::bench {

/// A process that has memory and does nothing else: what another one can fetch from it is the most that any way
/// between two processes of a machine can bring.
class OtherProcess {
 public:
  /// \throws std::system_error if the system refuses.
  explicit OtherProcess(std::uint64_t bytes);
  ~OtherProcess();
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  /// Whether the system lets this process read the other's memory.
  bool can_be_read() const;
  /// Copies from `offset` on. \throws std::system_error if the system refuses.
  void read(std::uint64_t offset, MutableByteSpan out) const;

 private:
  void* memory_;
  std::uint64_t bytes_;
  pid_t id_ = -1;
  int end_ = -1;  // of a pipe: the process ends when it is closed
};

}  // namespace dcp::bench
