#pragma once

#include <string>

#include "torch_dcp/pickle/value.h"

namespace dcp::pickle {

/// Writes a value as Python would, with `<module.name>` for a global, `<callee>(...)` for a
/// call, `new <callee>(...)` for NEWOBJ, `!state`, `+[appended]` and `+{entries}` after
/// it, `persid(...)`; what is nested deeper than `depth` is `...`.
inline std::string describe(Ref node, int depth = 20) {
  if (depth == 0) return "...";
  const auto join = [depth](const auto& nodes) {
    std::string text;
    for (Ref item : nodes) text += (text.empty() ? "" : ", ") + describe(item, depth - 1);
    return text;
  };
  const auto pairs = [depth](const auto& entries) {
    std::string text;
    for (const auto& [key, value] : entries) {
      text += (text.empty() ? "" : ", ") + describe(key, depth - 1) + ": " + describe(value, depth - 1);
    }
    return text;
  };
  const std::string text(node->text().view());
  switch (node->kind) {
    case NodeKind::kNone:
      return "None";
    case NodeKind::kBool:
      return node->integer() != 0 ? "True" : "False";
    case NodeKind::kInt:
      return std::to_string(node->integer());
    case NodeKind::kBigInt:
      return text + "L";
    case NodeKind::kFloat:
      return std::to_string(node->real());
    case NodeKind::kText:
      return "'" + text + "'";
    case NodeKind::kBytes:
      return "b'" + text + "'";
    case NodeKind::kByteArray:
      return "bytearray'" + text + "'";
    case NodeKind::kList:
      return "[" + join(node->items()) + "]";
    case NodeKind::kTuple:
      return "(" + join(node->items()) + ")";
    case NodeKind::kDict:
      return "{" + pairs(node->entries()) + "}";
    case NodeKind::kSet:
      return "set{" + join(node->items()) + "}";
    case NodeKind::kFrozenSet:
      return "frozenset{" + join(node->items()) + "}";
    case NodeKind::kGlobal:
      return "<" + std::string(node->module().view()) + "." + text + ">";
    case NodeKind::kPersistentId:
      return "persid(" + join(node->items()) + ")";
    case NodeKind::kCall:
      break;
  }
  std::string call = (node->is_new_object ? "new " : "") + describe(node->callee(), depth - 1);
  call += "(" + join(node->items()) + ")";
  if (node->state() != nullptr) call += "!" + describe(node->state(), depth - 1);
  if (!node->appended().empty()) call += "+[" + join(node->appended()) + "]";
  if (!node->entries().empty()) call += "+{" + pairs(node->entries()) + "}";
  return call;
}

}  // namespace dcp::pickle
