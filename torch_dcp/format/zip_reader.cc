#include <algorithm>
#include <numeric>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/zip_internal.h"
#include "torch_dcp/format/zip_records_internal.h"

namespace dcp::zip {
namespace {

// Deflate cannot make more of a byte than this.
constexpr std::int64_t kMaxDeflateRatio = 1032;

std::uint16_t get16(ByteSpan bytes, std::size_t at) {
  return static_cast<std::uint16_t>(bytes[at] | (bytes[at + 1] << 8));
}

std::uint32_t get32(ByteSpan bytes, std::size_t at) {
  return get16(bytes, at) | (static_cast<std::uint32_t>(get16(bytes, at + 2)) << 16);
}

// A number of 64 bits that is to be a position or size.
std::int64_t get64(ByteSpan bytes, std::size_t at, std::string_view what) {
  const std::uint64_t value = get32(bytes, at) | (static_cast<std::uint64_t>(get32(bytes, at + 4)) << 32);
  DCP_CHECK(value <= static_cast<std::uint64_t>(INT64_MAX), kCorruptData, what, " is ", value);
  return static_cast<std::int64_t>(value);
}

Bytes read_bytes(const RandomAccessFile& file, std::int64_t position, std::int64_t count) {
  Bytes bytes(static_cast<std::size_t>(count));
  file.read_at(static_cast<std::uint64_t>(position), bytes);
  return bytes;
}

void check_range(const RandomAccessFile& file, std::int64_t offset, std::int64_t length) {
  const std::uint64_t size = file.size();
  DCP_CHECK(offset >= 0 && length >= 0 && static_cast<std::uint64_t>(offset) <= size &&
                static_cast<std::uint64_t>(length) <= size - static_cast<std::uint64_t>(offset),
            kCorruptData, "the item of ", length, " bytes at ", offset, " is not inside the file of ", size, " bytes");
}

// An item's bytes by their positions in it.
struct Item {
  const RandomAccessFile& file;
  std::int64_t offset;
  std::int64_t length;

