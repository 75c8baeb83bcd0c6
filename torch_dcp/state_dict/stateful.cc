#include "torch_dcp/state_dict/stateful.h"

namespace dcp {

Stateful::~Stateful() = default;

}  // namespace dcp
