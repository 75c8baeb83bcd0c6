#include "torch_dcp/io/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

[[noreturn]] void throw_system_error(const char* action, std::size_t byte_count, int error_number) {
  DCP_THROW(kIo, "cannot ", action, " ", byte_count,
            " bytes of shared memory: ", std::generic_category().message(error_number));
}

int make_block(std::size_t byte_count) {
  DCP_CHECK(byte_count > 0, kInvalidArgument, "shared memory of 0 bytes");
  DCP_CHECK(byte_count <= static_cast<std::size_t>(std::numeric_limits<off_t>::max()), kInvalidArgument,
            "shared memory of ", byte_count, " bytes");
  const int fd = memfd_create("torch_dcp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw_system_error("make", byte_count, errno);
  return fd;
}

/// Gives every page of the block memory.
void reserve(int fd, std::uint8_t* data, std::size_t byte_count) {
#ifdef MADV_HUGEPAGE
  // Only advice: a system without huge pages for shared memory says so, and gives ordinary ones.
  madvise(data, byte_count, MADV_HUGEPAGE);
#endif
#ifdef MADV_POPULATE_WRITE
  if (madvise(data, byte_count, MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) throw_system_error("reserve", byte_count, errno);
#endif
  // An older kernel: the pages are made behind the mapping.
  const int error_number = posix_fallocate(fd, 0, static_cast<off_t>(byte_count));
  if (error_number != 0) throw_system_error("reserve", byte_count, error_number);
}

}  // namespace

// The delegated constructor has run when the body throws, so that the destructor frees what there is.
SharedMemory::SharedMemory(std::size_t byte_count) : SharedMemory(make_block(byte_count), byte_count) {
  if (ftruncate(fd_, static_cast<off_t>(byte_count)) != 0) throw_system_error("make", byte_count, errno);
  // Another process that maps the block cannot cut it, which would end this one with SIGBUS.
  if (fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw_system_error("seal", byte_count, errno);
  map();
  reserve(fd_, data_, byte_count_);
}

SharedMemory::SharedMemory(int fd, std::size_t byte_count) : byte_count_(byte_count), fd_(fd) {}

SharedMemory SharedMemory::open(int fd, std::size_t byte_count) {
  DCP_CHECK(byte_count > 0, kInvalidArgument, "shared memory of 0 bytes");
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) throw_system_error("open", byte_count, errno);
  SharedMemory memory(own, byte_count);
  struct stat status = {};
  if (fstat(own, &status) != 0) throw_system_error("open", byte_count, errno);
  DCP_CHECK(static_cast<std::uint64_t>(status.st_size) >= byte_count, kInvalidArgument, "a block of ", status.st_size,
            " bytes of shared memory cannot be opened as one of ", byte_count);
  memory.map();
  return memory;
}

void SharedMemory::map() {
  void* const mapped = mmap(nullptr, byte_count_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (mapped == MAP_FAILED) throw_system_error("map", byte_count_, errno);
  data_ = static_cast<std::uint8_t*>(mapped);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      byte_count_(std::exchange(other.byte_count_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this == &other) return *this;
  release();
  data_ = std::exchange(other.data_, nullptr);
  byte_count_ = std::exchange(other.byte_count_, 0);
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

SharedMemory::~SharedMemory() { release(); }

void SharedMemory::release() noexcept {
  if (data_ != nullptr) munmap(data_, byte_count_);
  if (fd_ >= 0) close(fd_);
  data_ = nullptr;
  fd_ = -1;
}

}  // namespace dcp
