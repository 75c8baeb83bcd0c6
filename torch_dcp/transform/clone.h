#pragma once

#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// A copy that shares no memory of tensors with `state`, detached from autograd.
///
/// What is one thing stays one thing: a tensor that is there twice is one new tensor in both places, and views of one
/// storage become views, with their strides and offsets, of one new storage, which is copied once and whole. DTensors
/// and ShardedTensors keep their layouts, tensors their devices. A Stateful, at any depth, becomes the clone of its
/// state. Opaque items are shared, since nobody can change them.
///
/// \throws dcp::Error kInvalidArgument for nesting beyond 500 and a Stateful whose state holds it; kUnsupported for
///         tensors whose operators are Python's, naming the path.
/// Collective: no.
DCP_API Dict clone(const Dict& state);

/// The same for any value.
DCP_API Value clone_value(const Value& value);

}  // namespace dcp
