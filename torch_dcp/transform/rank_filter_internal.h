#pragma once

#include <algorithm>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// \throws dcp::Error kInvalidArgument for a rank below 0, or from `end` on.
inline void check_rank_filter(const std::vector<int>& ranks, int end = 1 << 30) {
  for (int rank : ranks) {
    DCP_CHECK(rank >= 0 && rank < end, kInvalidArgument, "no rank ", rank, " can be chosen to get the result");
  }
}

/// Whether the rank gets the result: an empty filter lets all pass.
inline bool passes(const std::vector<int>& ranks, int rank) {
  return ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/// What a rank gets that does not pass.
inline Value filtered_out(const Value& value) { return value.is_dict() ? Value(Dict()) : Value(); }

}  // namespace dcp
