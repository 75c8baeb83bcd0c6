#include <ATen/DeviceAccelerator.h>
#include <dlfcn.h>

#include "torch_dcp/base/error.h"
#include "torch_dcp/transform/page_lock_internal.h"

namespace dcp {
namespace {

template <typename Function>
Function* function_named(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

void check_can_pin() {
  DCP_CHECK(at::getAccelerator(/*checked=*/false).has_value(), kState,
            "memory cannot be page-locked: LibTorch has no accelerator here");
}

PageLock device_page_lock() {
  check_can_pin();
  // LibTorch has no call for it that works without CUDA's headers. Both give 0 for success.
  auto* const lock = function_named<int(void*, std::size_t, unsigned)>("cudaHostRegister");
  auto* const unlock = function_named<int(void*)>("cudaHostUnregister");
  DCP_CHECK(lock && unlock, kState,
            "shared memory cannot be page-locked: this program has not loaded CUDA's run-time library");
  PageLock page_lock;
  page_lock.lock = [lock](void* data, std::size_t byte_count) {
    constexpr unsigned kPortable = 1;  // For all devices.
    const int status = lock(data, byte_count, kPortable);
    DCP_CHECK(status == 0, kState, byte_count, " bytes of shared memory cannot be page-locked: CUDA error ", status);
  };
  page_lock.unlock = [unlock](void* data) { unlock(data); };
  return page_lock;
}

}  // namespace dcp
