#include <utility>

#include "torch_dcp/storage/gathering_file_internal.h"

namespace dcp {

GatheringFile::GatheringFile(std::unique_ptr<WritableFile> out) : out_(std::move(out)) {}
GatheringFile::~GatheringFile() = default;

void GatheringFile::gather(std::span<const ByteSpan> parts) {
  std::size_t byte_count = 0;
  for (const ByteSpan part : parts) byte_count += part.size();
  if (byte_count < kSmallBytes) {
    if (gathered_.size() + byte_count > kGatheredBytes) flush();
    if (gathered_.capacity() == 0) gathered_.reserve(kGatheredBytes);
    for (const ByteSpan part : parts) gathered_.insert(gathered_.end(), part.begin(), part.end());
    return;
  }
  parts_.clear();
  if (!gathered_.empty()) parts_.push_back(gathered_);
  parts_.insert(parts_.end(), parts.begin(), parts.end());
  out_->append_all(parts_);
  gathered_.clear();
}

void GatheringFile::flush() {
  if (gathered_.empty()) return;
  out_->append(gathered_);
  gathered_.clear();
}

void GatheringFile::sync() {
  flush();
  out_->sync();
}

void GatheringFile::close() {
  flush();
  out_->close();
}

}  // namespace dcp
