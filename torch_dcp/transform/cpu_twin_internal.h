#pragma once

#include "torch_dcp/transform/cpu_twin.h"
#include "torch_dcp/transform/page_lock_internal.h"

namespace dcp {

/// As `make_cpu_twin`, with another way to page-lock shared memory.
Dict make_cpu_twin_with(const Dict& state, const CpuTwinOptions& options,
                        const std::function<PageLock()>& make_page_lock);

}  // namespace dcp
