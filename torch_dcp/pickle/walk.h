#pragma once

#include <unordered_set>
#include <vector>

#include "torch_dcp/pickle/value.h"

namespace dcp::pickle {

/// Calls `visit(node)` for the root and for all that it holds, keys, callees and states too, each node with parts once
/// and a leaf as often as it is held, in no particular order. What a node holds is left out if `visit` returns false.
/// Cycles and depth do not matter: memory is a few words per node with parts.
template <typename Visit>
void walk(Ref root, const Visit& visit) {
  std::unordered_set<Ref> seen;
  std::vector<Ref> pending{root};
  while (!pending.empty()) {
    const Ref node = pending.back();
    pending.pop_back();
    const bool has_parts = node->kind == NodeKind::kCall || node->kind == NodeKind::kPersistentId || node->depth > 0 ||
                           !node->items().empty() || !node->entries().empty();
    if (has_parts && !seen.insert(node).second) continue;
    if (!visit(node) || !has_parts) continue;
    pending.insert(pending.end(), node->items().begin(), node->items().end());
    pending.insert(pending.end(), node->appended().begin(), node->appended().end());
    for (const auto& [key, value] : node->entries()) pending.insert(pending.end(), {key, value});
    if (node->callee() != nullptr) pending.push_back(node->callee());
    if (node->state() != nullptr) pending.push_back(node->state());
  }
}

}  // namespace dcp::pickle
