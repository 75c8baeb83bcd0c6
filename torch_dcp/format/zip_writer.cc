#include <algorithm>
#include <cstring>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/format/zip_internal.h"
#include "torch_dcp/format/zip_records_internal.h"

// Writes what PyTorch's own zip writer (caffe2/serialize over miniz) writes, byte for byte; FORMAT.md has the picture.

namespace dcp::zip {
namespace {

constexpr std::string_view kFolder = "archive/";
constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kExtraHeaderBytes = 4;
constexpr std::string_view kVersionName = "version";
constexpr std::string_view kSerializationIdName = ".data/serialization_id";

// Adds room for a record at the end and fills it from the front. What is skipped is 0.
class Record {
 public:
  Record(Bytes& out, std::int64_t byte_count) : out_(out), at_(out.size()) {
    out.resize(out.size() + static_cast<std::size_t>(byte_count));
  }

  void u16(std::uint16_t value) { number<2>(value); }
  void u32(std::uint32_t value) { number<4>(value); }
  void i64(std::int64_t value) { number<8>(static_cast<std::uint64_t>(value)); }
  void skip(std::size_t count) { at_ += count; }
  void text(std::string_view text) {
    std::memcpy(out_.data() + at_, text.data(), text.size());
    at_ += text.size();
  }
  void fill(std::int64_t count, char c) {
    std::memset(out_.data() + at_, c, static_cast<std::size_t>(count));
    at_ += static_cast<std::size_t>(count);
  }

 private:
  template <std::size_t kBytes>
  void number(std::uint64_t value) {
    std::uint8_t* place = out_.data() + at_;
    for (std::size_t i = 0; i < kBytes; ++i) place[i] = static_cast<std::uint8_t>(value >> (8 * i));
    at_ += kBytes;
  }

  Bytes& out_;
  std::size_t at_;
};

bool fits_32(std::int64_t value) { return value < static_cast<std::int64_t>(kFull32); }

std::uint32_t saturated_32(std::int64_t value) { return fits_32(value) ? static_cast<std::uint32_t>(value) : kFull32; }

// Size and position decide the form of a member everywhere.
struct Form {
  bool has_large_size;
  bool has_large_position;

  Form(std::int64_t bytes, std::int64_t header_position)
      : has_large_size(!fits_32(bytes)), has_large_position(!fits_32(header_position)) {}

  bool is_zip64() const { return has_large_size || has_large_position; }
  // Of the extra with the two sizes, the position, or both; without its own header.
  std::int64_t zip64_bytes() const { return (has_large_size ? 16 : 0) + (has_large_position ? 8 : 0); }
  std::int64_t extra_bytes() const { return is_zip64() ? kExtraHeaderBytes + zip64_bytes() : 0; }
  // An empty member has none.
  std::int64_t descriptor_bytes(std::int64_t bytes) const { return bytes == 0 ? 0 : is_zip64() ? 24 : 16; }
};

std::uint16_t flags_of(std::int64_t bytes) {
  return static_cast<std::uint16_t>(kFlagUtf8 | (bytes == 0 ? 0 : kFlagDataDescriptor));
}

std::int64_t full_name_bytes(std::string_view name) { return static_cast<std::int64_t>(kFolder.size() + name.size()); }

// Filler after the header of the extra "FB", so that the member's data begin at a multiple of the alignment.
std::int64_t filler_bytes(std::string_view name, const Form& form, std::int64_t header_position) {
  const std::int64_t start =
      header_position + kLocalHeaderBytes + full_name_bytes(name) + form.extra_bytes() + kExtraHeaderBytes;
  return (kAlignment - start % kAlignment) % kAlignment;
}

void put_zip64_extra(Record& record, const Form& form, std::int64_t bytes, std::int64_t header_position) {
  if (!form.is_zip64()) return;
  record.u16(kZip64ExtraId);
  record.u16(static_cast<std::uint16_t>(form.zip64_bytes()));
  if (form.has_large_size) {
    record.i64(bytes);
    record.i64(bytes);
  }
  if (form.has_large_position) record.i64(header_position);
}

constexpr std::size_t kIdHalfDigits = 20;

/// Writes 20 decimal digits.
template <typename Character>
void put_digits(Character* to, std::uint64_t number) {
  for (std::size_t i = kIdHalfDigits; i-- > 0; number /= 10) to[i] = static_cast<Character>('0' + number % 10);
}

/// One step of the second half of a serialization id, which mixes the members' CRCs.
std::uint64_t mix_sum(std::uint64_t sums, std::uint32_t crc32) {
  sums = (sums ^ crc32) * 0x9e3779b97f4a7c15;
  return sums ^ sums >> 32;
}

void put_u32(std::uint8_t* place, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) place[i] = static_cast<std::uint8_t>(value >> (8 * i));
}

std::uint32_t get_u32(const std::uint8_t* place) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= static_cast<std::uint32_t>(place[i]) << (8 * i);
  return value;
}

}  // namespace

