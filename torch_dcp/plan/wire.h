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
DCP_API void encode(ByteWriter& out, const Metadata& metadata);
DCP_API void decode(ByteReader& in, Metadata& metadata);

}  // namespace dcp
