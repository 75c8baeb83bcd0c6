// The content of members: inflated, checked, and the two small ones that say how to read the rest.

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/format/zip_internal.h"

namespace dcp::zip {
namespace {

constexpr std::int64_t kChunkBytes = 64 * 1024;
// Small enough that the bytes are still in the cache for the checksum.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

// Inflates a member part by part into exactly the bytes it is said to have.
class Inflater {
 public:
  Inflater(const RandomAccessFile& file, std::int64_t item_offset, const Member& member)
      : file_(file), item_offset_(item_offset), member_(member) {
    DCP_CHECK(inflateInit2(&stream_, -MAX_WBITS) == Z_OK, kInternal, "zlib cannot start");
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream_); }

  // Fills all of `out` with the next bytes.
  void fill(MutableByteSpan out) {
    while (!out.empty()) {
      if (has_ended_) check_end();
      out = out.subspan(step(out));
    }
  }

  // After the last byte: checks that nothing follows.
  void finish() {
    std::uint8_t past_end = 0;
    while (!has_ended_) {
      DCP_CHECK(step({&past_end, 1}) == 0, kCorruptData, "\"", member_.name, "\" inflates to more than the ",
                member_.bytes, " bytes it is said to have");
    }
    check_end();
  }

  std::int64_t read_bytes() const { return read_bytes_; }

 private:
  // Inflates into the beginning of `out`; returns how many bytes.
  std::size_t step(MutableByteSpan out) {
    if (stream_.avail_in == 0) next_input();
    const auto room = static_cast<uInt>(std::min<std::size_t>(out.size(), 1u << 30));
    stream_.next_out = out.data();
    stream_.avail_out = room;
    const int status = inflate(&stream_, Z_NO_FLUSH);
    DCP_CHECK(status == Z_OK || status == Z_STREAM_END, kCorruptData, "\"", member_.name,
              "\" cannot be inflated: ", stream_.msg == nullptr ? "it ends too early" : stream_.msg, ", before byte ",
              position());
    has_ended_ = status == Z_STREAM_END;
    const std::size_t made = room - stream_.avail_out;
    made_bytes_ += static_cast<std::int64_t>(made);
    return made;
  }

  void check_end() const {
    DCP_CHECK(made_bytes_ == member_.bytes && stream_.avail_in == 0 && read_bytes_ == member_.compressed_bytes,
              kCorruptData, "\"", member_.name, "\" inflates to ", made_bytes_, " bytes and ends at byte ", position(),
              "; it is said to have ", member_.bytes, " bytes");
  }

  void next_input() {
    input_.resize(static_cast<std::size_t>(std::min(kChunkBytes, member_.compressed_bytes - read_bytes_)));
    if (!input_.empty()) {
      file_.read_at(static_cast<std::uint64_t>(item_offset_ + member_.data_position + read_bytes_), input_);
    }
    read_bytes_ += static_cast<std::int64_t>(input_.size());
    stream_.next_in = input_.data();
    stream_.avail_in = static_cast<uInt>(input_.size());
  }

  std::int64_t position() const { return member_.data_position + read_bytes_ - stream_.avail_in; }

  const RandomAccessFile& file_;
  std::int64_t item_offset_;
  const Member& member_;
  z_stream stream_{};
  Bytes input_;
  std::int64_t read_bytes_ = 0;
  std::int64_t made_bytes_ = 0;
  bool has_ended_ = false;
};

void check_crc(const Member& member, std::uint32_t crc32) {
  DCP_CHECK(member.crc32 == 0 || crc32 == member.crc32, kCorruptData, "the bytes of \"", member.name, "\" at byte ",
            member.data_position, " of the item are damaged: their CRC-32 is ", crc32, ", recorded is ", member.crc32);
}

std::string read_text(const RandomAccessFile& file, std::int64_t item_offset, const Member& member) {
  const Bytes bytes = read_member(file, item_offset, member, 64);
  return std::string(as_text(bytes));
}

void check_version(std::string_view text) {
  const std::string_view digits = text.substr(0, text.find_last_not_of(" \r\n") + 1);
  int version = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), version);
  DCP_CHECK(error == std::errc() && end == digits.data() + digits.size(), kCorruptData, "the archive's version is \"",
            text, "\"");
  DCP_CHECK(version >= 1 && version <= 10, kUnsupported, "the archive's version is ", version, ", known are 1 to 10");
}

}  // namespace

