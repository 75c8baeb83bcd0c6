#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "torch_dcp/io/file_system.h"

namespace dcp {

/// A file that gathers small appends and hands them on together: a system call for each of many small tensors would
/// take longer than their bytes. What is not small is handed on from where it lies.
///
/// An error of gathered bytes comes from a later call. `size` counts what is gathered too.
class GatheringFile final : public WritableFile {
 public:
  static constexpr std::size_t kGatheredBytes = std::size_t{1} << 20;
  /// What has fewer bytes is small.
  static constexpr std::size_t kSmallBytes = std::size_t{64} << 10;

  explicit GatheringFile(std::unique_ptr<WritableFile> out);
  ~GatheringFile() override;

  void append(ByteSpan bytes) override { gather({&bytes, 1}); }
  void append_all(const std::vector<ByteSpan>& parts) override { gather(parts); }
  std::uint64_t size() const override { return out_->size() + gathered_.size(); }
  void set_early_write_back(bool enabled) override { out_->set_early_write_back(enabled); }
  void set_direct_writes(bool enabled) override { out_->set_direct_writes(enabled); }
  void sync() override;
  void close() override;

  /// Hands on all that is gathered.
  void flush();

 private:
  void gather(std::span<const ByteSpan> parts);

  std::unique_ptr<WritableFile> out_;
  Bytes gathered_;
  std::vector<ByteSpan> parts_;  // kept for its memory
};

}  // namespace dcp
