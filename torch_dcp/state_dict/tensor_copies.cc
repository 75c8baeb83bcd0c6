#include "torch_dcp/state_dict/tensor_copies.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <iterator>
#include <optional>

namespace dcp {
namespace {

const void* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

/// Of its first element; 0 for a tensor without data.
std::uintptr_t address_of(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.storage().data() == nullptr) return 0;
  return reinterpret_cast<std::uintptr_t>(tensor.storage().data()) +
         static_cast<std::uintptr_t>(tensor.storage_offset()) * tensor.element_size();
}

/// Where the bytes of a tensor begin and end; nothing if it has none.
std::optional<std::pair<std::uintptr_t, std::uintptr_t>> range_of(const at::Tensor& tensor) {
  const std::uintptr_t begin = address_of(tensor);
  if (begin == 0 || tensor.numel() == 0) return std::nullopt;
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return std::pair(begin, begin + static_cast<std::uintptr_t>(last + 1) * tensor.element_size());
}

}  // namespace

bool is_same_memory(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  const bool is_same_place = storage_of(a) != nullptr && storage_of(a) == storage_of(b)
                                 ? a.storage_offset() == b.storage_offset()
                                 : address_of(a) != 0 && address_of(a) == address_of(b);
  return is_same_place && a.device() == b.device() && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.is_neg() == b.is_neg() && a.is_conj() == b.is_conj();
}

void MemoryRanges::add(const at::Tensor& tensor) {
  auto range = range_of(tensor);
  if (!range) return;
  auto& [begin, end] = *range;
  auto next = ends_.upper_bound(begin);
  if (next != ends_.begin() && std::prev(next)->second >= begin) --next;
  while (next != ends_.end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = ends_.erase(next);
  }
  ends_.emplace(begin, end);
}

bool MemoryRanges::overlaps(const at::Tensor& tensor) const {
  const auto range = range_of(tensor);
  if (!range) return false;
  const auto next = ends_.lower_bound(range->second);
  return next != ends_.begin() && std::prev(next)->second > range->first;
}

void TensorCopies::add(at::Tensor destination, at::Tensor source) {
  if (!is_same_memory(destination, source)) copies_.emplace_back(std::move(destination), std::move(source));
}

void TensorCopies::prepare() {
  const c10::NoGradGuard no_grad;
  MemoryRanges written;
  for (const auto& [destination, source] : copies_) written.add(destination);
  for (auto& [destination, source] : copies_) {
    if (written.overlaps(source)) source = source.clone();
  }
}

void TensorCopies::apply(bool non_blocking) {
  const c10::NoGradGuard no_grad;
  prepare();
  for (auto& [destination, source] : copies_) destination.copy_(source, non_blocking);
  copies_.clear();
}

}  // namespace dcp
