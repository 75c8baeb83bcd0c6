#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/pickle/value.h"

// The forms in which Python pickles the objects that this library knows.

namespace dcp::object_forms {

/// Checks everything in an object's pickle, also what is not interpreted: that no name of a function that
/// runs code appears (see object_item.h), that persistent ids are storages, and that tensors are sound.
///
/// \throws dcp::Error kUnsupported for such a name, kCorruptData for the rest.
void check_pickle(pickle::Ref root, const ParseLimits& limits);

/// Python's type of the value as far as the pickle tells, such as ("builtins", "set").
struct TypeName {
  std::string_view module;
  std::string_view name;

  /// Spells `module.name`.
  std::string qualified() const;
  /// The same, but without "builtins".
  std::string display() const;
};

TypeName type_of(pickle::Ref node);

/// Whether the node is `module.name(items...)` and nothing has been set on what it returns. "builtins"
/// stands for its old name `__builtin__` too.
bool is_plain_call(pickle::Ref node, std::string_view module, std::string_view name);

/// Whether the node is a tensor of a kind that can be read: strided, quantized ones too.
bool is_readable_tensor(pickle::Ref node);

/// Whether the node is a collections.OrderedDict without attributes; its items are in `entries`.
///
/// \param may_have_metadata  Takes one with the attribute `_metadata` too, which `Module.state_dict()` sets: the
///                           version number of each module.
bool is_ordered_dict(pickle::Ref node, bool may_have_metadata = false);

/// The bytes of a `bytes` object; nothing if the node is none.
///
/// \throws dcp::Error kCorruptData for characters beyond latin-1.
std::optional<Bytes> bytes_of(pickle::Ref node);

}  // namespace dcp::object_forms
