#include "torch_dcp/transform/broadcast.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/comm/rank_step.h"
#include "torch_dcp/state_dict/tensor_copies.h"
#include "torch_dcp/tensor/box_pieces.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/transform/match_internal.h"
#include "torch_dcp/transform/skeleton_internal.h"
#include "torch_dcp/transform/tensor_elements_internal.h"

namespace dcp {
namespace {

constexpr char kHeading[] = "broadcast of a state";

/// A part of a tensor as it travels in a bucket.
struct Piece {
  std::size_t tensor = 0;
  Box box;
  std::int64_t offset = 0;  ///< in the bucket
  bool is_last = false;     ///< of its tensor
};

struct Bucket {
  std::vector<Piece> pieces;
  std::int64_t bytes = 0;
};

std::vector<Bucket> fill_buckets(const std::vector<Transfer>& transfers, std::int64_t bucket_bytes) {
  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const TensorInfo& info = transfers[i].info;
    const std::int64_t element = element_bytes(info.dtype);
    std::vector<Box> boxes = cut_into_pieces(info.sizes, element, bucket_bytes);
    for (std::size_t b = 0; b < boxes.size(); ++b) {
      const std::int64_t bytes = boxes[b].numel() * element;
      if (buckets.empty() || aligned(buckets.back().bytes) + bytes > bucket_bytes) buckets.emplace_back();
      Bucket& bucket = buckets.back();
      const std::int64_t offset = aligned(bucket.bytes);
      bucket.pieces.push_back({i, std::move(boxes[b]), offset, b + 1 == boxes.size()});
      bucket.bytes = offset + bytes;
    }
  }
  return buckets;
}

/// One rank's side of the elements' way.
class Elements {
 public:
  Elements(const std::vector<at::Tensor>& sources, const std::vector<Transfer>& transfers, PlaceOptions options)
      : sources_(sources), transfers_(transfers), targets_(options), open_(transfers.size()) {}

  /// Gives tensors memory before the others wait for this rank.
  void open(const Bucket& bucket) {
    for (const Piece& piece : bucket.pieces) {
      if (!transfers_[piece.tensor].target || open_[piece.tensor]) continue;
      open_[piece.tensor] = targets_.open(transfers_[piece.tensor]);
    }
  }

  Bytes pack(const Bucket& bucket) const {
    Bytes bytes(static_cast<std::size_t>(bucket.bytes));
    for (const Piece& piece : bucket.pieces) {
      write_elements(part_of(elements_of(sources_[piece.tensor]), piece.box.offsets, piece.box.sizes),
                     bytes.data() + piece.offset);
    }
    return bytes;
  }

  void unpack(const Bucket& bucket, const Bytes& bytes) {
    DCP_CHECK(bytes.size() == static_cast<std::size_t>(bucket.bytes), kInternal, "a bucket of ", bucket.bytes,
              " bytes came as ", bytes.size());
    for (const Piece& piece : bucket.pieces) {
      std::optional<OpenTarget>& open = open_[piece.tensor];
      if (!open) continue;
      for (const LocalChunk& chunk : open->chunks) place(piece, bytes.data() + piece.offset, chunk);
      if (!piece.is_last) continue;
      Targets::close(transfers_[piece.tensor], *std::move(open));
      open = std::nullopt;
    }
  }

 private:
  void place(const Piece& piece, const std::uint8_t* bytes, const LocalChunk& chunk) const {
    const std::optional<Box> both = intersect(piece.box, chunk.box);
    if (!both) return;
    Sizes in_piece = both->offsets;
    Sizes in_chunk = both->offsets;
    for (std::size_t d = 0; d < both->ndim(); ++d) {
      in_piece[d] -= piece.box.offsets[d];
      in_chunk[d] -= chunk.box.offsets[d];
    }
    copy_elements(bytes, piece.box.sizes, in_piece, part_of(chunk.view, in_chunk, both->sizes));
  }

