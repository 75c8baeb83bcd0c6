#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/state_dict/value.h"
#include "torch_dcp/transform/gather.h"
#include "torch_dcp/transform/similar.h"
#include "torch_dcp/transform/tensor_elements_internal.h"

namespace dcp {

/// How a DTensor's Partial placements combine; none of them for other tensors.
struct Reduction {
  std::string op;             ///< "sum", ...; empty for none
  std::int64_t summand = 0;   ///< which of them this rank holds
  std::int64_t summands = 1;  ///< how many there are
};

/// What a rank says of a value of its state.
struct GatherRow {
  std::string name;    ///< spells the path, so that no two have the same
  std::string key;     ///< flat
  std::string kind;    ///< its name
  std::string layout;  ///< of a DTensor: mesh and placements
  /// Of a tensor in parts; the dtype is not known to a rank outside of the mesh.
  std::optional<Sizes> sizes;
  std::optional<at::ScalarType> dtype;
  std::optional<TensorQuantizer> quantizer;
  Reduction reduction;
  std::vector<Box> boxes;  ///< that this rank holds, without empty ones
  /// Values of this rank with the same tensors for parts have the same number above 0. `kStandsAlone` if no other has
  /// them; `kHasNoParts` if this rank has none, and so cannot tell.
  std::int64_t tie = kHasNoParts;

  static constexpr std::int64_t kHasNoParts = 0;
  static constexpr std::int64_t kStandsAlone = -1;
};

struct GatherRows {
  std::vector<int> ranks;  ///< of the options
  std::int64_t bucket_bytes = 0;
  std::vector<GatherRow> rows;
};

/// A part of a whole, and who brings it.
struct GatherPart {
  Box box;
  std::vector<std::int64_t> ranks;  ///< one, or one for each summand, ascending
};

/// A whole that is put together.
struct GatherTensor {
  std::string name;
  TensorInfo info;
  std::optional<TensorQuantizer> quantizer;
  std::string reduce_op;       ///< empty for none
  bool is_everywhere = false;  ///< every rank holds the whole: no parts travel
  /// An earlier one in the plan that this one is too, under another name: its whole counts, and no parts travel.
  std::optional<std::uint64_t> same_as;
  std::vector<GatherPart> parts;
};

struct GatherPlan {
  std::vector<GatherTensor> tensors;
};

void encode(ByteWriter& out, const GatherRows& rows);
void decode(ByteReader& in, GatherRows& rows);
void encode(ByteWriter& out, const GatherPlan& plan);
void decode(ByteReader& in, GatherPlan& plan);

/// The parts of a tensor that this rank holds; the summands of a Partial one. \pre Not a plain tensor.
std::vector<LocalChunk> gather_chunks(const Value& value);

/// Describes a rank's state. \throws dcp::Error kUnsupported, naming every tensor that cannot be gathered, or not be
/// moved to the CPU where this rank gets the result there.
GatherRows describe_for_gather(const Value& state, const GatherOptions& options, int my_rank);

/// Compares what the ranks say, and decides who brings what. \throws dcp::Error that names every disagreement.
GatherPlan plan_gather(const std::vector<GatherRows>& by_rank);

}  // namespace dcp
