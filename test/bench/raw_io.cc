#include "test/bench/raw_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "test/bench/timing.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/base/thread_pool.h"
#include "torch_dcp/format/crc32.h"

namespace dcp::bench {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{8} << 20;
constexpr std::size_t kAlignment = 4096;

void check(bool is_fine, const char* what, const std::string& path) {
  DCP_CHECK(is_fine, kIo, what, " ", path, ": ", std::strerror(errno));
}

class File {
 public:
  File(const std::string& path, int flags) : path_(path), number_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    check(number_ >= 0, "open", path);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { ::close(number_); }

  int number() const { return number_; }

  void write(const std::uint8_t* bytes, std::size_t count) {
    while (count > 0) {
      const ssize_t done = ::write(number_, bytes, count);
      check(done > 0, "write", path_);
      bytes += done;
      count -= static_cast<std::size_t>(done);
    }
  }

  void read(MutableByteSpan out) {
    while (!out.empty()) {
      const ssize_t done = ::read(number_, out.data(), out.size());
      check(done > 0, "read", path_);
      out = out.subspan(static_cast<std::size_t>(done));
    }
  }

  void sync() { check(::fsync(number_) == 0, "sync", path_); }

 private:
  std::string path_;
  int number_;
};

bool is_direct(RawWrite how) { return how == RawWrite::kDirect || how == RawWrite::kAllocatedDirect; }
bool is_allocated(RawWrite how) { return how == RawWrite::kAllocatedEarly || how == RawWrite::kAllocatedDirect; }
bool is_early(RawWrite how) { return how == RawWrite::kEarly || how == RawWrite::kAllocatedEarly; }

std::string file_of(const std::string& folder, std::size_t thread) { return c10::str(folder, "/raw_", thread); }

/// Part `i` is written and read by thread `i % threads`.
template <typename Span>
std::size_t bytes_of(const std::vector<Span>& parts, std::size_t thread, std::size_t threads) {
  std::size_t total = 0;
  for (std::size_t i = thread; i < parts.size(); i += threads) total += parts[i].size();
  return total;
}

void write_direct(File& file, std::size_t total) {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  const std::unique_ptr<void, Free> buffer(std::aligned_alloc(kAlignment, kPieceBytes));
  DCP_CHECK(buffer, kIo, "out of memory");
  std::memset(buffer.get(), 0x5a, kPieceBytes);
  for (std::size_t done = 0; done < total; done += kPieceBytes) {
    const std::size_t take = std::min(kPieceBytes, total - done);
    file.write(static_cast<const std::uint8_t*>(buffer.get()), (take + kAlignment - 1) / kAlignment * kAlignment);
  }
}

void write_file(const std::string& path, const std::vector<ByteSpan>& parts, std::size_t thread, std::size_t threads,
                RawWrite how) {
  File file(path, O_WRONLY | O_CREAT | O_EXCL | (is_direct(how) ? O_DIRECT : 0));
  const std::size_t total = bytes_of(parts, thread, threads);
  if (is_allocated(how)) check(::fallocate(file.number(), 0, 0, static_cast<off_t>(total)) == 0, "allocate", path);
  if (is_direct(how)) {
    write_direct(file, total);
  } else {
    std::size_t done = 0;
    std::size_t started = 0;
    for (std::size_t i = thread; i < parts.size(); i += threads) {
      for (ByteSpan rest = parts[i]; !rest.empty();) {
        const ByteSpan piece = rest.first(std::min(rest.size(), kPieceBytes));
        rest = rest.subspan(piece.size());
        file.write(piece.data(), piece.size());
        done += piece.size();
        if (!is_early(how) || done - started < kPieceBytes) continue;
        ::sync_file_range(file.number(), static_cast<off64_t>(started), static_cast<off64_t>(done - started),
                          SYNC_FILE_RANGE_WRITE);
        started = done;
      }
    }
  }
  if (how != RawWrite::kPageCache) file.sync();
}

}  // namespace

double raw_write(const std::string& folder, const std::vector<ByteSpan>& parts, std::size_t threads, RawWrite how) {
  return seconds_of([&] {
    std::filesystem::create_directories(folder);
    run_parallel(threads, threads, [&](std::size_t t) { write_file(file_of(folder, t), parts, t, threads, how); });
    if (how != RawWrite::kPageCache) File(folder, O_RDONLY | O_DIRECTORY).sync();
  });
}

bool has_direct_writes(const std::string& folder) {
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/direct_probe";
  const int number = ::open(path.c_str(), O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0666);
  if (number >= 0) ::close(number);
  std::filesystem::remove(path);
  return number >= 0;
}

double raw_read(const std::string& folder, const std::vector<MutableByteSpan>& parts, std::size_t threads) {
  return seconds_of([&] {
    run_parallel(threads, threads, [&](std::size_t thread) {
      File file(file_of(folder, thread), O_RDONLY);
      for (std::size_t i = thread; i < parts.size(); i += threads) file.read(parts[i]);
    });
  });
}

double raw_copy(const std::vector<ByteSpan>& from, const std::vector<MutableByteSpan>& to, std::size_t threads) {
  return seconds_of([&] {
    run_parallel(threads, from.size(),
                 [&](std::size_t i) { std::memcpy(to[i].data(), from[i].data(), from[i].size()); });
  });
}

double raw_crc32(const std::vector<ByteSpan>& parts, std::size_t threads) {
  std::vector<std::uint32_t> sums(parts.size());
  return seconds_of([&] { run_parallel(threads, parts.size(), [&](std::size_t i) { sums[i] = crc32_of(parts[i]); }); });
}

void drop_from_cache(const std::string& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    File file(entry.path(), O_RDONLY);
    file.sync();
    const int error_number = ::posix_fadvise(file.number(), 0, 0, POSIX_FADV_DONTNEED);
    DCP_CHECK(error_number == 0, kIo, "cannot drop ", entry.path().string(), ": ", std::strerror(error_number));
  }
}

void remove_and_settle(const std::string& folder) {
  std::filesystem::remove_all(folder);
  const std::string above = std::filesystem::path(folder).parent_path();
  std::filesystem::create_directories(above);
  File file(above, O_RDONLY | O_DIRECTORY);
  check(::syncfs(file.number()) == 0, "sync the file system of", above);
}

}  // namespace dcp::bench
