#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <ostream>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_dcp/base/export.h"

namespace dcp::pickle {

class Node;

/// A value in the tree that a pickle describes. Shared, because a pickle may refer
/// to one value many times, also to one that is still being built; so the "tree"
/// can hold cycles (a list in itself), which whoever walks it must bound.
/// Nodes live in the `Pickle` that owns them; this is a plain pointer into it.
using Ref = const Node*;

enum class NodeKind : std::uint8_t {
  kNone,
  kBool,
  kInt,     ///< fits 64 bits
  kBigInt,  ///< does not; `text` has its decimal digits
  kFloat,
  kText,  ///< str; UTF-8, lone surrogates as their 3-byte form
  kBytes,
  kByteArray,
  kList,
  kTuple,
  kDict,
  kSet,
  kFrozenSet,
  kGlobal,        ///< a name (module, name), never looked up
  kCall,          ///< REDUCE or NEWOBJ: `callee(items...)`, never called
  kPersistentId,  ///< a persistent id whose value is `items[0]`
};

/// Returns the enumerator's name in words, such as "big int", for messages.
DCP_API const char* node_kind_name(NodeKind kind) noexcept;

/// Characters or bytes that lie in the memory of a `Pickle`. Like a `std::string_view`, which it
/// converts to, but as small as a pointer, because a large pickle has millions of nodes.
class Text {
 public:
  std::string_view view() const {
    if (block_ == nullptr) return {};
    std::uint32_t size;
    std::memcpy(&size, block_, sizeof(size));
    return {block_ + sizeof(size), size};
  }
  operator std::string_view() const { return view(); }
  const char* data() const { return view().data(); }
  std::size_t size() const { return view().size(); }
  bool empty() const { return block_ == nullptr; }

  friend bool operator==(Text a, Text b) { return a.view() == b.view(); }
  friend bool operator==(Text a, std::string_view b) { return a.view() == b; }
  friend std::ostream& operator<<(std::ostream& stream, Text text) { return stream << text.view(); }

 private:
  friend class Arena;
  const char* block_ = nullptr;  ///< a 32-bit size, unaligned, and the characters; null if there are none
};

/// A read-only sequence that lies in the memory of a `Pickle`. As small as a pointer,
/// because every node has several and most of them are empty.
template <typename T>
class List {
 public:
  std::size_t size() const { return block_ == nullptr ? 0 : block_->size; }
  bool empty() const { return size() == 0; }
  const T* data() const { return block_ == nullptr ? nullptr : elements(block_); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size(); }
  const T& operator[](std::size_t index) const { return data()[index]; }
  const T& front() const { return data()[0]; }
  const T& back() const { return data()[size() - 1]; }
  operator std::span<const T>() const { return {data(), size()}; }

 private:
  friend class Arena;
  /// Followed by `capacity` elements.
  struct Block {
    std::uint32_t size;
    std::uint32_t capacity;
  };
  static T* elements(Block* block) { return reinterpret_cast<T*>(block + 1); }

  Block* block_ = nullptr;
};

/// One inert value. Which members mean something follows from `kind`; the others are
/// empty (`integer` and `real` share their place), so that reading one by mistake is harmless.
class Node {
 public:
  NodeKind kind = NodeKind::kNone;
  bool is_new_object = false;  ///< kCall: made by NEWOBJ rather than REDUCE
  /// 0 for a leaf, for others 1 more than the deepest value when that was put in. Exact
  /// unless a value grew after it had been put into another, as in a cycle.
  std::uint32_t depth = 0;
  union {
    std::int64_t integer = 0;  ///< kInt, kBool
    double real;               ///< kFloat
  };
  Text text;                          ///< kText, kBigInt; kBytes and kByteArray: the bytes; kGlobal: the name
  Text module;                        ///< kGlobal
  List<Ref> items;                    ///< kList, kTuple, kSet, kFrozenSet; kCall: the arguments; kPersistentId: one
  List<std::pair<Ref, Ref>> entries;  ///< kDict, in order, doubled keys kept; kCall: items set on it
  Ref callee = nullptr;               ///< kCall
  Ref state = nullptr;                ///< kCall: the argument of BUILD, null without one
  List<Ref> appended;                 ///< kCall: items appended to it (a subclass of list)

  bool is_global(std::string_view module_name, std::string_view global_name) const {
    return kind == NodeKind::kGlobal && text == global_name && module == module_name;
  }
};

/// A parsed pickle: the root, and the memory of all nodes, texts and lists.
///
/// Can be moved, and the nodes stay where they are. Freed without a walk over the
/// values, so depth and cycles do not matter.
struct Pickle {
  Ref root = nullptr;
  std::vector<std::unique_ptr<std::byte[]>> chunks;
};

}  // namespace dcp::pickle
