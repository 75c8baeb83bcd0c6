#include "torch_dcp/model_state/load_undo_internal.h"

#include <c10/core/GradMode.h>

#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/transform/clone.h"

namespace dcp {

void LoadUndo::keep(const at::Tensor& tensor) {
  if (known_.insert(tensor.unsafeGetTensorImpl()).second) tensors_.push_back({tensor, tensor.detach().clone()});
}

void LoadUndo::keep_memory(const at::Tensor& tensor) {
  if (known_.insert(tensor.unsafeGetTensorImpl()).second) tensors_.push_back({tensor, tensor.detach(), true});
}

void LoadUndo::keep_gradient(const at::Tensor& tensor) {
  if (!known_gradients_.insert(tensor.unsafeGetTensorImpl()).second) return;
  const at::Tensor gradient = tensor.grad();
  gradients_.push_back({tensor, gradient, gradient.defined() ? gradient.detach().clone() : at::Tensor()});
}

void LoadUndo::keep(const std::string& what, std::function<void()> put_back) {
  objects_.push_back({what, std::move(put_back)});
}

void LoadUndo::keep(const std::string& key, const ExtraStateCalls& extra) {
  extras_.push_back({key, extra, clone_value(extra.get())});
}

std::string LoadUndo::put_back() {
  const c10::NoGradGuard no_grad;
  std::string failures;
  const auto attempt = [&](const std::string& what, const auto& action) {
    try {
      action();
    } catch (...) {
      failures += "\n  " + what + ": " + current_failure(-1).message;
    }
  };
  for (const KeptObject& kept : objects_) attempt(kept.what, kept.put_back);
  for (const KeptTensor& kept : tensors_) {
    attempt(c10::str("a tensor of shape ", kept.was.sizes()), [&] {
      if (kept.is_memory) {
        take_memory(kept.tensor, kept.was);
      } else {
        kept.tensor.copy_(kept.was);
      }
    });
  }
  for (KeptGradient& kept : gradients_) {
    attempt(c10::str("the gradient of a tensor of shape ", kept.tensor.sizes()), [&] {
      if (kept.gradient.defined()) kept.gradient.detach().copy_(kept.was);
      if (!kept.tensor.grad().is_same(kept.gradient)) kept.tensor.mutable_grad() = kept.gradient;
    });
  }
  for (const KeptExtra& kept : extras_) {
    attempt("'" + kept.key + "'", [&] {
      if (!bit_equal(kept.calls.get(), kept.was)) kept.calls.set(kept.was);
    });
  }
  return failures;
}

void take_memory(const at::Tensor& tensor, const at::Tensor& other) {
  // Between the meta device and others set_data refuses what it could do; the call after it settles autograd's side.
  if (tensor.is_meta() != other.is_meta()) {
    tensor.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
  }
  tensor.set_data(other);
}

void put_back_and_rethrow(LoadUndo& undo, const char* subject) {
  const std::string failures = undo.put_back();
  if (failures.empty()) throw;
  const RankFailure cause = current_failure(-1);
  throw Error(ErrorKind::kState,
              c10::str(cause.message, "\nAfter this, ", subject, " could not be put back as it was:", failures),
              cause.where);
}

}  // namespace dcp
