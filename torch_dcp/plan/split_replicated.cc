#include <algorithm>
#include <numeric>
#include <optional>

#include "torch_dcp/plan/split_replicated_internal.h"

namespace dcp {
namespace {

/// A holder may write this part of the level more or less than others: it is not worth a cut.
constexpr std::int64_t kSlackParts = 64;
/// Rows of a dimension are small enough if this many make a level.
constexpr std::int64_t kRowsPerLevel = 32;

/// Whether blocks of rows fill every holder from the first on, each to its room. The last takes the rest.
bool fits(std::int64_t row_bytes, std::int64_t chunk_bytes, const std::vector<std::int64_t>& rooms,
          std::int64_t slack) {
  std::int64_t end = 0;
  for (const std::int64_t room : rooms) {
    end += room;
    if (end >= chunk_bytes) return true;
    const std::int64_t over = end % row_bytes;
    if (std::min(over, row_bytes - over) > slack) return false;
  }
  return true;
}

/// The outermost dimension whose rows are small enough or fill the holders' rooms, or the one with the most rows.
std::size_t choose_dim(const ReplicatedChunk& chunk, const std::vector<std::int64_t>& rooms, std::int64_t level) {
  std::size_t most = 0;
  for (std::size_t dim = 0; dim < chunk.box.ndim(); ++dim) {
    const std::int64_t row_bytes = chunk.byte_count / chunk.box.sizes[dim];
    if (row_bytes <= level / kRowsPerLevel) return dim;
    if (fits(row_bytes, chunk.byte_count, rooms, level / kSlackParts)) return dim;
    if (chunk.box.sizes[dim] > chunk.box.sizes[most]) most = dim;
  }
  return most;
}

/// Takes chunks one after the other, from the first row to the last.
class Cutter {
 public:
  explicit Cutter(const std::vector<ReplicatedChunk>& chunks) : chunks_(chunks) {
    for (const ReplicatedChunk& chunk : chunks) bytes_left_ += chunk.byte_count;
  }

  std::int64_t bytes_left() const { return bytes_left_; }

  /// Gives a holder about `room` bytes, everything if there is no limit. Returns how many.
  ///
  /// \param later  The rooms of the holders that come next, for where a chunk is cut.
  std::int64_t fill(std::size_t holder, std::optional<std::int64_t> room, const std::vector<std::int64_t>& later,
                    std::int64_t level) {
    const std::int64_t slack = level / kSlackParts;
    std::int64_t taken = 0;
    while (number_ < chunks_.size()) {
      const std::int64_t rest = chunks_[number_].byte_count - taken_of_chunk();
      if (!room || rest <= *room - taken + slack) {
        taken += take_rest(holder);
        continue;
      }
      if (*room - taken > slack) taken += take_rows(holder, *room - taken, later, level);
      break;
    }
    return taken;
  }

  std::vector<ReplicatedPiece> take_pieces() && { return std::move(pieces_); }

 private:
  const ReplicatedChunk& chunk() const { return chunks_[number_]; }
  std::int64_t row_bytes() const { return chunk().byte_count / chunk().box.sizes[*dim_]; }
  std::int64_t taken_of_chunk() const { return dim_ ? row_ * row_bytes() : 0; }

  std::int64_t take_rest(std::size_t holder) {
    const std::int64_t bytes = chunk().byte_count - taken_of_chunk();
    Box box = chunk().box;
    if (dim_) {
      box.offsets[*dim_] += row_;
      box.sizes[*dim_] -= row_;
    }
    return add(holder, std::move(box), bytes, /*is_end=*/true);
  }

  std::int64_t take_rows(std::size_t holder, std::int64_t room, const std::vector<std::int64_t>& later,
                         std::int64_t level) {
    if (!dim_) {
      if (chunk().box.ndim() == 0) return 0;
      std::vector<std::int64_t> rooms = {room};
      rooms.insert(rooms.end(), later.begin(), later.end());
      dim_ = choose_dim(chunk(), rooms, level);
    }
    const std::int64_t rows_left = chunk().box.sizes[*dim_] - row_;
    const std::int64_t rows = std::min(rows_left, (room + row_bytes() / 2) / row_bytes());
    if (rows == rows_left) return take_rest(holder);
    if (rows == 0) return 0;
    Box box = chunk().box;
    box.offsets[*dim_] += row_;
    box.sizes[*dim_] = rows;
    row_ += rows;
    return add(holder, std::move(box), rows * row_bytes(), /*is_end=*/false);
  }

  std::int64_t add(std::size_t holder, Box box, std::int64_t bytes, bool is_end) {
    pieces_.push_back({number_, holder, std::move(box)});
    bytes_left_ -= bytes;
    if (is_end) {
      ++number_;
      dim_.reset();
      row_ = 0;
    }
    return bytes;
  }

  const std::vector<ReplicatedChunk>& chunks_;
  std::int64_t bytes_left_ = 0;
  std::size_t number_ = 0;          ///< of the chunk to take next
  std::optional<std::size_t> dim_;  ///< that it is cut in, once it is
  std::int64_t row_ = 0;            ///< its first one that is left
  std::vector<ReplicatedPiece> pieces_;
};

}  // namespace

std::vector<ReplicatedPiece> split_replicated(const std::vector<ReplicatedChunk>& chunks,
                                              std::vector<std::int64_t>& loads) {
  // The fullest first: those above the level get nothing, and it is then that of the others alone.
  std::vector<std::size_t> holders(loads.size());
  std::iota(holders.begin(), holders.end(), std::size_t{0});
  std::stable_sort(holders.begin(), holders.end(), [&](std::size_t a, std::size_t b) { return loads[a] > loads[b]; });
  std::int64_t load_left = std::accumulate(loads.begin(), loads.end(), std::int64_t{0});
  Cutter cutter(chunks);
  for (std::size_t i = 0; i < holders.size(); ++i) {
    std::int64_t& load = loads[holders[i]];
    const auto holders_left = static_cast<std::int64_t>(holders.size() - i);
    const std::int64_t level = (cutter.bytes_left() + load_left + holders_left - 1) / holders_left;
    load_left -= load;
    if (holders_left == 1) {
      load += cutter.fill(holders[i], std::nullopt, {}, level);
    } else if (load < level) {
      std::vector<std::int64_t> later;
      for (std::size_t j = i + 1; j < holders.size(); ++j) later.push_back(level - loads[holders[j]]);
      load += cutter.fill(holders[i], level - load, later, level);
    }
  }
  return std::move(cutter).take_pieces();
}

}  // namespace dcp
