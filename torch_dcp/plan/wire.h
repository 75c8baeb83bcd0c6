#pragma once

#include <vector>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/plan/metadata.h"
#include "torch_dcp/plan/plan.h"

namespace dcp {

// Plan types as bytes, for what ranks send each other. Both ends run the same build: no
// versions, but every count is checked. `decode` throws kCorruptData.

DCP_API void encode(ByteWriter& out, const SavePlan& plan);
DCP_API void decode(ByteReader& in, SavePlan& plan);
DCP_API void encode(ByteWriter& out, const LoadPlan& plan);
DCP_API void decode(ByteReader& in, LoadPlan& plan);
DCP_API void encode(ByteWriter& out, const WriteResult& result);
DCP_API void decode(ByteReader& in, WriteResult& result);
/// All results of a rank: their keys and files are mostly the same few.
DCP_API void encode(ByteWriter& out, const std::vector<WriteResult>& results);
DCP_API void decode(ByteReader& in, std::vector<WriteResult>& results);
DCP_API void encode(ByteWriter& out, const Metadata& metadata);
DCP_API void decode(ByteReader& in, Metadata& metadata);

/// Decodes the plans of many ranks. Those with the same paths share one map of them: paths that came before, byte for
/// byte, are not decoded again.
///
/// Thread safety: one call at a time.
class DCP_API SavePlanDecoder {
 public:
  /// \throws dcp::Error kCorruptData for what is no plan, or more than one.
  SavePlan decode(ByteSpan bytes);
  void decode(ByteReader& in, SavePlan& plan);

 private:
  /// Ranks of one stage of a model have the same keys; those of other stages may come between them.
  static constexpr std::size_t kMostKnown = 64;

  struct Known {
    Bytes section;
    PlannerPaths paths;
  };

  PlannerPaths paths_of(ByteSpan section);

  std::vector<Known> known_;  ///< the last one first
};

}  // namespace dcp
