#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/format/copy_budget_internal.h"
#include "torch_dcp/pickle/value.h"
#include "torch_dcp/tensor/box.h"

// Reading single values of a metadata pickle, each checked; what is wrong with one is told with its place.

namespace dcp::metadata_decoding {

using pickle::NodeKind;
using pickle::Ref;

/// What bounds the decoding.
struct Bounds {
  const ParseLimits& limits;
  CopyBudget& budget;
};

/// Where in the metadata a value stands. Spelled only in errors.
struct Place {
  std::string_view part;  ///< a field of Metadata
  std::optional<std::string_view> key;
  std::string_view field;

  Place at(std::string_view name) const { return {part, key, name}; }
};

std::ostream& operator<<(std::ostream& out, const Place& place);

/// None and a field that is not there mean the same in all of them.
inline bool is_absent(Ref value) { return value == nullptr || value->kind == NodeKind::kNone; }

/// Spells what stands there in place of what was wanted.
std::string describe_node(Ref node);

/// Refuses what could be more than data in a field of a later PyTorch, which is then ignored.
void check_unknown_field(Ref name, Ref value, const Place& place);

/// Whether the node is a new object of the class: nothing but a name and a state.
bool is_object(Ref node, std::string_view module, std::string_view cls);

/// Whether the node is `callee(argument)`; `argument` is set then.
bool is_call_of_one(Ref node, Ref& argument);

/// The fields of an object by the places of their names in `known`; null where there is none.
template <std::size_t N>
std::array<Ref, N> read_fields(Ref object, const std::array<std::string_view, N>& known, const Place& place) {
  std::array<Ref, N> fields{};
  if (object->state() == nullptr) return fields;
  DCP_CHECK(object->state()->kind == NodeKind::kDict, kCorruptData, place, ": the state of ", describe_node(object),
            " is ", describe_node(object->state()), ", not a dict");
  for (const auto& [name, value] : object->state()->entries()) {
    DCP_CHECK(name->kind == NodeKind::kText, kCorruptData, place, ": a field is named by ", describe_node(name));
    const auto found = std::find(known.begin(), known.end(), name->text());
    if (found == known.end()) {
      check_unknown_field(name, value, place);
      continue;
    }
    Ref& field = fields[static_cast<std::size_t>(found - known.begin())];
    DCP_CHECK(field == nullptr, kCorruptData, place, ": the field '", name->text(), "' is there twice");
    field = value;
  }
  return fields;
}

template <std::size_t N>
std::array<Ref, N> read_object(Ref node, std::string_view module, std::string_view cls,
                               const std::array<std::string_view, N>& known, const Place& place) {
  DCP_CHECK(is_object(node, module, cls), kCorruptData, place, ": must be a ", cls, ", is ", describe_node(node));
  return read_fields(node, known, place);
}

std::string_view read_text(Ref node, const Place& place);
std::int64_t read_int(Ref node, const Place& place);
/// Not negative.
std::int64_t read_count(Ref node, const Place& place);
bool read_bool(Ref node, const Place& place);

/// A copy of the text: a pickle may refer to one long text from many places.
std::string copy_text(std::string_view text, const Bounds& bounds);
std::optional<std::string> read_optional_text(Ref node, const Bounds& bounds, const Place& place);

/// A torch.Size, or the tuple that one is.
Sizes read_sizes(Ref node, const Bounds& bounds, const Place& place);

}  // namespace dcp::metadata_decoding
