#pragma once

#include <linux/aio_abi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "torch_dcp/base/bytes.h"

namespace dcp {

/// Writes the bytes of a new file past the page cache, several blocks under way at a time, from buffers of 8 MiB.
///
/// A disk takes them faster so: nothing waits for the system's own write-back, which slows down everybody who has
/// written much, and no memory is taken from what others have cached. Bytes that are not a whole block yet are held
/// back until `finish`.
///
/// After an exception only destruction is left. Thread safety: none.
class DirectWriter {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{2} << 20;
  /// What the file's size must be a multiple of when this begins.
  static constexpr std::uint64_t kAlignment = 4096;

  /// Null where the file system, or the system, has no such writes.
  ///
  /// \param descriptor  Of the file, open for writing; borrowed.
  /// \param size        Of the file now, a multiple of kAlignment; the bytes go on from there.
  static std::unique_ptr<DirectWriter> start(int descriptor, const std::string& path, std::uint64_t size);

  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;
  /// Waits for what is under way.
  ~DirectWriter();

  /// \throws dcp::Error kIo, also for bytes of an earlier call.
  void append(ByteSpan bytes);

  /// Writes what was held back and waits for all. The descriptor is an ordinary one then, at the end of the file.
  void finish();

 private:
  static constexpr std::size_t kBlocks = 4;
  /// The file grows in steps of this, which lets the system write several blocks of it at a time.
  static constexpr std::uint64_t kStepBytes = std::uint64_t{64} << 20;

  struct FreeMemory {
    void operator()(std::uint8_t* memory) const;
  };
  struct Block {
    std::unique_ptr<std::uint8_t, FreeMemory> memory;
    iocb request{};
    bool is_under_way = false;
  };

  DirectWriter(int descriptor, const std::string& path, std::uint64_t size);

  std::uint8_t* memory();  ///< of the block that is being filled
  void submit();
  void wait_for_one();
  void make_room(std::uint64_t end);
  void write_now(const std::uint8_t* bytes, std::size_t count, std::uint64_t offset);

  int descriptor_;
  std::string path_;
  aio_context_t context_ = 0;
  std::array<Block, kBlocks> blocks_;
  std::size_t current_ = 0;
  std::size_t filled_ = 0;       ///< of the current block
  std::uint64_t submitted_ = 0;  ///< the file's bytes up to here have been handed over
  std::uint64_t allocated_ = 0;  ///< the file's size as the system knows it
  bool can_allocate_ = true;
  bool is_direct_ = true;
};

}  // namespace dcp