  Bytes read(std::int64_t position, std::int64_t count) const { return read_bytes(file, offset + position, count); }
};

struct Directory {
  std::int64_t position = 0;
  std::int64_t bytes = 0;
  std::int64_t count = 0;
};

// The last place in `tail` that begins an end record, or -1.
std::int64_t find_end_signature(ByteSpan tail) {
  for (auto at = static_cast<std::int64_t>(tail.size()) - kEndRecordBytes; at >= 0; --at) {
    if (tail[static_cast<std::size_t>(at)] == 'P' && get32(tail, static_cast<std::size_t>(at)) == kEndRecordSignature) {
      return at;
    }
  }
  return -1;
}

std::int64_t find_end_record(const Item& item) {
  // Nearly always it lies in the last bytes; after them up to 64 KiB of a comment or of other bytes are possible.
  for (std::int64_t reach : {ItemWindow::kTailBytes, kEndRecordBytes + kMaxCommentBytes}) {
    const std::int64_t count = std::min(reach, item.length);
    const std::int64_t found = find_end_signature(item.read(item.length - count, count));
    if (found >= 0) return item.length - count + found;
  }
  DCP_THROW(kCorruptData, "no end record in the last bytes of the item's ", item.length,
            ": it is cut short or no zip archive");
}

// The zip64 end record, if there is one. `end` is the position of the end record.
bool read_zip64_end(const Item& item, std::int64_t end, Directory& directory, std::int64_t& directory_end) {
  const std::int64_t locator = end - kZip64LocatorBytes;
  if (locator < kZip64EndRecordBytes) return false;
  const Bytes found = item.read(locator, kZip64LocatorBytes);
  if (get32(found, 0) != kZip64LocatorSignature) return false;
  DCP_CHECK(get32(found, 4) == 0 && get32(found, 16) <= 1, kUnsupported, "a zip of several disks, at byte ", locator);

  const std::int64_t at = get64(found, 8, "the position of the zip64 end record");
  DCP_CHECK(at <= locator - kZip64EndRecordBytes, kCorruptData, "the zip64 end record is said to lie at byte ", at,
            ", its locator lies at ", locator);
  const Bytes record = item.read(at, kZip64EndRecordBytes);
  DCP_CHECK(get32(record, 0) == kZip64EndRecordSignature, kCorruptData, "no zip64 end record at byte ", at);
  DCP_CHECK(get64(record, 4, "the size of the zip64 end record") == locator - at - 12, kCorruptData,
            "the zip64 end record at byte ", at, " does not reach its locator at ", locator);
  DCP_CHECK(get32(record, 16) == 0 && get32(record, 20) == 0, kUnsupported, "a zip of several disks, at byte ", at);
  directory.count = get64(record, 32, "the number of members");
  DCP_CHECK(get64(record, 24, "the number of members") == directory.count, kCorruptData,
            "the zip64 end record at byte ", at, " has two numbers of members");
  directory.bytes = get64(record, 40, "the size of the directory");
  directory.position = get64(record, 48, "the position of the directory");
  directory_end = at;
  return true;
}

Directory find_directory(const Item& item, const ParseLimits& limits) {
  DCP_CHECK(item.length >= kEndRecordBytes, kCorruptData, "an item of ", item.length, " bytes is no zip archive");
  const std::int64_t end = find_end_record(item);
  const Bytes record = item.read(end, kEndRecordBytes);
  DCP_CHECK(get16(record, 20) <= item.length - end - kEndRecordBytes, kCorruptData,
            "the zip's comment goes past the end of the item, at byte ", end);

  Directory directory;
  std::int64_t directory_end = end;
  const std::uint16_t short_count = get16(record, 10);
  const std::uint32_t short_bytes = get32(record, 12);
  const std::uint32_t short_position = get32(record, 16);
  DCP_CHECK(get16(record, 8) == short_count, kCorruptData, "the end record at byte ", end,
            " has two numbers of members");
  DCP_CHECK(get32(record, 4) == 0, kUnsupported, "a zip of several disks, at byte ", end);
  if (read_zip64_end(item, end, directory, directory_end)) {
    const bool agree = (short_count == directory.count || short_count == kFull16) &&
                       (short_bytes == directory.bytes || short_bytes == kFull32) &&
                       (short_position == directory.position || short_position == kFull32);
    DCP_CHECK(agree, kCorruptData, "the end records at bytes ", directory_end, " and ", end, " disagree");
  } else {
    DCP_CHECK(short_count != kFull16 && short_bytes != kFull32 && short_position != kFull32, kCorruptData,
              "the end record at byte ", end, " refers to a zip64 end record that is not there");
    directory = {short_position, short_bytes, short_count};
  }

  DCP_CHECK(directory.position <= directory_end && directory.bytes == directory_end - directory.position, kCorruptData,
            "the directory of ", directory.bytes, " bytes at byte ", directory.position,
            " does not end where the end record begins, at ", directory_end);
  DCP_CHECK(directory.bytes <= static_cast<std::int64_t>(limits.max_header_bytes), kCorruptData, "a directory of ",
            directory.bytes, " bytes; the limit is ", limits.max_header_bytes);
  DCP_CHECK(directory.count > 0, kCorruptData, "the zip has no members");
  DCP_CHECK(directory.count <= directory.bytes / kDirectoryRecordBytes, kCorruptData, "the zip says that it has ",
            directory.count, " members, but its directory has ", directory.bytes, " bytes");
  return directory;
}

// Returns the content of the zip64 extra, empty if there is none.
ByteSpan find_zip64_extra(ByteSpan extra, std::int64_t header_position) {
  // Some writers fill up with less than an extra's own header.
  while (extra.size() >= 4) {
    const std::size_t size = get16(extra, 2);
    DCP_CHECK(size <= extra.size() - 4, kCorruptData, "an extra field goes past its record, at byte ", header_position);
    if (get16(extra, 0) == kZip64ExtraId) return extra.subspan(4, size);
    extra = extra.subspan(4 + size);
  }
  return {};
}

// Gives each field that is full the next number of the zip64 extra.
class Zip64Numbers {
 public:
  Zip64Numbers(ByteSpan extra, std::int64_t record_position) : extra_(extra), record_position_(record_position) {}

