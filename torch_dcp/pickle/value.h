#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_dcp/base/bytes.h"

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
  kInt,        ///< fits 64 bits
  kBigInt,     ///< does not; `text` has its decimal digits
  kFloat,
  kText,       ///< str; UTF-8, lone surrogates as their 3-byte form
  kBytes,
  kByteArray,
  kList,
  kTuple,
  kDict,
  kSet,
  kFrozenSet,
  kGlobal,        ///< a name (module, name), never looked up
  kCall,          ///< REDUCE or NEWOBJ: `callee(args...)`, never called
  kPersistentId,  ///< a persistent id whose value is `args`
};

/// One inert value. Which members mean something follows from `kind`.
class Node {
 public:
  NodeKind kind = NodeKind::kNone;
  bool is_new_object = false;   ///< kCall: made by NEWOBJ rather than REDUCE
  std::int64_t integer = 0;     ///< kInt, kBool
  double real = 0;              ///< kFloat
  std::string text;             ///< kText, kBigInt; kBytes and kByteArray: the bytes; kGlobal: the name
  std::string module;           ///< kGlobal
  std::vector<Ref> items;       ///< kList, kTuple, kSet, kFrozenSet; kCall: the arguments; kPersistentId: one
  std::vector<std::pair<Ref, Ref>> entries;  ///< kDict, in order, doubled keys kept; kCall: items set on it
  Ref callee = nullptr;         ///< kCall
  Ref state = nullptr;          ///< kCall: the argument of BUILD, null without one
  std::vector<Ref> appended;    ///< kCall: items appended to it (a subclass of list)

  bool is_global(std::string_view module_name, std::string_view global_name) const {
    return kind == NodeKind::kGlobal && module == module_name && text == global_name;
  }
};

/// A parsed pickle: the root, and all nodes that it owns.
struct Pickle {
  Ref root = nullptr;
  std::vector<std::unique_ptr<Node>> nodes;
};

}  // namespace dcp::pickle
