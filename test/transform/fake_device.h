#pragma once

#include <c10/core/Device.h>

/// A device that is none: its tensors lie in the CPU's memory, but no operator may reach them except by copies, as with
/// a real one. So that what moves between devices is tested on machines without any.
namespace dcp::testing {

/// Device 0 of LibTorch's kind for backends of others, which this library's kernels serve from the program's start.
c10::Device fake_device();

}  // namespace dcp::testing
