#pragma once

#include <string>
#include <string_view>

#include "torch_dcp/base/export.h"

namespace dcp {

/// The key under which one rank keeps a value of its own, such as its random state: `per_rank_key("rng", 3)` is
/// "rng.rank3". An ordinary key: with another number of ranks a strict load fails naming those that are not stored.
///
/// \throws dcp::Error kInvalidArgument for a negative rank.
DCP_API std::string per_rank_key(std::string_view name, int rank);

}  // namespace dcp
