#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace dcp {

/// Whether two tensors are the same elements of the same memory in the same order.
bool is_same_memory(const at::Tensor& a, const at::Tensor& b);

/// Copies from given tensors into live ones, done together after all checks.
///
/// A source that lies in the memory of another copy's destination is read before that is written.
class TensorCopies {
 public:
  /// \pre Sizes are equal.
  void add(at::Tensor destination, at::Tensor source);
  /// Autograd sees none of it.
  void apply();

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

}  // namespace dcp
