#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/io/file_system.h"

// The zip of one item. All positions count from the item's first byte.

namespace dcp::zip {

/// One member, its local header checked against the directory.
struct Member {
  std::string name;  ///< below the archive's top folder: "data.pkl", "data/0"
  std::int64_t data_position = 0;
  std::int64_t compressed_bytes = 0;
  std::int64_t bytes = 0;
  std::uint32_t crc32 = 0;  ///< 0: not recorded
  bool is_deflated = false;
};

/// The members of an archive, all under one top folder.
struct Archive {
  std::string folder;           ///< such as "archive"
  std::vector<Member> members;  ///< sorted by name

  const Member* find(std::string_view name) const;
  /// \throws dcp::Error kCorruptData if there is none.
  const Member& at(std::string_view name) const;
};

/// Reads the directory of the archive at [offset, offset + length) of `file` as torch.load does, but checks more:
/// end records, zip64 forms, names unique and under one folder, positions inside the item and not
/// overlapping, local headers that agree, methods stored and deflate only, nothing encrypted.
///
/// \throws dcp::Error kCorruptData, kUnsupported, with the position.
Archive read_archive(const RandomAccessFile& file, std::int64_t offset, std::int64_t length, const ParseLimits& limits);

/// Reads a member, inflated if needed, and checks its CRC-32.
///
/// \param max_bytes  A larger member is refused before anything is allocated.
Bytes read_member(const RandomAccessFile& file, std::int64_t item_offset, const Member& member, std::int64_t max_bytes);

/// Reads all of a member, inflated if needed, and checks its CRC-32. Takes 1 MiB of memory however large it is.
///
/// \param on_read  Told how many bytes of the file have been read since the last call; may be empty.
/// \throws dcp::Error as read_member.
void check_member(const RandomAccessFile& file, std::int64_t item_offset, const Member& member,
                  const std::function<void(std::int64_t)>& on_read = {});

/// Reads a member straight into `out`, which has its bytes.
///
/// \param verify_checksum  Checks the CRC-32 if one is recorded.
void read_member_into(const RandomAccessFile& file, std::int64_t item_offset, const Member& member, MutableByteSpan out,
                      bool verify_checksum = true);

/// Checks the members that say how to read the others: `version` (or `.data/version`) must be 1 to 10; `byteorder`,
/// if it is there, "little" or "big". Returns whether the numbers in storages are big-endian.
///
/// \throws dcp::Error kCorruptData, kUnsupported.
bool read_is_big_endian(const RandomAccessFile& file, std::int64_t item_offset, const Archive& archive);

/// An item seen as a file of its own, its first and last bytes read ahead (all of a small item), so that
/// opening an archive takes one or two reads. Safe to use from many threads if `file` is. Borrows `file`.
class ItemWindow : public RandomAccessFile {
 public:
  static constexpr std::int64_t kWholeBytes = 16 * 1024;  ///< an item up to this size is read whole
  static constexpr std::int64_t kHeadBytes = 2 * 1024;
  static constexpr std::int64_t kTailBytes = 4 * 1024;

  /// \throws dcp::Error kCorruptData if the range is not inside the file.
  ItemWindow(const RandomAccessFile& file, std::int64_t offset, std::int64_t length);

  std::uint64_t size() const override { return static_cast<std::uint64_t>(length_); }
  void read_at(std::uint64_t offset, MutableByteSpan out) const override;

 private:
  const RandomAccessFile& file_;
  std::int64_t offset_;
  std::int64_t length_;
  Bytes head_;  // all of it for a small item
  Bytes tail_;
};

/// What follows the data of an archive's one streamed member: made once (`Writer::finish_streamed`), and then for any
/// CRC-32 of such data. Making it anew for each of many small archives would take most of the time.
class ClosingPart {
 public:
  std::size_t size() const { return bytes_.size(); }

  /// The bytes for data of this CRC-32; valid until the next call.
  ByteSpan with(std::uint32_t crc32);

  /// If `bytes` are this part for some CRC-32, with any serialization id: that CRC-32; else nothing.
  std::optional<std::uint32_t> match(ByteSpan bytes) const;

 private:
  friend class Writer;

  /// Bytes that are not always the same.
  struct Gap {
    std::size_t position;
    std::size_t bytes;
  };

  Bytes bytes_;
  std::vector<Gap> gaps_;               // in order
  std::vector<std::size_t> data_crcs_;  // where the data's CRC-32 stands
  std::vector<std::size_t> id_crcs_;    // where the serialization id's does
  std::size_t id_position_ = 0;
  std::vector<std::uint32_t> sums_;  // of all members before the id
  std::size_t streamed_ = 0;         // the number of the streamed one among them
};

/// Builds a stored archive in memory as torch.save does: members in the order of the calls, data aligned to 64 bytes.
///
/// PyTorch's order: "data.pkl", `add_format_members`, "data/0" and so on, `add_closing_members`, `finish`.
class Writer {
 public:
  /// Only counts the bytes and members of the calls up to `take_head`, which returns nothing: for
  /// whoever has written them already and comes back for the rest.
  void pass_over_head() { is_passing_over_ = true; }

  /// Adds a whole member below the folder "archive".
  void add(std::string_view name, ByteSpan data);
  /// Adds `.format_version`, `.storage_alignment` and `byteorder`.
  void add_format_members();
  /// Adds `version` and `.data/serialization_id`, 40 digits made of the names and CRCs of all members before.
  void add_closing_members();

  /// Adds a member whose data the caller writes itself: `take_head` gives everything before them, and positions go on
  /// after `byte_count` bytes of data.
  void begin_streamed(std::string_view name, std::int64_t byte_count);
  Bytes take_head();
  void end_streamed(std::uint32_t crc32);
  /// `end_streamed`, `add_closing_members` and `finish` at once, for any CRC-32.
  ClosingPart finish_streamed();

  /// Ends the archive; returns what has not been taken yet.
  Bytes finish();

 private:
  struct Entry {
    std::string name;
    std::int64_t header_position = 0;
    std::int64_t bytes = 0;
    std::uint32_t crc32 = 0;
    // Where it is written; 0 while it is not.
    std::int64_t descriptor_crc = 0;
    std::int64_t directory_crc = 0;
  };
  void begin_member(std::string_view name, std::int64_t byte_count);
  void data_descriptor(Entry& entry);
  void directory_record(Entry& entry);
  void end_records(std::int64_t directory_position);
  std::string serialization_id() const;

  std::int64_t position() const { return taken_bytes_ + static_cast<std::int64_t>(out_.size()); }

  Bytes out_;
  std::int64_t taken_bytes_ = 0;  // of the item, before out_
  bool is_passing_over_ = false;
  std::vector<Entry> entries_;
};

/// The size of the archive that Writer makes of members of these names and sizes.
std::int64_t archive_bytes(std::initializer_list<std::pair<std::string_view, std::int64_t>> members);

}  // namespace dcp::zip
