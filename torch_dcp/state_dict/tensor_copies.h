#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "torch_dcp/base/export.h"

namespace dcp {

/// Whether two tensors are the same elements of the same memory in the same order, also if their storages are others
/// that stand for this memory.
DCP_API bool is_same_memory(const at::Tensor& a, const at::Tensor& b);

/// Memory of tensors: each from its first byte to its last. Addresses count, so that it does not matter through which
/// storage a tensor sees the memory. Tensors without data (on the meta device) have none.
class DCP_API MemoryRanges {
 public:
  void add(const at::Tensor& tensor);
  /// May be true for a tensor that lies in the gaps of another.
  bool overlaps(const at::Tensor& tensor) const;

 private:
  std::map<std::uintptr_t, std::uintptr_t> ends_;  ///< by begin; apart
};

/// Copies from given tensors into live ones, done together after all checks.
///
/// A source that lies in the memory of another copy's destination is read before that is written.
class DCP_API TensorCopies {
 public:
  /// \pre Sizes are equal.
  void add(at::Tensor destination, at::Tensor source);
  /// Reads the sources that lie in memory to be written, so that `apply` allocates nothing more.
  void prepare();
  /// Prepares, and copies. Autograd sees none of it.
  ///
  /// \param non_blocking  Copies between devices may still run when this returns, as `Tensor::copy_` says.
  void apply(bool non_blocking = false);

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

}  // namespace dcp
