#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/legacy_archive_internal.h"
#include "torch_dcp/pickle/extent.h"
#include "torch_dcp/pickle/reader.h"
#include "torch_dcp/pickle/walk.h"
#include "torch_dcp/pickle/writer.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp::legacy {
namespace {

using pickle::NodeKind;
using pickle::Ref;

constexpr std::string_view kMagicDigits = "119547037146038801333356";  // 0x1950a86a20f9469cfc6c
constexpr std::uint8_t kMagicBytes[] = {0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
constexpr std::uint8_t kProto = 0x80;
/// The magic number's opcode stands behind PROTO, and with later protocols behind FRAME.
constexpr std::size_t kMagicReach = 32;
constexpr std::int64_t kCountBytes = 8;
constexpr std::int64_t kMaxSmallPickle = 64 * 1024;
constexpr std::int64_t kFirstRead = 4096;

/// Reads the pickles and numbers of an archive one after another.
class PartReader {
 public:
  PartReader(const RandomAccessFile& item, const ParseLimits& limits) : item_(item), limits_(limits) {}

  std::int64_t position() const { return position_; }
  std::int64_t bytes_left() const { return static_cast<std::int64_t>(item_.size()) - position_; }

  /// The pickle that begins here.
  pickle::Pickle pickle(std::string_view what, std::int64_t max_bytes) {
    const Bytes bytes = pickle_bytes(what, max_bytes);
    try {
      pickle::Pickle parsed = pickle::parse(bytes, limits_);
      position_ += static_cast<std::int64_t>(bytes.size());
      return parsed;
    } catch (Error& error) {
      error.add_context(c10::str("in the pickle of ", what, ", which begins at byte ", position_));
      throw;
    }
  }

  std::int64_t count() {
    DCP_CHECK(bytes_left() >= kCountBytes, kCorruptData, "the file ends at byte ", item_.size(),
              ", in the count of a storage");
    std::uint8_t bytes[kCountBytes];
    item_.read_at(static_cast<std::uint64_t>(position_), bytes);
    std::uint64_t value = 0;
    for (int i = kCountBytes - 1; i >= 0; --i) value = value << 8 | bytes[i];
    position_ += kCountBytes;
    DCP_CHECK(value <= static_cast<std::uint64_t>(INT64_MAX), kCorruptData, "a storage of ", value,
              " elements, at byte ", position_ - kCountBytes);
    return static_cast<std::int64_t>(value);
  }

  void skip(std::int64_t byte_count) { position_ += byte_count; }

 private:
  /// Nothing says how long a pickle is: reads ever larger parts until its end is among them.
  Bytes pickle_bytes(std::string_view what, std::int64_t max_bytes) {
    const std::int64_t available = std::min(bytes_left(), max_bytes);
    pickle::ExtentScanner scanner;
    Bytes bytes;
    for (;;) {
      const auto done = static_cast<std::int64_t>(bytes.size());
      DCP_CHECK(done < bytes_left(), kCorruptData, "the file ends at byte ", item_.size(), ", in the pickle of ", what,
                ", which begins at byte ", position_);
      DCP_CHECK(done < available, kCorruptData, "the pickle of ", what, ", which begins at byte ", position_,
                ", has more than ", max_bytes, " bytes");
      const std::int64_t more = std::min(std::max(kFirstRead, done), available - done);
      bytes.resize(static_cast<std::size_t>(done + more));
      const MutableByteSpan part = MutableByteSpan(bytes).subspan(static_cast<std::size_t>(done));
      item_.read_at(static_cast<std::uint64_t>(position_ + done), part);
      if (!scanner.feed(part)) continue;
      bytes.resize(static_cast<std::size_t>(scanner.extent()));
      return bytes;
    }
  }

  const RandomAccessFile& item_;
  const ParseLimits& limits_;
  std::int64_t position_ = 0;
};

void read_prefix(PartReader& parts) {
  const pickle::Pickle magic = parts.pickle("the magic number", kMaxSmallPickle);
  DCP_CHECK(magic.root->kind == NodeKind::kBigInt && magic.root->text() == kMagicDigits, kCorruptData,
            "no file of torch.save: the magic number is another");
  const pickle::Pickle version = parts.pickle("the protocol version", kMaxSmallPickle);
  DCP_CHECK(version.root->kind == NodeKind::kInt, kCorruptData, "the protocol version is a ",
            pickle::node_kind_name(version.root->kind));
  DCP_CHECK(version.root->integer() == kProtocolVersion, kUnsupported, "the protocol version is ",
            version.root->integer(), ", known is ", kProtocolVersion);
  const pickle::Pickle machine = parts.pickle("the machine's description", kMaxSmallPickle);
  DCP_CHECK(machine.root->kind == NodeKind::kDict, kCorruptData, "the machine's description is a ",
            pickle::node_kind_name(machine.root->kind));
}

/// The storages that the pickle of the value names, by key.
std::map<std::string, PickledStorage> find_storages(Ref root) {
  std::map<std::string, PickledStorage> storages;
  pickle::walk(root, [&](Ref node) {
    if (node->kind != NodeKind::kPersistentId) return true;
    DCP_CHECK(is_storage_id(node), kCorruptData, "a persistent id that is no storage");
    PickledStorage storage = parse_storage_id(node);
    const auto [known, is_new] = storages.try_emplace(storage.key, storage);
    DCP_CHECK(is_new || (known->second.dtype == storage.dtype && known->second.bytes == storage.bytes), kCorruptData,
              "the storage ", storage.key, " is said to have ", known->second.bytes, " bytes of ",
              dtype_name(known->second.dtype), " and ", storage.bytes, " of ", dtype_name(storage.dtype));
    return false;
  });
  return storages;
}

zip::Member read_storage(PartReader& parts, Ref key, std::map<std::string, PickledStorage>& storages) {
  DCP_CHECK(key->kind == NodeKind::kText, kCorruptData, "the key of a storage is a ",
            pickle::node_kind_name(key->kind));
  const auto storage = storages.find(std::string(key->text()));
  DCP_CHECK(storage != storages.end(), kCorruptData, "the storage ", key->text(),
            " is listed twice, or no tensor names it");
  const std::int64_t bytes = storage->second.bytes;
  const std::int64_t numel = bytes / element_bytes(storage->second.dtype);
  const std::int64_t count = parts.count();
  DCP_CHECK(count == numel, kCorruptData, "the storage ", key->text(), " has ", count, " elements, its tensors say ",
            numel, ", before byte ", parts.position());
  DCP_CHECK(bytes <= parts.bytes_left(), kCorruptData, "the storage ", key->text(), " has ", bytes, " bytes at byte ",
            parts.position(), ", but the file ends after ", parts.bytes_left());
  zip::Member member{"data/" + storage->first, parts.position(), bytes, bytes, 0, false};
  parts.skip(bytes);
  storages.erase(storage);
  return member;
}

}  // namespace

bool is_before_zip(const RandomAccessFile& item) {
  std::uint8_t head[kMagicReach];
  const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(item.size(), kMagicReach));
  const MutableByteSpan begin(head, count);
  if (count == 0) return false;
  item.read_at(0, begin);
  return begin[0] == kProto && !std::ranges::search(begin, kMagicBytes).empty();
}