  const std::vector<at::Tensor>& sources_;
  const std::vector<Transfer>& transfers_;
  Targets targets_;
  std::vector<std::optional<OpenTarget>> open_;
};

void check_options(const std::vector<std::pair<bool, std::int64_t>>& by_rank) {
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    DCP_CHECK(by_rank[rank] == by_rank[0], kInvalidArgument, "the options strict and bucket_bytes of rank ", rank,
              " are not those of rank 0");
  }
  DCP_CHECK(by_rank[0].second > 0, kInvalidArgument, "bucket_bytes is ", by_rank[0].second, ", it must be positive");
}

/// Sends the table. Returns the coordinator's tensors there, none elsewhere.
FullState share_table(const Dict& full, Communicator& comm, const BroadcastOptions& options) {
  FullState state;
  state.skeleton = reduce_step(
      comm, "broadcast table", [&] { return std::pair(options.strict, options.bucket_bytes); },
      [&](const std::vector<std::pair<bool, std::int64_t>>& by_rank) {
        check_options(by_rank);
        FullState own = take_full_state(full, kHeading);
        state.tensors = std::move(own.tensors);
        return std::move(own.skeleton);
      });
  return state;
}

/// Copies sources that lie in memory which the coordinator's own targets have: written in one step, it would be read
/// in a later one. One that is its own target stays what it is.
void save_sources(std::vector<at::Tensor>& sources, const std::vector<Transfer>& transfers,
                  const PlaceOptions& options) {
  const c10::NoGradGuard no_grad;
  MemoryRanges written;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    for (const LocalChunk& chunk : chunks_in_place(transfers[i], options)) {
      const at::Tensor from = part_of(elements_of(sources[i]), chunk.box.offsets, chunk.box.sizes);
      if (!is_same_memory(from, chunk.view)) written.add(chunk.view);
    }
  }
  for (at::Tensor& source : sources) {
    if (written.overlaps(source)) source = source.clone();
  }
}

void move_elements(const std::vector<Bucket>& buckets, const std::vector<Transfer>& transfers, Elements& elements,
                   Communicator& comm) {
  std::size_t done = 0;
  for (const Bucket& bucket : buckets) {
    StepParts parts;
    parts.local = [&] {
      elements.open(bucket);
      return Bytes();
    };
    parts.global = [&](std::vector<Bytes>) {
      std::vector<Bytes> answer;
      answer.push_back(elements.pack(bucket));
      return answer;
    };
    parts.receive = [&](Bytes bytes) { elements.unpack(bucket, bytes); };
    try {
      comm.run_step("broadcast elements", parts);
    } catch (Error& error) {
      error.add_context(c10::str(done, " of ", transfers.size(), " tensors have their new values; '",
                                 transfers[bucket.pieces.front().tensor].key, "' and those that travel with it may"));
      throw;
    }
    done += static_cast<std::size_t>(
        std::count_if(bucket.pieces.begin(), bucket.pieces.end(), [](const Piece& piece) { return piece.is_last; }));
  }
}

}  // namespace

BroadcastReport broadcast_state(const Dict& full, Dict& local, Communicator& comm, const BroadcastOptions& options) {
  FullState state = share_table(full, comm, options);
  const PlaceOptions place = {options.device, options.cpu_offload};
  Match match;
  std::vector<Bucket> buckets;
  status_step(comm, "broadcast check", [&] {
    match = match_states(state.skeleton, local, options.strict, kHeading);
    buckets = fill_buckets(match.transfers, options.bucket_bytes);
    save_sources(state.tensors, match.transfers, place);
  });
  Elements elements(state.tensors, match.transfers, place);
  move_elements(buckets, match.transfers, elements, comm);
  status_step(comm, "broadcast values", [&] { finish_match(state.skeleton, local, match, options.strict); });
  return std::move(match.report);
}

}  // namespace dcp
