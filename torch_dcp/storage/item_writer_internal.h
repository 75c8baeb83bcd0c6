#pragma once

#include <cstdint>

#include "torch_dcp/io/file_system.h"
#include "torch_dcp/plan/plan.h"
#include "torch_dcp/plan/planner.h"

namespace dcp {

/// What a tensor that must be copied before it is written (strided, on a device) may take of extra memory at a time.
inline constexpr std::int64_t kWriteCopyBytes = std::int64_t{32} << 20;

/// Appends one item to a data file.
///
/// A contiguous CPU tensor is written from where it lies; others pass through a buffer of at most
/// `copy_bytes`, and of one element at least.
void write_item(WritableFile& out, const WriteItem& item, const SavePlanner& planner,
                std::int64_t copy_bytes = kWriteCopyBytes);

}  // namespace dcp
