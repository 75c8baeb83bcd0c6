#include <algorithm>
#include <cstring>
#include <vector>

#include "torch_dcp/memory/memory_file_internal.h"

namespace dcp {

MemoryFile::MemoryFile(std::shared_ptr<const void> holder, Stretches stretches, std::uint64_t size, std::string name)
    : holder_(std::move(holder)), stretches_(std::move(stretches)), size_(size), name_(std::move(name)) {}

void MemoryFile::read_at(std::uint64_t offset, MutableByteSpan out) const {
  DCP_CHECK(offset <= size_ && out.size() <= size_ - offset, kCorruptData, "'", name_, "' in memory has ", size_,
            " bytes, wanted are ", out.size(), " from ", offset, " on");
  while (!out.empty()) {
    const MutableByteSpan piece = stretches_.at(offset, out.size());
    std::memcpy(out.data(), piece.data(), piece.size());
    offset += piece.size();
    out = out.subspan(piece.size());
  }
}

MutableByteSpan MemoryFileWriter::room(std::uint64_t wanted) {
  check_is_open();
  wanted = std::max<std::uint64_t>(wanted, 1);
  room_ = 0;
  if (size_ == stretches_.capacity()) {
    try {
      for (const MutableByteSpan bytes : grow(wanted)) stretches_.push_back(bytes);
    } catch (Error& error) {
      error.add_context(c10::str("while '", name_, "' of generation ", generation_, " is put into memory"));
      throw;
    }
  }
  const MutableByteSpan bytes = stretches_.at(size_, wanted);
  room_ = bytes.size();
  return bytes;
}

void MemoryFileWriter::advance(std::uint64_t byte_count) {
  DCP_CHECK(byte_count <= room_, kInvalidArgument, "'", name_, "' cannot grow by ", byte_count, " bytes in a room of ",
            room_);
  size_ += byte_count;
  room_ -= byte_count;
}

MutableByteSpan MemoryFileWriter::piece(std::uint64_t offset, std::uint64_t wanted) {
  DCP_CHECK(offset < size_, kInvalidArgument, "'", name_, "' has ", size_, " bytes, none at ", offset);
  return stretches_.at(offset, std::min(wanted, size_ - offset));
}

void MemoryFileWriter::seal(const std::string& note) {
  check_is_open();
  finish(size_, note);
  is_sealed_ = true;
  room_ = 0;
}

}  // namespace dcp