void Writer::add(std::string_view name, ByteSpan data) {
  begin_member(name, static_cast<std::int64_t>(data.size()));
  Entry& entry = entries_.back();
  entry.crc32 = crc32_of(data);
  if (is_passing_over_) {
    const Form form(entry.bytes, entry.header_position);
    taken_bytes_ += entry.bytes + form.descriptor_bytes(entry.bytes);
    return;
  }
  out_.insert(out_.end(), data.begin(), data.end());
  data_descriptor(entry);
}

void Writer::add_format_members() {
  add(".format_version", as_bytes("1"));
  add(".storage_alignment", as_bytes("64"));
  add("byteorder", as_bytes("little"));
}

void Writer::add_closing_members() {
  add(kVersionName, as_bytes("3\n"));
  add(kSerializationIdName, as_bytes(serialization_id()));
}

void Writer::begin_streamed(std::string_view name, std::int64_t byte_count) { begin_member(name, byte_count); }

Bytes Writer::take_head() {
  DCP_CHECK(!entries_.empty(), kInternal, "there is no member to take the head of");
  taken_bytes_ = position() + entries_.back().bytes;
  is_passing_over_ = false;
  return std::exchange(out_, {});
}

void Writer::end_streamed(std::uint32_t crc32) {
  DCP_CHECK(!entries_.empty() && out_.empty() && !is_passing_over_, kInternal,
            "the head of the streamed member has not been taken");
  entries_.back().crc32 = crc32;
  data_descriptor(entries_.back());
}

ClosingPart Writer::finish_streamed() {
  const std::int64_t begin = position();
  ClosingPart part;
  part.streamed_ = entries_.size() - 1;
  end_streamed(0);
  add_closing_members();
  part.bytes_ = finish();

  const auto place = [begin](std::int64_t position) { return static_cast<std::size_t>(position - begin); };
  const Entry& data = entries_[part.streamed_];
  const Entry& id = entries_.back();
  // An empty member has no descriptor.
  if (data.bytes != 0) part.data_crcs_.push_back(place(data.descriptor_crc));
  part.data_crcs_.push_back(place(data.directory_crc));
  part.id_crcs_ = {place(id.descriptor_crc), place(id.directory_crc)};
  part.id_position_ = part.id_crcs_[0] - 4 - static_cast<std::size_t>(id.bytes);
  for (std::size_t i = 0; i + 1 < entries_.size(); ++i) part.sums_.push_back(entries_[i].crc32);
  part.gaps_ = {{part.id_position_, 2 * kIdHalfDigits}};
  for (const std::size_t at : part.data_crcs_) part.gaps_.push_back({at, 4});
  for (const std::size_t at : part.id_crcs_) part.gaps_.push_back({at, 4});
  std::ranges::sort(part.gaps_, {}, &ClosingPart::Gap::position);
  return part;
}

ByteSpan ClosingPart::with(std::uint32_t crc32) {
  sums_[streamed_] = crc32;
  std::uint64_t sums = 0;
  for (const std::uint32_t sum : sums_) sums = mix_sum(sums, sum);
  std::uint8_t* const id = bytes_.data() + id_position_;
  put_digits(id + kIdHalfDigits, sums);
  const std::uint32_t id_crc32 = crc32_of({id, 2 * kIdHalfDigits});
  for (const std::size_t at : data_crcs_) put_u32(bytes_.data() + at, crc32);
  for (const std::size_t at : id_crcs_) put_u32(bytes_.data() + at, id_crc32);
  return bytes_;
}

std::optional<std::uint32_t> ClosingPart::match(ByteSpan bytes) const {
  if (bytes.size() != bytes_.size()) return std::nullopt;
  std::size_t done = 0;
  for (const Gap& gap : gaps_) {
    if (std::memcmp(bytes.data() + done, bytes_.data() + done, gap.position - done) != 0) return std::nullopt;
    done = gap.position + gap.bytes;
  }
  if (std::memcmp(bytes.data() + done, bytes_.data() + done, bytes.size() - done) != 0) return std::nullopt;
  const std::uint32_t crc32 = get_u32(bytes.data() + data_crcs_.back());
  for (const std::size_t at : data_crcs_) {
    if (get_u32(bytes.data() + at) != crc32) return std::nullopt;
  }
  return crc32;
}

Bytes Writer::finish() {
  const std::int64_t directory_position = position();
  for (Entry& entry : entries_) directory_record(entry);
  end_records(directory_position);
  return std::exchange(out_, {});
}

void Writer::begin_member(std::string_view name, std::int64_t byte_count) {
  if (entries_.capacity() == 0) entries_.reserve(8);
  const Entry& entry = entries_.emplace_back(Entry{std::string(name), position(), byte_count});
  const Form form(byte_count, entry.header_position);
  const std::int64_t filler = filler_bytes(name, form, entry.header_position);

  const std::int64_t extra_bytes = form.extra_bytes() + kExtraHeaderBytes + filler;
  if (is_passing_over_) {
    taken_bytes_ += kLocalHeaderBytes + full_name_bytes(name) + extra_bytes;
    return;
  }
  // A tensor's head and what is behind its data are smaller than this.
  if (out_.capacity() == 0) out_.reserve(960);
  Record record(out_, kLocalHeaderBytes + full_name_bytes(name) + extra_bytes);
  record.u32(kLocalHeaderSignature);
  record.skip(2);  // version needed
  record.u16(flags_of(byte_count));
  record.u16(kMethodStored);
  record.skip(4 + 4 + 4 + 4);  // time and date, CRC, sizes: they follow the data
  record.u16(static_cast<std::uint16_t>(full_name_bytes(name)));
  record.u16(static_cast<std::uint16_t>(extra_bytes));
  record.text(kFolder);
  record.text(name);
  put_zip64_extra(record, form, byte_count, entry.header_position);
  record.u16(kPaddingExtraId);
  record.u16(static_cast<std::uint16_t>(filler));
  record.fill(filler, 'Z');
}

