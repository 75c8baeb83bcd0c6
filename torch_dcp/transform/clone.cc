#include "torch_dcp/transform/clone.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/walk.h"
#include "torch_dcp/transform/local_parts_internal.h"
#include "torch_dcp/transform/stateful_internal.h"

namespace dcp {
namespace {

/// All bytes of a storage as a tensor.
at::Tensor bytes_of(const c10::Storage& storage) {
  at::Tensor bytes = at::empty({0}, at::TensorOptions(at::kByte).device(storage.device()));
  const std::int64_t one = 1;
  bytes.set_(storage, 0, {static_cast<std::int64_t>(storage.nbytes())}, {one});
  return bytes;
}

/// The clones of what was met so far. Keeps the originals, so that no address comes to stand for two of them.
class Clones {
 public:
  at::Tensor of(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    const auto known = tensors_.find(tensor.unsafeGetTensorImpl());
    if (known != tensors_.end()) return known->second.second;
    at::Tensor copy = copy_of(tensor);
    tensors_.emplace(tensor.unsafeGetTensorImpl(), std::pair(tensor, copy));
    return copy;
  }

 private:
  at::Tensor copy_of(const at::Tensor& tensor) {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    DCP_CHECK(!impl.is_python_dispatch(), kUnsupported, "tensors whose operators are Python's cannot be cloned here");
    const bool has_plain_storage = tensor.has_storage() && tensor.layout() == at::kStrided && !tensor.is_nested() &&
                                   !tensor.is_meta() && tensor.storage().data() != nullptr;
    if (!has_plain_storage) return tensor.detach().clone();
    // Sizes, strides, offset, quantizer and lazy conjugation come along; the autograd history does not.
    at::Tensor copy(impl.shallow_copy_and_detach(c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
    copy.unsafeGetTensorImpl()->set_storage_keep_dtype(of(tensor.storage()));
    return copy;
  }

  c10::Storage of(const c10::Storage& storage) {
    const auto known = storages_.find(storage.unsafeGetStorageImpl());
    if (known != storages_.end()) return known->second.second;
    c10::Storage copy = bytes_of(storage).clone().storage();
    storages_.emplace(storage.unsafeGetStorageImpl(), std::pair(storage, copy));
    return copy;
  }

  std::unordered_map<const c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>> tensors_;
  std::unordered_map<const c10::StorageImpl*, std::pair<c10::Storage, c10::Storage>> storages_;
};

}  // namespace

Value clone_value(const Value& value) {
  const c10::NoGradGuard no_grad;
  Clones clones;
  return replace_leaves(replace_all_stateful(value), [&](const Path& path, const Value& leaf) {
    try {
      return with_local_parts(leaf, [&](const at::Tensor& part) { return clones.of(part); });
    } catch (c10::Error& error) {
      error.add_context("in the clone of " + (path.empty() ? "the value" : describe(path)));
      throw;
    }
  });
}

Dict clone(const Dict& state) { return clone_value(state).as_dict(); }

}  // namespace dcp