  std::int64_t of(std::uint32_t field, std::string_view what) {
    if (field != kFull32) return field;
    DCP_CHECK(extra_.size() >= 8, kCorruptData, what, " should be in a zip64 extra, in the record at byte ",
              record_position_);
    const std::int64_t value = get64(extra_, 0, what);
    extra_ = extra_.subspan(8);
    return value;
  }

 private:
  ByteSpan extra_;
  std::int64_t record_position_;
};

// One record of the directory.
struct Record {
  std::string name;  // with the folder
  std::uint16_t method = 0;
  std::uint32_t crc32 = 0;
  std::int64_t compressed_bytes = 0;
  std::int64_t bytes = 0;
  std::int64_t header_position = 0;

  bool is_folder() const { return name.ends_with('/'); }
};

void check_flags(std::uint16_t flags, std::int64_t position) {
  constexpr std::uint16_t kRefused = kFlagEncrypted | kFlagStrongEncryption | kFlagMaskedHeader | kFlagPatched;
  DCP_CHECK((flags & kRefused) == 0, kUnsupported, "an encrypted or patched member, in the record at byte ", position);
}

void check_name(std::string_view name, std::int64_t position) {
  DCP_CHECK(name.find('\0') == std::string_view::npos, kCorruptData,
            "a member's name has a null byte, in the record at byte ", position);
  DCP_CHECK(name.find('/') != std::string_view::npos, kCorruptData, "the member \"", name,
            "\" is in no folder, in the record at byte ", position);
  std::string_view rest = name.ends_with('/') ? name.substr(0, name.size() - 1) : name;
  for (;;) {
    const std::size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    DCP_CHECK(!part.empty() && part != "." && part != "..", kCorruptData, "\"", name,
              "\" is no name of a member, in the record at byte ", position);
    if (slash == std::string_view::npos) return;
    rest.remove_prefix(slash + 1);
  }
}

void check_method(const Record& record, std::int64_t position) {
  DCP_CHECK(record.method == kMethodStored || record.method == kMethodDeflated, kUnsupported, "\"", record.name,
            "\" is compressed by method ", record.method, ", in the record at byte ", position);
  if (record.method == kMethodStored) {
    DCP_CHECK(record.compressed_bytes == record.bytes, kCorruptData, "\"", record.name, "\" is stored, but has ",
              record.bytes, " and ", record.compressed_bytes, " bytes, in the record at byte ", position);
  } else {
    DCP_CHECK(record.bytes / kMaxDeflateRatio <= record.compressed_bytes, kCorruptData, "\"", record.name,
              "\" is said to inflate from ", record.compressed_bytes, " to ", record.bytes,
              " bytes, in the record at byte ", position);
  }
}

// Parses the record at `at` of the directory and moves `at` behind it.
Record read_record(ByteSpan directory, std::size_t& at, std::int64_t directory_position) {
  const std::int64_t position = directory_position + static_cast<std::int64_t>(at);
  const ByteSpan rest = directory.subspan(at);
  DCP_CHECK(
      rest.size() >= static_cast<std::size_t>(kDirectoryRecordBytes) && get32(rest, 0) == kDirectoryRecordSignature,
      kCorruptData, "no directory record at byte ", position);
  const std::size_t name_bytes = get16(rest, 28);
  const std::size_t extra_bytes = get16(rest, 30);
  const std::size_t record_bytes = kDirectoryRecordBytes + name_bytes + extra_bytes + get16(rest, 32);
  DCP_CHECK(record_bytes <= rest.size(), kCorruptData, "the directory record at byte ", position,
            " goes past the directory");
  check_flags(get16(rest, 8), position);
  DCP_CHECK(get16(rest, 34) == 0, kUnsupported, "a zip of several disks, in the record at byte ", position);

  Record record;
  record.name = as_text(rest.subspan(kDirectoryRecordBytes, name_bytes));
  record.method = get16(rest, 10);
  record.crc32 = get32(rest, 16);
  Zip64Numbers numbers(find_zip64_extra(rest.subspan(kDirectoryRecordBytes + name_bytes, extra_bytes), position),
                       position);
  record.bytes = numbers.of(get32(rest, 24), "a member's size");
  record.compressed_bytes = numbers.of(get32(rest, 20), "a member's compressed size");
  record.header_position = numbers.of(get32(rest, 42), "the position of a member's header");
  check_name(record.name, position);
  check_method(record, position);
  at += record_bytes;
  return record;
}

std::vector<Record> read_records(const Item& item, const Directory& directory) {
  const Bytes bytes = item.read(directory.position, directory.bytes);
  std::vector<Record> records;
  std::size_t at = 0;
  for (std::int64_t i = 0; i < directory.count; ++i) records.push_back(read_record(bytes, at, directory.position));
  DCP_CHECK(at == bytes.size(), kCorruptData, "the zip says that it has ", directory.count,
            " members, but its directory goes on at byte ", directory.position + static_cast<std::int64_t>(at));
  return records;
}

// Checks that the numbers of a local header are those of the directory, or 0 where they follow the data.
void check_local_numbers(ByteSpan header, ByteSpan extra, const Record& record) {
  const bool follow = (get16(header, 6) & kFlagDataDescriptor) != 0;
  const auto agrees = [&](std::int64_t value, std::int64_t known) { return value == known || (follow && value == 0); };
  Zip64Numbers numbers(find_zip64_extra(extra, record.header_position), record.header_position);
  const std::int64_t bytes = numbers.of(get32(header, 22), "a member's size");
  const std::int64_t compressed_bytes = numbers.of(get32(header, 18), "a member's compressed size");
  DCP_CHECK(get16(header, 8) == record.method && agrees(get32(header, 14), record.crc32) &&
                agrees(bytes, record.bytes) && agrees(compressed_bytes, record.compressed_bytes),
            kCorruptData, "the header of \"", record.name, "\" at byte ", record.header_position,
            " and the directory disagree");
}

// Returns the position of the member's data. `end` is where another member or the directory begins.
std::int64_t check_local_header(const Item& item, const Record& record, std::int64_t end) {
  const std::int64_t at = record.header_position;
  const auto name_bytes = static_cast<std::int64_t>(record.name.size());
  DCP_CHECK(at <= end && kLocalHeaderBytes + name_bytes <= end - at, kCorruptData, "the header of \"", record.name,
            "\" at byte ", at, " goes past byte ", end, ", where something else begins");
  const Bytes header = item.read(at, kLocalHeaderBytes + name_bytes);
  DCP_CHECK(get32(header, 0) == kLocalHeaderSignature, kCorruptData, "no header of \"", record.name, "\" at byte ", at);
  check_flags(get16(header, 6), at);
  const std::int64_t extra_position = at + kLocalHeaderBytes + name_bytes;
  const std::int64_t extra_bytes = get16(header, 28);
  DCP_CHECK(get16(header, 26) == name_bytes && as_text(ByteSpan(header).subspan(kLocalHeaderBytes)) == record.name,
            kCorruptData, "the header at byte ", at, " is not that of \"", record.name, "\"");
  DCP_CHECK(extra_bytes <= end - extra_position && record.compressed_bytes <= end - extra_position - extra_bytes,
            kCorruptData, "\"", record.name, "\" has ", record.compressed_bytes, " bytes after its header at byte ", at,
            ", but something else begins at byte ", end);
  check_local_numbers(header, item.read(extra_position, extra_bytes), record);
  return extra_position + extra_bytes;
}

Archive make_archive(const Item& item, const std::vector<Record>& records, const Directory& directory) {
  std::vector<std::size_t> order(records.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::size_t i) { return records[i].header_position; });
  DCP_CHECK(records[order[0]].header_position == 0, kCorruptData, "the zip does not begin with a member, but with ",
            std::min(records[order[0]].header_position, directory.position), " other bytes");

