#pragma once

#include <vector>

#include "torch_dcp/plan/metadata.h"

namespace dcp {

/// Unites the metadata of ranks that saved without collectives, so that any number of ranks can load them.
///
/// Tensors are made of the chunks of all ranks. Of a chunk or object that several ranks have, the lowest one's counts:
/// they are taken for copies, and nothing shows whether they are. Index hints are made anew.
///
/// \param by_rank  Of rank 0, 1, ... without gaps. That the last ranks are missing shows only where tensors lack
///                 their chunks: nothing says how many ranks have saved.
/// \throws dcp::Error kCorruptData naming every key whose ranks contradict each other (kind, size, dtype, path,
///         overlapping chunks), or whose chunks do not fill it.
DCP_API Metadata merge_rank_metadata(const std::vector<Metadata>& by_rank);

/// Makes a rank's own chunks and objects count where `merged` took another's for copies of them, so that values that
/// are not copies go back to the ranks that saved them. A load with collectives does this on every rank; a rank that
/// has not saved takes the lowest one's.
///
/// \param own  What this rank saved; one of those that were merged.
DCP_API void prefer_rank_metadata(Metadata& merged, const Metadata& own);

}  // namespace dcp
