#include "torch_dcp/state_dict/per_rank.h"

#include "torch_dcp/base/error.h"

namespace dcp {

std::string per_rank_key(std::string_view name, int rank) {
  DCP_CHECK(rank >= 0, kInvalidArgument, "a key of one rank, '", name, "', needs a rank, not ", rank);
  return std::string(name) + ".rank" + std::to_string(rank);
}

}  // namespace dcp
