#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/plan/plan.h"
#include "torch_dcp/plan/planner.h"

namespace dcp {

/// What tensors that must be copied before they are written (strided, on a device) may take of extra memory at a time,
/// over all threads of a save.
inline constexpr std::int64_t kWriteCopyBytes = std::int64_t{16} << 20;

/// Appends items to data files.
///
/// A contiguous CPU tensor is written from where it lies; others pass through a buffer of at most
/// `copy_bytes`, and of one element at least. Thread safety: none.
class ItemWriter {
 public:
  /// \param checksums  Off: no CRC-32 of tensors is recorded.
  explicit ItemWriter(const SavePlanner& planner, bool checksums = true, std::int64_t copy_bytes = kWriteCopyBytes);

  /// \returns Sums of a large tensor's blocks (block_sums_internal.h), with checksums.
  std::vector<std::uint32_t> write(WritableFile& out, const WriteItem& item);

 private:
  std::vector<std::uint32_t> write_tensor(WritableFile& out, const WriteItem& item, const at::Tensor& view);

  const SavePlanner& planner_;
  bool checksums_;
  std::int64_t copy_bytes_;
  TensorItemForms forms_;
};

/// Calls `use` with a tensor's elements in row-major order, in one or more parts; strided tensors and those on a device
/// pass through a buffer of at most `copy_bytes`, and of one element at least.
void for_each_part(const at::Tensor& view, std::int64_t copy_bytes, const std::function<void(ByteSpan)>& use);

}  // namespace dcp
