#include "torch_dcp/plan/planner.h"

namespace dcp {

SavePlanner::~SavePlanner() = default;
LoadPlanner::~LoadPlanner() = default;

}  // namespace dcp
