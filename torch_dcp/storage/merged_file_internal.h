#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "torch_dcp/io/file_system.h"

namespace dcp {

/// Bytes of a file that are going to be read.
struct ByteRange {
  std::int64_t begin = 0;
  std::int64_t bytes = 0;
  std::int64_t end() const { return begin + bytes; }
};

/// A file of which it is known what will be read: a system call for each of many small items would take longer than
/// their bytes. Ranges that lie close together are read in one call when the first of them is asked for, and kept while
/// they are asked for one after another; all else is asked of the file as it comes.
///
/// Thread safety: none, unlike other files.
class MergedFile final : public RandomAccessFile {
 public:
  /// What has more bytes is worth a call of its own, into where it belongs.
  static constexpr std::int64_t kSmallBytes = std::int64_t{16} << 10;
  /// What is read at once.
  static constexpr std::int64_t kMaxSpanBytes = std::int64_t{256} << 10;

  /// \param wanted          By their begin; may overlap.
  /// \param max_hole_bytes  Between two ranges that are read at once; 0: each is read by itself.
  MergedFile(std::shared_ptr<const RandomAccessFile> file, const std::vector<ByteRange>& wanted,
             std::int64_t max_hole_bytes);

  std::uint64_t size() const override { return file_->size(); }
  void read_at(std::uint64_t offset, MutableByteSpan out) const override;

 private:
  /// Whether the window has these bytes, once it has been filled with the span that they lie in, if they do.
  bool is_in_window(std::uint64_t offset, std::size_t byte_count) const;

  std::shared_ptr<const RandomAccessFile> file_;
  std::vector<ByteRange> spans_;  ///< of several ranges each, in order
  mutable Bytes window_;
  mutable std::uint64_t window_begin_ = 0;
};

}  // namespace dcp
