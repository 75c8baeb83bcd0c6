#pragma once

#include <cstddef>
#include <cstdint>

#include "torch_dcp/base/export.h"

namespace dcp {

/// Memory that other processes can map: those that are forked have it at once, others open `fd()`, which travels over
/// a Unix socket or as `/proc/PID/fd/N`.
///
/// It has no name in any file system, so that nothing is left behind by a process that is killed: the system frees it
/// with its last mapping and descriptor. Movable; the bytes stay where they are.
class DCP_API SharedMemory {
 public:
  /// Makes a block of zeros. Its pages are there afterwards, huge ones where the system has them, so that writing
  /// neither faults nor runs out of memory.
  ///
  /// \param byte_count  At least 1.
  /// \throws dcp::Error kInvalidArgument for 0 bytes, or more than a file can have; kIo if the system has no memory or
  ///         no descriptor left.
  explicit SharedMemory(std::size_t byte_count);

  /// Maps the block behind a descriptor of another process's block; takes a descriptor of its own.
  ///
  /// \throws dcp::Error kInvalidArgument for 0 bytes, or more than what is behind the descriptor has; kIo if it is not
  ///         open, cannot be mapped for reading and writing, or the system has no descriptor left.
  static SharedMemory open(int fd, std::size_t byte_count);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::uint8_t* data() const { return data_; }
  std::size_t size() const { return byte_count_; }
  /// Belongs to this object.
  int fd() const { return fd_; }

 private:
  SharedMemory(int fd, std::size_t byte_count);
  void map();
  void release() noexcept;

  std::uint8_t* data_ = nullptr;
  std::size_t byte_count_ = 0;
  int fd_ = -1;
};

}  // namespace dcp
