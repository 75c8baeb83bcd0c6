#include <algorithm>
#include <cstring>

#include "torch_dcp/storage/region_reader_internal.h"

namespace dcp {
namespace {

/// A run that is so large beside the largest hole is worth a call of its own, unless the hole is small beside the run:
/// what large runs read too much stays below 1 / 32 of what is wanted.
constexpr std::int64_t kHolePerLargeRun = 4;
constexpr std::int64_t kRunBytesPerHoleByte = 32;
/// What runs read at once may span.
constexpr std::int64_t kMaxSpanBytes = std::int64_t{4} << 20;

/// Consecutive bytes of the file that are wanted.
struct Run {
  std::int64_t position;
  std::int64_t bytes;
  std::int64_t end() const { return position + bytes; }
};

/// Walks the runs of a region in file order.
class RunWalker {
 public:
  explicit RunWalker(const FileRegion& region) : region_(region), strides_(region.sizes.size()) {
    std::int64_t stride = region.element_bytes;
    for (std::size_t d = region.sizes.size(); d-- > 0;) {
      strides_[d] = stride;
      stride *= region.sizes[d];
    }
    run_dim_ = region.sizes.size();
    run_bytes_ = region.element_bytes;
    // A dimension joins the run as long as all dimensions inside it are wanted whole.
    while (run_dim_ > 0) {
      --run_dim_;
      run_bytes_ = region.lengths[run_dim_] * strides_[run_dim_];
      if (region.lengths[run_dim_] != region.sizes[run_dim_]) break;
    }
    place_.assign(run_dim_, 0);
  }

  bool next(Run& run) {
    if (is_done_) return false;
    std::int64_t position = region_.position;
    for (std::size_t d = 0; d < region_.sizes.size(); ++d) {
      position += (region_.begin[d] + (d < run_dim_ ? place_[d] : 0)) * strides_[d];
    }
    run = {position, run_bytes_};
    std::size_t d = run_dim_;
    while (d > 0 && ++place_[d - 1] == region_.lengths[d - 1]) place_[--d] = 0;
    is_done_ = d == 0;
    return true;
  }

 private:
  const FileRegion& region_;
  std::vector<std::int64_t> strides_;  // in bytes
  std::vector<std::int64_t> place_;
  std::size_t run_dim_ = 0;
  std::int64_t run_bytes_ = 0;
  bool is_done_ = false;
};

/// Whether the bytes between a run and the next one are read along.
bool reads_over(std::int64_t hole_bytes, std::int64_t run_bytes, std::int64_t max_hole_bytes) {
  const bool is_small_run = run_bytes < max_hole_bytes / kHolePerLargeRun;
  return hole_bytes <= max_hole_bytes && (is_small_run || hole_bytes <= run_bytes / kRunBytesPerHoleByte);
}

void read_runs(const RandomAccessFile& file, const std::vector<Run>& runs, Bytes& scratch, std::uint8_t* out) {
  const std::int64_t begin = runs.front().position;
  if (runs.size() == 1) {
    file.read_at(static_cast<std::uint64_t>(begin), {out, static_cast<std::size_t>(runs.front().bytes)});
    return;
  }
  scratch.resize(static_cast<std::size_t>(runs.back().end() - begin));
  file.read_at(static_cast<std::uint64_t>(begin), scratch);
  for (const Run& run : runs) {
    std::memcpy(out, scratch.data() + (run.position - begin), static_cast<std::size_t>(run.bytes));
    out += run.bytes;
  }
}

}  // namespace

void read_region(const RandomAccessFile& file, const FileRegion& region, MutableByteSpan out,
                 std::int64_t max_hole_bytes) {
  RunWalker walker(region);
  std::vector<Run> group;
  std::int64_t group_bytes = 0;
  Bytes scratch;
  std::uint8_t* to = out.data();
  const auto flush = [&] {
    if (group.empty()) return;
    read_runs(file, group, scratch, to);
    to += group_bytes;
    group.clear();
    group_bytes = 0;
  };
  for (Run run{}; walker.next(run);) {
    if (!group.empty() && (!reads_over(run.position - group.back().end(), run.bytes, max_hole_bytes) ||
                           run.end() - group.front().position > kMaxSpanBytes)) {
      flush();
    }
    group.push_back(run);
    group_bytes += run.bytes;
  }
  flush();
}

}  // namespace dcp
