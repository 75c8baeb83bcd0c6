#include "torch_dcp/pickle/value.h"

namespace dcp::pickle {

// clang-format off
const char* node_kind_name(NodeKind kind) noexcept {
  switch (kind) {
    case NodeKind::kNone: return "None";
    case NodeKind::kBool: return "bool";
    case NodeKind::kInt: return "int";
    case NodeKind::kBigInt: return "big int";
    case NodeKind::kFloat: return "float";
    case NodeKind::kText: return "str";
    case NodeKind::kBytes: return "bytes";
    case NodeKind::kByteArray: return "bytearray";
    case NodeKind::kList: return "list";
    case NodeKind::kTuple: return "tuple";
    case NodeKind::kDict: return "dict";
    case NodeKind::kSet: return "set";
    case NodeKind::kFrozenSet: return "frozenset";
    case NodeKind::kGlobal: return "global";
    case NodeKind::kCall: return "object";
    case NodeKind::kPersistentId: return "persistent id";
  }
  return "unknown";
}
// clang-format on

}  // namespace dcp::pickle
