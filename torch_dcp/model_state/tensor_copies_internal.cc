#include "torch_dcp/model_state/tensor_copies_internal.h"

#include <c10/core/GradMode.h>

#include <unordered_set>

namespace dcp {
namespace {

const void* memory_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  const void* memory = memory_of(a);
  return memory != nullptr && memory == memory_of(b) && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.storage_offset() == b.storage_offset() && a.is_neg() == b.is_neg() &&
         a.is_conj() == b.is_conj();
}

void TensorCopies::add(at::Tensor destination, at::Tensor source) {
  if (!is_same_memory(destination, source)) copies_.emplace_back(std::move(destination), std::move(source));
}

void TensorCopies::apply() {
  const c10::NoGradGuard no_grad;
  std::unordered_set<const void*> written;
  for (const auto& [destination, source] : copies_) written.insert(memory_of(destination));
  written.erase(nullptr);
  for (auto& [destination, source] : copies_) {
    if (written.contains(memory_of(source))) source = source.clone();
  }
  for (auto& [destination, source] : copies_) destination.copy_(source);
  copies_.clear();
}

}  // namespace dcp
