#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_dcp/base/export.h"
#include "torch_dcp/base/page_memory.h"

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

/// One inert value. Which parts it has follows from `kind`; the others are empty, so that asking for one by mistake is
/// harmless.
///
/// A large pickle has millions of nodes, mostly leaves: in memory a node is one of the structs below, which has room
/// for the parts of its kind alone. So nodes are made by the parser only, and never copied.
class Node {
 public:
  const NodeKind kind;
  bool is_new_object = false;  ///< kCall: made by NEWOBJ rather than REDUCE
  /// 0 for a leaf, for others 1 more than the deepest value when that was put in. Exact
  /// unless a value grew after it had been put into another, as in a cycle.
  std::uint32_t depth = 0;

  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  std::int64_t integer() const;               ///< kInt, kBool
  double real() const;                        ///< kFloat
  Text text() const;                          ///< kText, kBigInt; kBytes, kByteArray: the bytes; kGlobal: the name
  Text module() const;                        ///< kGlobal
  List<Ref> items() const;                    ///< kList, kTuple, kSet, kFrozenSet; kCall: arguments; kPersistentId: one
  List<std::pair<Ref, Ref>> entries() const;  ///< kDict, in order, doubled keys kept; kCall: items set on it
  Ref callee() const;                         ///< kCall
  Ref state() const;                          ///< kCall: the argument of BUILD, null without one
  List<Ref> appended() const;                 ///< kCall: items appended to it (a subclass of list)

  bool is_global(std::string_view module_name, std::string_view global_name) const {
    return kind == NodeKind::kGlobal && text() == global_name && module() == module_name;
  }

 protected:
  explicit Node(NodeKind node_kind) : kind(node_kind) {}
};

/// kNone, kBool, kInt, kFloat.
struct NumberNode : Node {
  explicit NumberNode(NodeKind node_kind) : Node(node_kind) {}
  union {
    std::int64_t integer = 0;
    double real;
  };
};

/// kText, kBigInt, kBytes, kByteArray.
struct TextNode : Node {
  explicit TextNode(NodeKind node_kind) : Node(node_kind) {}
  Text text;
};

/// kGlobal.
struct GlobalNode : Node {
  explicit GlobalNode(NodeKind node_kind) : Node(node_kind) {}
  Text name;
  Text module;
};

/// kList, kTuple, kSet, kFrozenSet, kPersistentId.
struct SequenceNode : Node {
  explicit SequenceNode(NodeKind node_kind) : Node(node_kind) {}
  List<Ref> items;
};

/// kDict.
struct DictNode : Node {
  explicit DictNode(NodeKind node_kind) : Node(node_kind) {}
  List<std::pair<Ref, Ref>> entries;
};

/// kCall.
struct CallNode : Node {
  explicit CallNode(NodeKind node_kind) : Node(node_kind) {}
  Ref callee = nullptr;
  Ref state = nullptr;
  List<Ref> items;
  List<Ref> appended;
  List<std::pair<Ref, Ref>> entries;
};

inline std::int64_t Node::integer() const {
  const bool has_one = kind == NodeKind::kInt || kind == NodeKind::kBool;
  return has_one ? static_cast<const NumberNode*>(this)->integer : 0;
}

inline double Node::real() const { return kind == NodeKind::kFloat ? static_cast<const NumberNode*>(this)->real : 0; }

inline Text Node::text() const {
  switch (kind) {
    case NodeKind::kText:
    case NodeKind::kBigInt:
    case NodeKind::kBytes:
    case NodeKind::kByteArray:
      return static_cast<const TextNode*>(this)->text;
    case NodeKind::kGlobal:
      return static_cast<const GlobalNode*>(this)->name;
    default:
      return {};
  }
}

inline Text Node::module() const {
  return kind == NodeKind::kGlobal ? static_cast<const GlobalNode*>(this)->module : Text();
}

inline List<Ref> Node::items() const {
  switch (kind) {
    case NodeKind::kList:
    case NodeKind::kTuple:
    case NodeKind::kSet:
    case NodeKind::kFrozenSet:
    case NodeKind::kPersistentId:
      return static_cast<const SequenceNode*>(this)->items;
    case NodeKind::kCall:
      return static_cast<const CallNode*>(this)->items;
    default:
      return {};
  }
}

inline List<std::pair<Ref, Ref>> Node::entries() const {
  if (kind == NodeKind::kCall) return static_cast<const CallNode*>(this)->entries;
  return kind == NodeKind::kDict ? static_cast<const DictNode*>(this)->entries : List<std::pair<Ref, Ref>>();
}

inline Ref Node::callee() const {
  return kind == NodeKind::kCall ? static_cast<const CallNode*>(this)->callee : nullptr;
}

inline Ref Node::state() const { return kind == NodeKind::kCall ? static_cast<const CallNode*>(this)->state : nullptr; }

inline List<Ref> Node::appended() const {
  return kind == NodeKind::kCall ? static_cast<const CallNode*>(this)->appended : List<Ref>();
}

/// A parsed pickle: the root, and the memory of all nodes, texts and lists.
///
/// Can be moved, and the nodes stay where they are. Freed without a walk over the
/// values, so depth and cycles do not matter.
struct Pickle {
  Ref root = nullptr;
  std::vector<PageMemory> chunks;
};

}  // namespace dcp::pickle
