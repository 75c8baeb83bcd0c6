// The content of members: inflated, checked, and the two small ones that say how to read the rest.

#include <zlib.h>

#include <algorithm>
#include <charconv>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/format/zip_internal.h"

namespace dcp::zip {
namespace {

constexpr std::int64_t kChunkBytes = 64 * 1024;

// Inflates a member into exactly the bytes it is said to have.
class Inflater {
 public:
  Inflater(const RandomAccessFile& file, std::int64_t item_offset, const Member& member)
      : file_(file), item_offset_(item_offset), member_(member) {
    DCP_CHECK(inflateInit2(&stream_, -MAX_WBITS) == Z_OK, kInternal, "zlib cannot start");
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream_); }

  void run(MutableByteSpan out) {
    std::uint8_t past_end = 0;
    std::size_t done = 0;
    for (int status = Z_OK; status != Z_STREAM_END;) {
      if (stream_.avail_in == 0) next_input();
      const MutableByteSpan place = done < out.size() ? out.subspan(done) : MutableByteSpan(&past_end, 1);
      const auto room = static_cast<uInt>(std::min<std::size_t>(place.size(), 1u << 30));
      stream_.next_out = place.data();
      stream_.avail_out = room;
      status = inflate(&stream_, Z_NO_FLUSH);
      DCP_CHECK(status == Z_OK || status == Z_STREAM_END, kCorruptData, "\"", member_.name,
                "\" cannot be inflated: ", stream_.msg == nullptr ? "it ends too early" : stream_.msg, ", before byte ",
                position());
      done += room - stream_.avail_out;
      DCP_CHECK(done <= out.size(), kCorruptData, "\"", member_.name, "\" inflates to more than the ", out.size(),
                " bytes it is said to have");
    }
    DCP_CHECK(done == out.size() && stream_.avail_in == 0 && read_bytes_ == member_.compressed_bytes, kCorruptData,
              "\"", member_.name, "\" inflates to ", done, " bytes and ends at byte ", position(),
              "; it is said to have ", out.size(), " bytes");
  }

 private:
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
};

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
  if (member.is_deflated) {
    Inflater(file, item_offset, member).run(bytes);
  } else {
    file.read_at(static_cast<std::uint64_t>(item_offset + member.data_position), bytes);
  }
  if (member.crc32 != 0) {
    const std::uint32_t crc32 = crc32_of(bytes);
    DCP_CHECK(crc32 == member.crc32, kCorruptData, "the bytes of \"", member.name, "\" at byte ", member.data_position,
              " of the item are damaged: their CRC-32 is ", crc32, ", recorded is ", member.crc32);
  }
  return bytes;
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