  Archive archive;
  archive.folder = records[0].name.substr(0, records[0].name.find('/'));
  for (std::size_t k = 0; k < order.size(); ++k) {
    const Record& record = records[order[k]];
    const std::int64_t end = k + 1 < order.size() ? records[order[k + 1]].header_position : directory.position;
    const std::int64_t data_position = check_local_header(item, record, std::min(end, directory.position));
    const std::size_t slash = record.name.find('/');
    DCP_CHECK(record.name.compare(0, slash, archive.folder) == 0, kCorruptData, "\"", record.name,
              "\" is outside of the zip's folder \"", archive.folder, "\"");
    if (record.is_folder()) {
      DCP_CHECK(record.bytes == 0, kCorruptData, "the folder \"", record.name, "\" has ", record.bytes, " bytes");
      continue;
    }
    archive.members.push_back({record.name.substr(slash + 1), data_position, record.compressed_bytes, record.bytes,
                               record.crc32, record.method == kMethodDeflated});
  }
  std::ranges::sort(archive.members, {}, &Member::name);
  return archive;
}

}  // namespace

const Member* Archive::find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(members, name, {}, &Member::name);
  return it != members.end() && it->name == name ? &*it : nullptr;
}

const Member& Archive::at(std::string_view name) const {
  const Member* member = find(name);
  DCP_CHECK(member != nullptr, kCorruptData, "the zip has no member \"", name, "\"");
  return *member;
}

