#include <vector>

#include "torch_dcp/format/metadata_decoding_internal.h"

namespace dcp::metadata_decoding {
namespace {

/// A field that this library does not know may hold this many plain values.
constexpr std::size_t kMaxUnknownValues = 10'000;

bool is_dunder(std::string_view name) { return name.starts_with("__"); }

}  // namespace

std::ostream& operator<<(std::ostream& out, const Place& place) {
  out << ".metadata: " << place.part;
  if (place.key) out << " of key '" << *place.key << "'";
  if (!place.field.empty()) out << ", " << place.field;
  return out;
}

std::string describe_node(Ref node) {
  if (node == nullptr) return "nothing";
  if (node->kind == NodeKind::kGlobal) return c10::str("the name ", node->module(), ".", node->text());
  if (node->kind != NodeKind::kCall) return c10::str("a ", pickle::node_kind_name(node->kind));
  return node->callee()->kind == NodeKind::kGlobal
             ? c10::str("an object of ", node->callee()->module(), ".", node->callee()->text())
             : "an object";
}

void check_unknown_field(Ref name, Ref value, const Place& place) {
  DCP_CHECK(!is_dunder(name->text()), kCorruptData, place, ": a field '", name->text(), "' is not allowed");
  std::vector<Ref> pending{value};
  std::size_t seen = 0;
  while (!pending.empty()) {
    const Ref node = pending.back();
    pending.pop_back();
    DCP_CHECK(++seen <= kMaxUnknownValues, kUnsupported, place, ": the unknown field '", name->text(),
              "' is too large");
    DCP_CHECK(node->kind != NodeKind::kGlobal && node->kind != NodeKind::kCall && node->kind != NodeKind::kPersistentId,
              kUnsupported, place, ": the unknown field '", name->text(), "' holds ", describe_node(node));
    const std::size_t children = node->items().size() + 2 * node->entries().size();
    DCP_CHECK(children <= kMaxUnknownValues - seen, kUnsupported, place, ": the unknown field '", name->text(),
              "' is too large");
    pending.insert(pending.end(), node->items().begin(), node->items().end());
    for (const auto& [key, entry] : node->entries()) pending.insert(pending.end(), {key, entry});
  }
}

bool is_object(Ref node, std::string_view module, std::string_view cls) {
  return node != nullptr && node->kind == NodeKind::kCall && node->is_new_object &&
         node->callee()->is_global(module, cls) && node->items().empty() && node->entries().empty() &&
         node->appended().empty();
}

bool is_call_of_one(Ref node, Ref& argument) {
  if (node == nullptr || node->kind != NodeKind::kCall || node->is_new_object || node->items().size() != 1 ||
      node->state() != nullptr || !node->entries().empty() || !node->appended().empty()) {
    return false;
  }
  argument = node->items()[0];
  return true;
}

std::string_view read_text(Ref node, const Place& place) {
  DCP_CHECK(node != nullptr && node->kind == NodeKind::kText, kCorruptData, place, ": must be a str, is ",
            describe_node(node));
  return node->text();
}

std::int64_t read_int(Ref node, const Place& place) {
  DCP_CHECK(node == nullptr || node->kind != NodeKind::kBigInt, kCorruptData, place, ": ", node->text(),
            " does not fit 64 bits");
  DCP_CHECK(node != nullptr && node->kind == NodeKind::kInt, kCorruptData, place, ": must be an int, is ",
            describe_node(node));
  return node->integer();
}

std::int64_t read_count(Ref node, const Place& place) {
  const std::int64_t value = read_int(node, place);
  DCP_CHECK(value >= 0, kCorruptData, place, ": ", value, " is negative");
  return value;
}

bool read_bool(Ref node, const Place& place) {
  DCP_CHECK(node->kind == NodeKind::kBool, kCorruptData, place, ": must be a bool, is ", describe_node(node));
  return node->integer() != 0;
}

std::string copy_text(std::string_view text, const Bounds& bounds) {
  bounds.budget.charge(text.size());
  return std::string(text);
}

std::optional<std::string> read_optional_text(Ref node, const Bounds& bounds, const Place& place) {
  if (is_absent(node)) return std::nullopt;
  return copy_text(read_text(node, place), bounds);
}

Sizes read_sizes(Ref node, const Bounds& bounds, const Place& place) {
  Ref tuple = node;
  if (node != nullptr && node->kind == NodeKind::kCall) {
    DCP_CHECK(node->callee()->is_global("torch", "Size") && is_call_of_one(node, tuple), kCorruptData, place,
              ": must be a torch.Size, is ", describe_node(node));
  }
  DCP_CHECK(tuple != nullptr && tuple->kind == NodeKind::kTuple, kCorruptData, place, ": must be a torch.Size, is ",
            describe_node(tuple));
  DCP_CHECK(tuple->items().size() <= bounds.limits.max_ndim, kUnsupported, place, ": ", tuple->items().size(),
            " dimensions, more than ", bounds.limits.max_ndim);
  Sizes sizes;
  bounds.budget.charge(tuple->items().size() * sizeof(std::int64_t));
  sizes.reserve(tuple->items().size());
  for (Ref item : tuple->items()) sizes.push_back(read_count(item, place));
  return sizes;
}

}  // namespace dcp::metadata_decoding
