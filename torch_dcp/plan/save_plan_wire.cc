#include <algorithm>

#include "torch_dcp/plan/wire.h"
#include "torch_dcp/plan/wire_codec_internal.h"

namespace dcp {
namespace {

// A plan: its paths, a section of bytes that stands for itself and is the same for ranks with the same paths; its
// items; its storage data.
//
// An item begins with a number of flags, in one byte if it is what most are: its key is the next one of the paths, its
// properties are those of the item before, its offset is its chunk's.

using PathMap = PlannerPaths::Map;

enum Flag : unsigned {
  kTypeMask = 3,
  kKeyAgain = 1 << 2,         ///< that of the item before, else the next of the paths
  kHasOffset = 1 << 3,        ///< the chunk's
  kHasHint = 1 << 4,          ///< a number follows
  kOtherProperties = 1 << 5,  ///< they follow
  kWhole = 1 << 6,            ///< the global shape is the chunk's
  kKeyAsText = 1 << 7,        ///< which follows
  kOwnOffset = 1 << 8,        ///< which follows
  kUneven = 1 << 9,           ///< the chunk's offsets, its sizes and the global shape have an ndim each
  kEnd = 1 << 10,
};

bool is_flat(const std::string& key, const Path& path) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (i > 0 && (at == key.size() || key[at++] != '.')) return false;
    const std::string index = path[i].step == PathStep::kDictKey ? std::string() : to_string(path[i]);
    const std::string& part = path[i].step == PathStep::kDictKey ? path[i].key : index;
    if (key.compare(at, part.size(), part) != 0) return false;
    at += part.size();
  }
  return at == key.size();
}

void put_paths(WireEncoder& out, const PathMap& paths) {
  out.number(paths.size());
  for (const auto& [key, path] : paths) {
    // A key that its path tells is left out.
    const bool has_key = !is_flat(key, path);
    out.number(path.size() << 1 | (has_key ? 1 : 0));
    for (const PathItem& item : path) put(out, item);
    if (has_key) out.text_once(key);
  }
}

PathMap get_paths(ByteSpan section) {
  ByteReader bytes(section);
  WireDecoder in(bytes);
  PathMap paths;
  std::size_t count = in.count("paths");
  // An entry may take much more room here than the byte it takes there.
  paths.reserve(std::min(count, section.size() / 8));
  for (; count > 0; --count) {
    const std::uint64_t head = in.number();
    DCP_CHECK(head >> 1 <= in.left() / 2, kCorruptData, "message has a path of ", head >> 1, " steps, ", in.left(),
              " bytes are left");
    Path path(head >> 1);
    for (PathItem& item : path) get(in, item);
    std::string key = (head & 1) != 0 ? std::string(in.text_once()) : flat_key(path);
    DCP_CHECK(!paths.contains(key), kCorruptData, "message has the path of '", key, "' twice");
    paths.insert(std::move(key), std::move(path));
  }
  DCP_CHECK(in.left() == 0, kCorruptData, "message has paths of ", section.size(), " bytes, of which ", in.left(),
            " are too many");
  return paths;
}

/// The keys of a plan's paths, one after the other.
class NextKey {
 public:
  explicit NextKey(const PlannerPaths& paths) {
    if (!paths) return;
    at_ = paths->begin();
    end_ = paths->end();
  }
  /// Null behind the last one.
  const std::string* peek() const { return at_ == end_ ? nullptr : &at_->first; }
  void skip() { ++at_; }

 private:
  PathMap::const_iterator at_{};
  PathMap::const_iterator end_{};
};

class ItemEncoder {
 public:
  ItemEncoder(WireEncoder& out, const PlannerPaths& paths) : out_(out), next_(paths) {}

  void put_item(const WriteItem& item) {
    const unsigned flags = static_cast<unsigned>(item.type) | key_flags(item) | index_flags(item) | tensor_flags(item);
    out_.number(flags);
    if ((flags & kKeyAsText) != 0) out_.text_once(item.index.fqn);
    if (item.is_tensor()) put_tensor(item, flags);
    if ((flags & kOwnOffset) != 0) out_.sizes(*item.index.offset);
    if ((flags & kHasHint) != 0) out_.integer(*item.index.index);
    key_ = &item.index.fqn;
  }

 private:
  unsigned key_flags(const WriteItem& item) {
    const std::string* next = next_.peek();
    if (next != nullptr && *next == item.index.fqn) {
      next_.skip();
      return 0;
    }
    return key_ != nullptr && *key_ == item.index.fqn ? kKeyAgain : kKeyAsText;
  }

  static unsigned index_flags(const WriteItem& item) {
    unsigned flags = item.index.index ? kHasHint : 0u;
    if (!item.index.offset) return flags;
    return flags | (item.is_tensor() && *item.index.offset == item.chunk.offsets ? kHasOffset : kOwnOffset);
  }

  unsigned tensor_flags(const WriteItem& item) const {
    if (!item.is_tensor()) return 0;
    const std::size_t ndim = item.chunk.ndim();
    unsigned flags = item.properties == properties_ ? 0u : kOtherProperties;
    if (item.chunk.sizes.size() != ndim || item.size.size() != ndim) return flags | kUneven;
    return item.size == item.chunk.sizes ? flags | kWhole : flags;
  }

