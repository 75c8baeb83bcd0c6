#include "torch_dcp/model_state/load_undo_internal.h"

#include <c10/core/GradMode.h>

#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/transform/clone.h"

namespace dcp {

namespace {

bool has_memory(const at::Tensor& tensor, const at::Tensor& memory) {
  if (!tensor.has_storage() || !memory.has_storage()) return tensor.has_storage() == memory.has_storage();
  return tensor.scalar_type() == memory.scalar_type() && tensor.sizes() == memory.sizes() &&
         tensor.strides() == memory.strides() && tensor.storage_offset() == memory.storage_offset() &&
         tensor.storage().is_alias_of(memory.storage());
}

/// A value that cannot be compared counts as changed: it is put back all the same.
bool is_unchanged(const std::function<Value()>& now, const Value& was) {
  try {
    return bit_equal(now(), was);
  } catch (...) {
    return false;
  }
}

}  // namespace

void LoadUndo::keep(const at::Tensor& tensor) {
  if (!known_.insert(tensor.unsafeGetTensorImpl()).second) return;
  tensors_.push_back({tensor, tensor.detach(), tensor.detach().clone()});
}

void LoadUndo::keep_memory(const at::Tensor& tensor) {
  if (known_.insert(tensor.unsafeGetTensorImpl()).second) tensors_.push_back({tensor, tensor.detach(), {}});
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
      if (!has_memory(kept.tensor, kept.memory)) take_memory(kept.tensor, kept.memory);
      // What did not change may be a tensor that cannot be written, such as an expanded one.
      if (kept.was.defined() && !is_unchanged([&] { return kept.tensor; }, kept.was)) kept.tensor.copy_(kept.was);
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
      if (!is_unchanged(kept.calls.get, kept.was)) kept.calls.set(kept.was);
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
