#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "torch_dcp/tensor/box.h"

namespace dcp {

/// A chunk that several ranks hold alike, to be cut among them.
struct ReplicatedChunk {
  Box box;
  std::int64_t byte_count = 0;
};

/// What one holder writes of one chunk: all of it, or a block of neighbouring rows.
struct ReplicatedPiece {
  std::size_t chunk = 0;
  std::size_t holder = 0;
  Box box;
};

/// Cuts chunks so that their holders write the same number of bytes, as far as `loads` and the chunks' rows allow.
///
/// One holder after the other is filled to the level that all can reach; a chunk is cut where a holder is full, so that
/// there are at most as many cuts as holders. Rows are those of the first dimension that is cut finely enough,
/// or into blocks of the size that is wanted. A
/// chunk's boxes tile it, and no holder gets two of them.
///
/// \param chunks  With elements; all held by the same ranks.
/// \param loads   By holder, one at least: the bytes that it has to write already; grow by what it gets here.
/// \returns Pieces in the order of chunks and of their rows. The same for the same arguments.
std::vector<ReplicatedPiece> split_replicated(const std::vector<ReplicatedChunk>& chunks,
                                              std::vector<std::int64_t>& loads);

}  // namespace dcp