  void put_tensor(const WriteItem& item, unsigned flags) {
    if ((flags & kUneven) != 0) {
      out_.sizes(item.chunk.offsets);
      out_.sizes(item.chunk.sizes);
      out_.sizes(item.size);
    } else {
      out_.sizes(item.chunk.offsets);
      out_.integers(item.chunk.sizes);
      if ((flags & kWhole) == 0) out_.integers(item.size);
    }
    if ((flags & kOtherProperties) == 0) return;
    put(out_, item.properties);
    properties_ = item.properties;
  }

  WireEncoder& out_;
  NextKey next_;
  const std::string* key_ = nullptr;  ///< of the item before
  TensorProperties properties_;
};

class ItemDecoder {
 public:
  ItemDecoder(WireDecoder& in, const PlannerPaths& paths) : in_(in), next_(paths) {}

  /// \param last  The item before; null if there is none.
  void get_item(WriteItem& item, const WriteItem* last) {
    const std::uint64_t flags = in_.number();
    DCP_CHECK(flags < kEnd && (flags & kTypeMask) < 3, kCorruptData, "message has ", flags, " for a write item");
    item.type = static_cast<WriteItemType>(flags & kTypeMask);
    get_key(item.index.fqn, flags, last);
    if (item.is_tensor()) get_tensor(item, flags);
    if ((flags & kOwnOffset) != 0) {
      item.index.offset.emplace(in_.sizes());
    } else if ((flags & kHasOffset) != 0) {
      item.index.offset.emplace(item.chunk.offsets);
    }
    if ((flags & kHasHint) != 0) item.index.index = in_.integer();
  }

 private:
  void get_key(std::string& key, std::uint64_t flags, const WriteItem* last) {
    if ((flags & kKeyAsText) != 0) {
      key = in_.text_once();
    } else if ((flags & kKeyAgain) != 0) {
      DCP_CHECK(last != nullptr, kCorruptData, "message has a first item without a key");
      in_.charge(last->index.fqn.size());
      key = last->index.fqn;
    } else {
      const std::string* next = next_.peek();
      DCP_CHECK(next != nullptr, kCorruptData, "message has an item whose key is none of its paths'");
      key = *next;
      next_.skip();
    }
  }

  void get_tensor(WriteItem& item, std::uint64_t flags) {
    const std::size_t ndim = in_.ndim();
    in_.integers(item.chunk.offsets, ndim);
    if ((flags & kUneven) != 0) {
      in_.integers(item.chunk.sizes, in_.ndim());
      in_.integers(item.size, in_.ndim());
    } else {
      in_.integers(item.chunk.sizes, ndim);
      if ((flags & kWhole) != 0) {
        item.size = item.chunk.sizes;
      } else {
        in_.integers(item.size, ndim);
      }
    }
    if ((flags & kOtherProperties) != 0) get(in_, properties_);
    item.properties = properties_;
  }

  WireDecoder& in_;
  NextKey next_;
  TensorProperties properties_;
};

void get_items(WireDecoder& in, const PlannerPaths& paths, std::vector<WriteItem>& items) {
  std::size_t count = in.count("items");
  items.clear();
  // Objects alone take fewer bytes than this.
  constexpr std::size_t kFewestBytes = 4;
  items.reserve(std::min(count, in.left() / kFewestBytes));
  ItemDecoder decoder(in, paths);
  for (; count > 0; --count) {
    WriteItem& item = items.emplace_back();
    decoder.get_item(item, items.size() > 1 ? &item - 1 : nullptr);
  }
}

}  // namespace

void encode(ByteWriter& bytes, const SavePlan& plan) {
  WireEncoder out(bytes);
  out.u8(plan.planner_data ? 1 : 0);
  if (plan.planner_data) {
    ByteWriter section;
    WireEncoder paths(section);
    put_paths(paths, *plan.planner_data);
    paths.finish();
    out.bytes(std::move(section).take());
  }
  out.number(plan.items.size());
  ItemEncoder items(out, plan.planner_data);
  for (const WriteItem& item : plan.items) items.put_item(item);
  out.text_once(plan.storage_data);
  out.finish();
}

void decode(ByteReader& bytes, SavePlan& plan) { SavePlanDecoder().decode(bytes, plan); }

PlannerPaths SavePlanDecoder::paths_of(ByteSpan section) {
  const auto known = std::find_if(known_.begin(), known_.end(), [&](const Known& one) {
    return std::equal(one.section.begin(), one.section.end(), section.begin(), section.end());
  });
  if (known != known_.end()) {
    std::rotate(known_.begin(), known, known + 1);
  } else {
    Known fresh{Bytes(section.begin(), section.end()), PlannerPaths(get_paths(section))};
    if (known_.size() == kMostKnown) known_.pop_back();
    known_.insert(known_.begin(), std::move(fresh));
  }
  return known_.front().paths;
}

void SavePlanDecoder::decode(ByteReader& bytes, SavePlan& plan) {
  WireDecoder in(bytes);
  plan.planner_data.reset();
  if (in.boolean()) plan.planner_data = paths_of(in.bytes("bytes of paths"));
  get_items(in, plan.planner_data, plan.items);
  plan.storage_data = in.text_once();
}

SavePlan SavePlanDecoder::decode(ByteSpan bytes) {
  ByteReader in(bytes);
  SavePlan plan;
  decode(in, plan);
  in.expect_end();
  return plan;
}

}  // namespace dcp