void Writer::data_descriptor(Entry& entry) {
  const Form form(entry.bytes, entry.header_position);
  if (entry.bytes == 0) return;
  entry.descriptor_crc = position() + 4;
  Record record(out_, form.descriptor_bytes(entry.bytes));
  record.u32(kDataDescriptorSignature);
  record.u32(entry.crc32);
  if (form.is_zip64()) {
    record.i64(entry.bytes);
    record.i64(entry.bytes);
  } else {
    record.u32(static_cast<std::uint32_t>(entry.bytes));
    record.u32(static_cast<std::uint32_t>(entry.bytes));
  }
}

void Writer::directory_record(Entry& entry) {
  const Form form(entry.bytes, entry.header_position);
  entry.directory_crc = position() + 16;
  Record record(out_, kDirectoryRecordBytes + full_name_bytes(entry.name) + form.extra_bytes());
  record.u32(kDirectoryRecordSignature);
  record.skip(2 + 2);  // made by, version needed
  record.u16(flags_of(entry.bytes));
  record.u16(kMethodStored);
  record.skip(4);  // time and date
  record.u32(entry.crc32);
  record.u32(saturated_32(entry.bytes));
  record.u32(saturated_32(entry.bytes));
  record.u16(static_cast<std::uint16_t>(full_name_bytes(entry.name)));
  record.u16(static_cast<std::uint16_t>(form.extra_bytes()));
  record.skip(2 + 2 + 2 + 4);  // comment, disk, attributes
  record.u32(saturated_32(entry.header_position));
  record.text(kFolder);
  record.text(entry.name);
  put_zip64_extra(record, form, entry.bytes, entry.header_position);
}

void Writer::end_records(std::int64_t directory_position) {
  const std::int64_t end_position = position();
  const std::int64_t directory_bytes = end_position - directory_position;
  const auto count = static_cast<std::int64_t>(entries_.size());

  Record record(out_, kZip64EndRecordBytes + kZip64LocatorBytes + kEndRecordBytes);
  record.u32(kZip64EndRecordSignature);
  record.i64(kZip64EndRecordBytes - 12);  // what follows this field
  record.u16(0x031e);                     // made by
  record.u16(45);                         // version needed
  record.skip(8);                         // disks
  record.i64(count);
  record.i64(count);
  record.i64(directory_bytes);
  record.i64(directory_position);

  record.u32(kZip64LocatorSignature);
  record.skip(4);  // disk
  record.i64(end_position);
  record.u32(1);  // disks

  const auto short_count = static_cast<std::uint16_t>(std::min<std::int64_t>(count, kFull16));
  record.u32(kEndRecordSignature);
  record.skip(4);  // disks
  record.u16(short_count);
  record.u16(short_count);
  record.u32(saturated_32(directory_bytes));
  record.u32(saturated_32(directory_position));
  record.skip(2);  // comment
}

std::string Writer::serialization_id() const {
  // FNV-1a over the names, and the CRC of the CRCs: nobody reads it back, but equal archives get equal ids.
  std::uint64_t names = 0xcbf29ce484222325;
  std::uint64_t sums = 0;
  for (const Entry& entry : entries_) {
    for (char c : entry.name) names = (names ^ static_cast<std::uint8_t>(c)) * 0x100000001b3;
    names = (names ^ 0xFF) * 0x100000001b3;  // no UTF-8 name holds this byte: it ends the name
    sums = mix_sum(sums, entry.crc32);
  }
  std::string id(2 * kIdHalfDigits, '0');
  put_digits(id.data(), names);
  put_digits(id.data() + kIdHalfDigits, sums);
  return id;
}

std::int64_t archive_bytes(std::initializer_list<std::pair<std::string_view, std::int64_t>> members) {
  std::int64_t position = 0;
  std::int64_t directory = 0;
  for (const auto& [name, bytes] : members) {
    const Form form(bytes, position);
    directory += kDirectoryRecordBytes + full_name_bytes(name) + form.extra_bytes();
    const std::int64_t filler = filler_bytes(name, form, position);
    position += kLocalHeaderBytes + full_name_bytes(name) + form.extra_bytes() + kExtraHeaderBytes + filler;
    position += bytes + form.descriptor_bytes(bytes);
  }
  return position + directory + kZip64EndRecordBytes + kZip64LocatorBytes + kEndRecordBytes;
}

}  // namespace dcp::zip
