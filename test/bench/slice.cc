#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test/bench/contests.h"
#include "test/bench/raw_io.h"
#include "test/bench/subjects.h"
#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/storage/filesystem_reader.h"

namespace dcp::bench {
namespace {

constexpr std::int64_t kColumns = 1024;
constexpr std::int64_t kRowBytes = kColumns * 4;

/// Counts what is read of data files.
class CountingFiles : public FileSystemWrapper {
 public:
  CountingFiles() : FileSystemWrapper(local_file_system()) {}

  std::unique_ptr<RandomAccessFile> open_file(const std::string& path, Links links) override {
    std::unique_ptr<RandomAccessFile> file = base().open_file(path, links);
    if (!path.ends_with(".distcp")) return file;
    return std::make_unique<CountingFile>(std::move(file), bytes_);
  }

  std::uint64_t bytes() const { return bytes_; }

 private:
  class CountingFile : public RandomAccessFile {
   public:
    CountingFile(std::unique_ptr<RandomAccessFile> file, std::atomic<std::uint64_t>& bytes)
        : file_(std::move(file)), bytes_(bytes) {}
    std::uint64_t size() const override { return file_->size(); }
    void read_at(std::uint64_t offset, MutableByteSpan out) const override {
      bytes_ += out.size();
      file_->read_at(offset, out);
    }

   private:
    std::unique_ptr<RandomAccessFile> file_;
    std::atomic<std::uint64_t>& bytes_;
  };

  std::atomic<std::uint64_t> bytes_ = 0;
};

/// Boxes of a tensor `t` of `all_rows` that this process holds or wants.
StateDict make_boxes(std::int64_t all_rows, const std::vector<Box>& boxes) {
  std::vector<Shard> shards;
  for (const Box& box : boxes) shards.push_back({at::empty(box.sizes, at::kFloat), box.offsets});
  return {{"t", ShardedTensor({all_rows, kColumns}, at::kFloat, std::move(shards))}};
}

/// Bytes of data files read for one of the elements' bytes, by as many processes as there are boxes, one after the
/// other.
double read_amplification(const std::string& folder, std::int64_t all_rows, const std::vector<Box>& boxes) {
  const auto files = std::make_shared<CountingFiles>();
  std::int64_t needed = 0;
  for (const Box& box : boxes) {
    FileSystemReaderOptions options;
    options.file_system = files;
    FileSystemReader reader(folder, options);
    StateDict state = make_boxes(all_rows, {box});
    load(state, reader);
    needed += box.sizes[0] * box.sizes[1] * 4;
  }
  return static_cast<double>(files->bytes()) / static_cast<double>(needed);
}

/// The whole cut along `dim` by the chunk rule.
std::vector<Box> cut(std::int64_t all_rows, std::size_t dim, std::int64_t parts) {
  std::vector<Box> boxes;
  const Sizes all{all_rows, kColumns};
  const std::int64_t each = (all[dim] + parts - 1) / parts;
  for (std::int64_t begin = 0; begin < all[dim]; begin += each) {
    Box box{{0, 0}, all};
    box.offsets[dim] = begin;
    box.sizes[dim] = std::min(each, all[dim] - begin);
    boxes.push_back(std::move(box));
  }
  return boxes;
}

void measure_resharding(const std::string& folder, std::int64_t rows, Report& report) {
  for (const std::size_t dim : {std::size_t{0}, std::size_t{1}}) {
    save_ours(make_boxes(rows, cut(rows, dim, 4)), folder, {true, true, 1});
    const double amplification = read_amplification(folder, rows, cut(rows, dim, 3));
    const std::string what = c10::str("resharding 4 to 3 along dimension ", dim, ": bytes read / needed");
    if (dim == 0) {
      report.bound(what, amplification, 1.05);
    } else {
      // Runs of a few hundred bytes: the holes between them are read along, since a call for each takes longer.
      report.note(what, amplification);
    }
    remove_and_settle(folder);
  }
}

}  // namespace

void measure_slice(const Settings& settings, PythonPeer* python, Report& report) {
  const std::int64_t rows = settings.slice_tensor_bytes / kRowBytes;
  const std::string folder = settings.disk + "/slice";
  {
    StateDict state = make_state(1, rows * kRowBytes, 5);
    save_ours({{"t", state["t00000"].as_tensor().view({rows, kColumns})}}, folder, {true, true, 1});
  }
  const std::int64_t row = rows / 2;
  StateDict destination = make_boxes(rows, {{{row, 0}, {1, kColumns}}});
  Contest contest("one row of 4 KiB of a large tensor");
  contest.add("torch_dcp", [&] { return load_ours(destination, folder, true, 1); });
  if (python) {
    contest.add("Python DCP", [&] {
      return python->seconds(
          {{"do", "load_rows"}, {"path", folder}, {"key", "t"}, {"row", row}, {"rows", 1}, {"columns", kColumns}});
    });
  }
  contest.run(settings.rounds);
  report.add(contest, 0, "");
  report.ratio("4 KiB slice: Python DCP / torch_dcp", contest.find("Python DCP"), contest.find("torch_dcp"), 100);
  report.note("bytes read per byte of a 4 KiB slice, the item's frame included",
              read_amplification(folder, rows, {{{row, 0}, {1, kColumns}}}));
  report.bound("a quarter of the rows: bytes read / needed",
               read_amplification(folder, rows, {{{rows / 4, 0}, {rows / 4, kColumns}}}), 1.05);
  report.bound("half of the columns: bytes read / needed",
               read_amplification(folder, rows, {{{0, kColumns / 4}, {rows, kColumns / 2}}}), 1.05);
  remove_and_settle(folder);
  measure_resharding(settings.disk + "/reshard", rows, report);
}

}  // namespace dcp::bench
