#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

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

/// A destination of one box of the stored tensor `t`.
StateDict make_destination(std::int64_t all_rows, Sizes begin, Sizes sizes) {
  const at::Tensor part = at::empty(sizes, at::kFloat);
  return {{"t", ShardedTensor({all_rows, kColumns}, at::kFloat, {{part, std::move(begin)}})}};
}

double read_amplification(const std::string& folder, std::int64_t all_rows, const Sizes& begin, const Sizes& sizes) {
  const auto files = std::make_shared<CountingFiles>();
  FileSystemReaderOptions options;
  options.file_system = files;
  FileSystemReader reader(folder, options);
  StateDict state = make_destination(all_rows, begin, sizes);
  load(state, reader);
  return static_cast<double>(files->bytes()) / static_cast<double>(sizes[0] * sizes[1] * 4);
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
  StateDict destination = make_destination(rows, {row, 0}, {1, kColumns});
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
              read_amplification(folder, rows, {row, 0}, {1, kColumns}));
  report.bound("a quarter of the rows: bytes read / needed",
               read_amplification(folder, rows, {rows / 4, 0}, {rows / 4, kColumns}), 1.05);
  report.bound("half of the columns: bytes read / needed",
               read_amplification(folder, rows, {0, kColumns / 4}, {rows, kColumns / 2}), 1.05);
  remove_and_settle(folder);
}

}  // namespace dcp::bench
