#pragma once

#include <cstddef>
#include <functional>

namespace dcp {

/// How memory of our own is page-locked for a device.
struct PageLock {
  std::function<void(void* data, std::size_t byte_count)> lock;  ///< throws dcp::Error
  std::function<void(void* data)> unlock;                        ///< never throws
};

/// CUDA's, if this program has its run-time library loaded.
///
/// \throws dcp::Error kState if LibTorch has no accelerator, or none that can page-lock given memory.
PageLock device_page_lock();

/// \throws dcp::Error kState if LibTorch has no accelerator, and so no page-locked memory to give.
void check_can_pin();

}  // namespace dcp
