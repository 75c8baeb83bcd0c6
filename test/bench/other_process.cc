#include "test/bench/other_process.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace dcp::bench {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 30;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

/// What the process does; other threads' locks may be held in it, so system calls alone.
[[noreturn]] void live(void* memory, std::uint64_t bytes, int ready, int end) {
  std::memset(memory, 7, bytes);
  char text = 'r';
  if (::write(ready, &text, 1) != 1) ::_exit(1);
  while (::read(end, &text, 1) < 0 && errno == EINTR) {
  }
  ::_exit(0);
}

}  // namespace

OtherProcess::OtherProcess(std::uint64_t bytes) : bytes_(bytes) {
  // At the same place in both; the pages are the other's alone, since only it writes to them.
  memory_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory_ == MAP_FAILED) fail("cannot map memory");
  std::array<int, 2> ready{};
  std::array<int, 2> end{};
  if (::pipe(ready.data()) != 0 || ::pipe(end.data()) != 0) fail("cannot make a pipe");
  id_ = ::fork();
  if (id_ < 0) fail("cannot start a process");
  if (id_ == 0) {
    ::close(end[1]);
    live(memory_, bytes, ready[1], end[0]);
  }
  ::close(ready[1]);
  ::close(end[0]);
  end_ = end[1];
  char text = 0;
  const bool is_ready = ::read(ready[0], &text, 1) == 1;
  ::close(ready[0]);
  if (!is_ready) fail("the other process has ended");
}

OtherProcess::~OtherProcess() {
  ::close(end_);
  ::waitpid(id_, nullptr, 0);
  ::munmap(memory_, bytes_);
}

bool OtherProcess::can_be_read() const {
  Bytes byte(1);
  iovec here{byte.data(), 1};
  iovec there{memory_, 1};
  return ::process_vm_readv(id_, &here, 1, &there, 1, 0) == 1;
}

void OtherProcess::read(std::uint64_t offset, MutableByteSpan out) const {
  for (std::uint64_t done = 0; done < out.size();) {
    iovec here{out.data() + done, std::min(kPieceBytes, out.size() - done)};
    iovec there{static_cast<std::uint8_t*>(memory_) + offset + done, here.iov_len};
    const ssize_t count = ::process_vm_readv(id_, &here, 1, &there, 1, 0);
    if (count <= 0) fail("cannot read another process's memory");
    done += static_cast<std::uint64_t>(count);
  }
}

}  // namespace dcp::bench