Archive read_archive(const RandomAccessFile& file, std::int64_t offset, std::int64_t length,
                     const ParseLimits& limits) {
  check_range(file, offset, length);
  const Item item{file, offset, length};
  const Directory directory = find_directory(item, limits);
  Archive archive = make_archive(item, read_records(item, directory), directory);
  const auto twin = std::ranges::adjacent_find(archive.members, {}, &Member::name);
  DCP_CHECK(twin == archive.members.end(), kCorruptData, "the zip has two members \"", twin->name, "\"");
  DCP_CHECK(archive.find("constants.pkl") == nullptr, kUnsupported, "a TorchScript archive, not one of torch.save");
  return archive;
}

ItemWindow::ItemWindow(const RandomAccessFile& file, std::int64_t offset, std::int64_t length)
    : file_(file), offset_(offset), length_(length) {
  check_range(file, offset, length);
  head_ = read_bytes(file, offset, length <= kWholeBytes ? length : kHeadBytes);
  if (length > kWholeBytes) tail_ = read_bytes(file, offset + length - kTailBytes, kTailBytes);
}

void ItemWindow::read_at(std::uint64_t offset, MutableByteSpan out) const {
  DCP_CHECK(offset <= size() && out.size() <= size() - offset, kCorruptData, "bytes ", offset, " to ", offset, " + ",
            out.size(), " are outside of the item of ", length_);
  const std::uint64_t tail_position = size() - tail_.size();
  if (out.size() <= head_.size() && offset <= head_.size() - out.size()) {
    std::copy_n(head_.data() + offset, out.size(), out.data());
  } else if (offset >= tail_position) {
    std::copy_n(tail_.data() + (offset - tail_position), out.size(), out.data());
  } else {
    file_.read_at(static_cast<std::uint64_t>(offset_) + offset, out);
  }
}

}  // namespace dcp::zip
