#include <algorithm>
#include <cstring>
#include <utility>

#include "torch_dcp/storage/merged_file_internal.h"

namespace dcp {

MergedFile::MergedFile(std::shared_ptr<const RandomAccessFile> file, const std::vector<ByteRange>& wanted,
                       std::int64_t max_hole_bytes)
    : file_(std::move(file)) {
  if (max_hole_bytes <= 0) return;
  ByteRange span;
  std::size_t count = 0;
  const auto keep = [&] {
    if (count > 1) spans_.push_back(span);
  };
  for (const ByteRange& range : wanted) {
    const bool goes_on = count > 0 && range.begin - span.end() <= max_hole_bytes &&
                         std::max(range.end(), span.end()) - span.begin <= kMaxSpanBytes;
    if (goes_on) {
      span.bytes = std::max(range.end(), span.end()) - span.begin;
      ++count;
      continue;
    }
    keep();
    span = range;
    count = 1;
  }
  keep();
}

bool MergedFile::is_in_window(std::uint64_t offset, std::size_t byte_count) const {
  const auto has = [&] {
    return offset >= window_begin_ && offset - window_begin_ <= window_.size() &&
           byte_count <= window_.size() - static_cast<std::size_t>(offset - window_begin_);
  };
  if (has()) return true;
  const auto behind = std::upper_bound(
      spans_.begin(), spans_.end(), offset,
      [](std::uint64_t place, const ByteRange& span) { return place < static_cast<std::uint64_t>(span.begin); });
  if (behind == spans_.begin()) return false;
  const ByteRange& span = *(behind - 1);
  // What the file lacks of later ranges is for those to say.
  const std::uint64_t end = std::min(static_cast<std::uint64_t>(span.end()), file_->size());
  if (offset > end || byte_count > end - offset) return false;
  const auto begin = static_cast<std::uint64_t>(span.begin);
  window_.resize(static_cast<std::size_t>(end - begin));
  window_begin_ = UINT64_MAX;  // Nothing is in the window while it is filled: the read may throw.
  file_->read_at(begin, window_);
  window_begin_ = begin;
  return true;
}

void MergedFile::read_at(std::uint64_t offset, MutableByteSpan out) const {
  if (!is_in_window(offset, out.size())) return file_->read_at(offset, out);
  if (!out.empty()) std::memcpy(out.data(), window_.data() + (offset - window_begin_), out.size());
}

}  // namespace dcp
