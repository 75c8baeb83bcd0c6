#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "torch_dcp/model_state/hook_registry_internal.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// What a load is about to change, as it was before. Costs a copy of all that is kept, but for memory.
class LoadUndo {
 public:
  /// Keeps the elements of a tensor and which memory it has; one that is kept already is not kept again.
  void keep(const at::Tensor& tensor);
  /// Keeps which memory a tensor has: for one that is about to take other memory. Its elements are not copied.
  void keep_memory(const at::Tensor& tensor);
  /// Keeps a tensor's gradient: which one it is, and its elements.
  void keep_gradient(const at::Tensor& tensor);
  /// Keeps something else, which `put_back` restores.
  void keep(const std::string& what, std::function<void()> put_back);
  /// Keeps extra state, its tensors as copies.
  void keep(const std::string& key, const ExtraStateCalls& extra);

  /// Puts everything back, as far as that can be done. Setters are called where the state is another now.
  /// \returns What could not be put back and why, a line for each; empty if all could.
  std::string put_back();

 private:
  struct KeptTensor {
    at::Tensor tensor;
    at::Tensor memory;  ///< that it had
    at::Tensor was;     ///< its elements; undefined if they were not kept
  };
  struct KeptExtra {
    std::string key;
    ExtraStateCalls calls;
    Value was;
  };

  struct KeptGradient {
    at::Tensor tensor;
    at::Tensor gradient;
    at::Tensor was;
  };
  struct KeptObject {
    std::string what;
    std::function<void()> put_back;
  };

  std::vector<KeptTensor> tensors_;
  std::vector<KeptGradient> gradients_;
  std::vector<KeptObject> objects_;
  std::vector<KeptExtra> extras_;
  std::unordered_set<const void*> known_;
  std::unordered_set<const void*> known_gradients_;
};

/// Gives a tensor the memory and the dtype of another, as `Tensor::set_data`, also from and to the meta device. Who
/// holds the tensor sees it.
void take_memory(const at::Tensor& tensor, const at::Tensor& other);

/// Rethrows the exception that is being handled, after `undo` was put back: unchanged, unless something could not be.
///
/// \pre Called inside a `catch` block.
/// \param subject  What was being loaded, such as "the module".
/// \throws dcp::Error kState naming the exception and what could not be put back.
[[noreturn]] void put_back_and_rethrow(LoadUndo& undo, const char* subject);

}  // namespace dcp
