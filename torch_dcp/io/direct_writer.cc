#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/io/direct_writer_internal.h"
#include "torch_dcp/io/io_internal.h"

namespace dcp {
namespace {

/// The file system says itself what it needs: others, such as one in memory, would only copy the bytes once more.
bool takes_direct_writes(int descriptor) {
#if defined(STATX_DIOALIGN)
  struct statx status{};
  if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0) return false;
  return (status.stx_mask & STATX_DIOALIGN) != 0 && status.stx_dio_offset_align != 0 &&
         DirectWriter::kAlignment % status.stx_dio_offset_align == 0 && status.stx_dio_mem_align != 0 &&
         DirectWriter::kAlignment % status.stx_dio_mem_align == 0;
#else
  return false;
#endif
}

/// Whether files may have this size: the signal that reaching beyond sends ends the process.
bool is_within_limit(std::uint64_t size) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || size <= limit.rlim_cur);
}

bool set_direct(int descriptor, bool is_direct) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  return flags >= 0 && ::fcntl(descriptor, F_SETFL, is_direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

}  // namespace

void DirectWriter::FreeMemory::operator()(std::uint8_t* memory) const { std::free(memory); }

DirectWriter::DirectWriter(int descriptor, const std::string& path, std::uint64_t size)
    : descriptor_(descriptor), path_(path), submitted_(size), allocated_(size) {}

std::unique_ptr<DirectWriter> DirectWriter::start(int descriptor, const std::string& path, std::uint64_t size) {
  if (size % kAlignment != 0 || !takes_direct_writes(descriptor)) return nullptr;
  std::unique_ptr<DirectWriter> writer(new DirectWriter(descriptor, path, size));
  // Where the call is forbidden, or too many are in use, the page cache does it.
  if (::syscall(SYS_io_setup, kBlocks, &writer->context_) != 0) return nullptr;
  return set_direct(descriptor, true) ? std::move(writer) : nullptr;
}

DirectWriter::~DirectWriter() {
  if (context_ != 0) ::syscall(SYS_io_destroy, context_);
}

std::uint8_t* DirectWriter::memory() {
  Block& block = blocks_[current_];
  if (!block.memory) {
    block.memory.reset(static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, kBlockBytes)));
    DCP_CHECK(block.memory, kIo, "out of memory while writing \"", path_, "\"");
  }
  return block.memory.get();
}

void DirectWriter::append(ByteSpan bytes) {
  while (!bytes.empty()) {
    while (blocks_[current_].is_under_way) wait_for_one();
    const std::size_t take = std::min(bytes.size(), kBlockBytes - filled_);
    std::memcpy(memory() + filled_, bytes.data(), take);
    filled_ += take;
    bytes = bytes.subspan(take);
    if (filled_ == kBlockBytes) submit();
  }
}

void DirectWriter::submit() {
  make_room(submitted_ + kBlockBytes);
  Block& block = blocks_[current_];
  block.request = {};
  block.request.aio_data = current_;
  block.request.aio_lio_opcode = IOCB_CMD_PWRITE;
  block.request.aio_fildes = static_cast<std::uint32_t>(descriptor_);
  block.request.aio_buf = reinterpret_cast<std::uint64_t>(block.memory.get());
  block.request.aio_nbytes = kBlockBytes;
  block.request.aio_offset = static_cast<std::int64_t>(submitted_);
  iocb* request = &block.request;
  long taken = 0;
  do {
    taken = ::syscall(SYS_io_submit, context_, 1, &request);
  } while (taken < 0 && errno == EINTR);
  if (taken == 1) {
    block.is_under_way = true;
  } else {
    // Whatever the reason is, the plain call says it better, or does it.
    write_now(block.memory.get(), kBlockBytes, submitted_);
  }
  submitted_ += kBlockBytes;
  current_ = (current_ + 1) % kBlocks;
  filled_ = 0;
}

void DirectWriter::wait_for_one() {
  io_event event{};
  long count = 0;
  do {
    count = ::syscall(SYS_io_getevents, context_, 1, 1, &event, nullptr);
  } while (count < 0 && errno == EINTR);
  if (count != 1) throw_io_error("wait for writes to", path_, errno);
  Block& block = blocks_[event.data];
  block.is_under_way = false;
  const auto offset = static_cast<std::uint64_t>(block.request.aio_offset);
  // Refused as direct, such as the part of it up to a limit: the plain call does it, or says why not.
  if (event.res == -EINVAL) return write_now(block.memory.get(), kBlockBytes, offset);
  if (event.res < 0) throw_io_error(c10::str("write at offset ", offset, " of"), path_, static_cast<int>(-event.res));
  // The rest must begin where direct writes can.
  const std::size_t written = static_cast<std::size_t>(event.res) / kAlignment * kAlignment;
  if (written < kBlockBytes) write_now(block.memory.get() + written, kBlockBytes - written, offset + written);
}

void DirectWriter::make_room(std::uint64_t end) {
  if (!can_allocate_ || end <= allocated_) return;
  can_allocate_ = is_within_limit(allocated_ + kStepBytes) &&
                  ::fallocate(descriptor_, 0, static_cast<off_t>(allocated_), static_cast<off_t>(kStepBytes)) == 0;
  if (can_allocate_) {
    allocated_ += kStepBytes;
    return;
  }
  // Not every file system has it; and where a whole step does not fit, the bytes themselves may, if what the failed
  // call took is given back. Everything under way ends before.
  if (::ftruncate(descriptor_, static_cast<off_t>(allocated_)) != 0) throw_io_error("cut", path_, errno);
}

void DirectWriter::write_now(const std::uint8_t* bytes, std::size_t count, std::uint64_t offset) {
  while (count > 0) {
    const ssize_t written = ::pwrite(descriptor_, bytes, count, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EINVAL && std::exchange(is_direct_, false) && set_direct(descriptor_, false)) continue;
    if (written < 0) throw_io_error(c10::str("write at offset ", offset, " of"), path_, errno);
    if (written == 0) throw_io_error("write to", path_, "the system took no byte");
    bytes += written;
    count -= static_cast<std::size_t>(written);
    offset += static_cast<std::uint64_t>(written);
  }
}

void DirectWriter::finish() {
  for (const Block& block : blocks_) {
    while (block.is_under_way) wait_for_one();
  }
  // The last bytes are no whole block.
  if (!set_direct(descriptor_, false)) throw_io_error("end direct writes to", path_, errno);
  if (filled_ > 0) write_now(blocks_[current_].memory.get(), filled_, submitted_);
  const std::uint64_t size = submitted_ + filled_;
  if (allocated_ > size && ::ftruncate(descriptor_, static_cast<off_t>(size)) != 0) {
    throw_io_error("cut", path_, errno);
  }
  if (::lseek(descriptor_, static_cast<off_t>(size), SEEK_SET) < 0) throw_io_error("move in", path_, errno);
}

}  // namespace dcp