Bytes read_member(const RandomAccessFile& file, std::int64_t item_offset, const Member& member,
                  std::int64_t max_bytes) {
  DCP_CHECK(member.bytes <= max_bytes, kCorruptData, "\"", member.name, "\" has ", member.bytes, " bytes; at most ",
            max_bytes, " were expected");
  Bytes bytes(static_cast<std::size_t>(member.bytes));
  read_member_into(file, item_offset, member, bytes);
  return bytes;
}

void read_member_into(const RandomAccessFile& file, std::int64_t item_offset, const Member& member, MutableByteSpan out,
                      bool verify_checksum) {
  DCP_CHECK(out.size() == static_cast<std::size_t>(member.bytes), kInternal, "room for ", out.size(), " bytes, \"",
            member.name, "\" has ", member.bytes);
  const bool has_checksum = verify_checksum && member.crc32 != 0;
  std::uint32_t crc32 = 0;
  if (member.is_deflated) {
    Inflater inflater(file, item_offset, member);
    inflater.fill(out);
    inflater.finish();
    if (has_checksum) crc32 = crc32_of(out);
  } else {
    // In pieces, so that the bytes are still in the cache for the checksum.
    const std::size_t piece_bytes = has_checksum ? kPieceBytes : std::max<std::size_t>(out.size(), 1);
    for (std::size_t done = 0; done < out.size(); done += piece_bytes) {
      const MutableByteSpan piece = out.subspan(done, std::min(piece_bytes, out.size() - done));
      file.read_at(static_cast<std::uint64_t>(item_offset + member.data_position) + done, piece);
      if (has_checksum) crc32 = crc32_of(piece, crc32);
    }
  }
  if (has_checksum) check_crc(member, crc32);
}

void check_member(const RandomAccessFile& file, std::int64_t item_offset, const Member& member,
                  const std::function<void(std::int64_t)>& on_read) {
  constexpr auto kMost = static_cast<std::int64_t>(kPieceBytes);
  Bytes buffer(static_cast<std::size_t>(std::min(kMost, member.bytes)));
  std::optional<Inflater> inflater;
  if (member.is_deflated) inflater.emplace(file, item_offset, member);
  std::uint32_t crc32 = 0;
  std::int64_t told_bytes = 0;
  for (std::int64_t done = 0; done < member.bytes;) {
    const MutableByteSpan part(buffer.data(), static_cast<std::size_t>(std::min(kMost, member.bytes - done)));
    if (inflater) {
      inflater->fill(part);
    } else {
      file.read_at(static_cast<std::uint64_t>(item_offset + member.data_position + done), part);
    }
    crc32 = crc32_of(part, crc32);
    done += static_cast<std::int64_t>(part.size());
    const std::int64_t read_bytes = inflater ? inflater->read_bytes() : done;
    if (on_read && read_bytes > told_bytes) on_read(read_bytes - told_bytes);
    told_bytes = read_bytes;
  }
  if (inflater) inflater->finish();
  check_crc(member, crc32);
}

bool read_is_big_endian(const RandomAccessFile& file, std::int64_t item_offset, const Archive& archive) {
  const Member* old_version = archive.find(".data/version");
  const Member& version = old_version != nullptr ? *old_version : archive.at("version");
  check_version(read_text(file, item_offset, version));
  const Member* order = archive.find("byteorder");
  if (order == nullptr) return false;
  const std::string text = read_text(file, item_offset, *order);
  DCP_CHECK(text == "little" || text == "big", kCorruptData, "the archive's byte order is \"", text, "\"");
  return text == "big";
}

}  // namespace dcp::zip