SavedArchive open_archive(const RandomAccessFile& item, std::int64_t max_pickle_bytes, const ParseLimits& limits) {
  PartReader parts(item, limits);
  read_prefix(parts);
  SavedArchive saved;
  saved.is_before_zip = true;
  const std::int64_t begin = parts.position();
  saved.pickle = parts.pickle("the value", max_pickle_bytes);
  saved.pickle_bytes = parts.position() - begin;
  saved.archive.members.push_back({"data.pkl", begin, saved.pickle_bytes, saved.pickle_bytes, 0, false});

  std::map<std::string, PickledStorage> storages = find_storages(saved.pickle.root);
  const pickle::Pickle keys = parts.pickle("the storage keys", max_pickle_bytes);
  DCP_CHECK(keys.root->kind == NodeKind::kList, kCorruptData, "the storage keys are a ",
            pickle::node_kind_name(keys.root->kind));
  for (Ref key : keys.root->items()) saved.archive.members.push_back(read_storage(parts, key, storages));
  DCP_CHECK(storages.empty(), kCorruptData, "the storage ", storages.begin()->first, " is not in the file");
  std::ranges::sort(saved.archive.members, {}, &zip::Member::name);
  return saved;
}

Bytes write_prefix() {
  Bytes out{kProto, 2};
  out.insert(out.end(), std::begin(kMagicBytes), std::end(kMagicBytes));
  out.push_back('.');
  const auto add = [&](pickle::Writer&& writer) {
    const Bytes bytes = std::move(writer).finish();
    out.insert(out.end(), bytes.begin(), bytes.end());
  };
  pickle::Writer version(2);
  version.integer(kProtocolVersion);
  add(std::move(version));

  pickle::Writer machine(2);
  machine.empty_dict();
  machine.put();
  machine.mark();
  machine.text("protocol_version");
  machine.integer(kProtocolVersion);
  machine.text("little_endian");
  machine.boolean(true);
  machine.text("type_sizes");
  machine.empty_dict();
  machine.put();
  machine.mark();
  for (const auto& [name, bytes] : {std::pair{"short", 2}, {"int", 4}, {"long", 4}}) {
    machine.text(name);
    machine.integer(bytes);
  }
  machine.set_items_from_mark();
  machine.set_items_from_mark();
  add(std::move(machine));
  return out;
}

Bytes write_keys(std::int64_t storage_count) {
  constexpr std::int64_t kBatch = 1000;  // of Python's pickler
  pickle::Writer writer(2);
  writer.empty_list();
  writer.put();
  for (std::int64_t key = 0; key < storage_count; ++key) {
    if (storage_count > 1 && key % kBatch == 0) writer.mark();
    writer.text(std::to_string(key));
    if (storage_count == 1) {
      writer.append();
    } else if ((key + 1) % kBatch == 0 || key + 1 == storage_count) {
      writer.appends_from_mark();
    }
  }
  return std::move(writer).finish();
}

Bytes write_count(std::int64_t element_count) {
  Bytes bytes(kCountBytes);
  for (int i = 0; i < kCountBytes; ++i) {
    bytes[static_cast<std::size_t>(i)] =
        static_cast<std::uint8_t>(static_cast<std::uint64_t>(element_count) >> (8 * i));
  }
  return bytes;
}

}  // namespace dcp::legacy
