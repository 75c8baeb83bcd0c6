#include <algorithm>
#include <cstring>

#include "torch_dcp/storage/read_ahead_file_internal.h"

namespace dcp {

void ReadAheadFile::read_at(std::uint64_t offset, MutableByteSpan out) const {
  const bool follows = offset >= expected_ && offset - expected_ <= kMaxHoleBytes && out.size() <= kSmallBytes;
  run_bytes_ = follows ? run_bytes_ + out.size() : 0;
  expected_ = offset + out.size();
  if (offset >= window_begin_ && offset - window_begin_ <= window_.size() &&
      out.size() <= window_.size() - static_cast<std::size_t>(offset - window_begin_)) {
    if (!out.empty()) std::memcpy(out.data(), window_.data() + (offset - window_begin_), out.size());
    return;
  }
  const std::size_t wanted = std::min(kMaxAheadBytes, run_bytes_);
  if (wanted < 2 * out.size() || offset >= file_->size()) return file_->read_at(offset, out);
  // Nothing is in the window while it is filled: the read may throw.
  window_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(wanted, file_->size() - offset)));
  if (window_.size() < out.size()) {
    window_.clear();
    return file_->read_at(offset, out);
  }
  window_begin_ = UINT64_MAX;
  file_->read_at(offset, window_);
  window_begin_ = offset;
  std::memcpy(out.data(), window_.data(), out.size());
}

}  // namespace dcp
