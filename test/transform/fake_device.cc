#include "test/transform/fake_device.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <cstdlib>

namespace dcp::testing {
namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

class FakeAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t byte_count) override {
    void* const data = std::malloc(byte_count == 0 ? 1 : byte_count);
    TORCH_CHECK(data != nullptr, "no memory");
    return {data, data, &std::free, c10::Device(kDevice, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* dest, const void* src, std::size_t count) const override { default_copy_data(dest, src, count); }
};

FakeAllocator g_allocator;

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(sizes, strides, &g_allocator, keys, dtype.value_or(at::kFloat));
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(sizes, &g_allocator, keys, dtype.value_or(at::kFloat), format);
}

/// The same memory as a CPU tensor.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& into, bool) {
  on_cpu(into).copy_(on_cpu(from));
  return into;
}

at::Tensor as_strided(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      std::optional<std::int64_t> offset) {
  at::Tensor view(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
  view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  view.unsafeGetTensorImpl()->set_storage_offset(offset.value_or(tensor.storage_offset()));
  return view;
}

at::Tensor& set_storage(at::Tensor& tensor, c10::Storage storage, std::int64_t offset, c10::IntArrayRef sizes,
                        c10::IntArrayRef strides) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  impl.set_storage_keep_dtype(std::move(storage));
  impl.set_sizes_and_strides(sizes, strides);
  impl.set_storage_offset(offset);
  return tensor;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("as_strided", &as_strided);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
}

}  // namespace

c10::Device fake_device() { return c10::Device(kDevice, 0); }

}  // namespace dcp::testing
