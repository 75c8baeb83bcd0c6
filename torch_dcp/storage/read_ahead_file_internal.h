#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "torch_dcp/io/file_system.h"

namespace dcp {

/// A file for one reader who goes forward: once a few small reads have followed one another closely, what lies ahead is
/// read along, as a system call for each of many small items would take longer than their bytes. Reads ahead at most as
/// much as has been read in that manner before, and reads nothing ahead of anything else.
///
/// Thread safety: none, unlike other files.
class ReadAheadFile final : public RandomAccessFile {
 public:
  static constexpr std::size_t kSmallBytes = std::size_t{16} << 10;
  static constexpr std::size_t kMaxAheadBytes = std::size_t{256} << 10;

  explicit ReadAheadFile(std::shared_ptr<const RandomAccessFile> file) : file_(std::move(file)) {}

  const std::shared_ptr<const RandomAccessFile>& base() const { return file_; }
  std::uint64_t size() const override { return file_->size(); }
  void read_at(std::uint64_t offset, MutableByteSpan out) const override;

 private:
  /// What is skipped between two reads that follow one another.
  static constexpr std::uint64_t kMaxHoleBytes = 4096;

  std::shared_ptr<const RandomAccessFile> file_;
  mutable Bytes window_;
  mutable std::uint64_t window_begin_ = 0;
  mutable std::uint64_t expected_ = 0;  ///< where a read would follow the last one
  mutable std::size_t run_bytes_ = 0;   ///< read in one run so far
};

}  // namespace dcp
