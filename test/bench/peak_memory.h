#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace dcp::bench {

/// Bytes of memory that this process had at most while `call` ran, beyond what it had when it began. Nothing where the
/// system does not tell.
std::optional<std::int64_t> peak_memory_of(const std::function<void()>& call);

}  // namespace dcp::bench
