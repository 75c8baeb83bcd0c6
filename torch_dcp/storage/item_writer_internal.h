#pragma once

#include "torch_dcp/io/file_system.h"
#include "torch_dcp/plan/plan.h"
#include "torch_dcp/plan/planner.h"

namespace dcp {

/// Appends one item to a data file.
///
/// A contiguous CPU tensor is written from where it lies; others pass through a bounded buffer.
void write_item(WritableFile& out, const WriteItem& item, const SavePlanner& planner);

}  // namespace dcp
