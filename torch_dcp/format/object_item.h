#pragma once

#include <string>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// Writes an object as an item: what `torch.save(object)` gives. An Opaque is returned as it was stored.
///
/// Tuples and lists may hold tensors (`at::Tensor` only), each with a storage of its own.
///
/// \throws dcp::Error kUnsupported, naming the place inside, for what cannot lie in an object: a
///         DTensor, ShardedTensor or Stateful, an Opaque inside a container.
/// Collective: no. Thread safety: pure.
/// Source: interop FORMAT.md 4.
DCP_API Bytes encode_object_item(const Value& value);

/// Reads an object item. None, bool, 64-bit int, float, str, bytes, list, tuple, dict (str and int keys;
/// OrderedDict too, which becomes a Dict) and tensors in them (strided, not quantized; a Parameter becomes
/// a tensor) become values; if anything else is inside, the whole item is an Opaque. Shared tensors stay
/// shared; any other shared subtree is copied, within bounds on the memory. Nothing is executed.
///
/// An item that names a function or module that runs code is refused, wherever in it the name stands and
/// whether or not it is called, since Python would run it: eval, exec, compile, getattr, __import__, open
/// and their like among the builtins, and everything in os, posix, nt, subprocess, sys, importlib, shutil,
/// socket, runpy, pty, code, commands, ctypes, pickle, marshal, multiprocessing and the other packages
/// listed in object_forms.cc. Every other unknown class or function makes an Opaque.
///
/// Every part that is used has its CRC-32 checked; of an Opaque, every stored member.
///
/// \throws dcp::Error kCorruptData for a damaged item, among others a persistent id that is no storage and a
///         tensor outside of its storage; kUnsupported for one that names what runs code, nests deeper
///         than `limits.max_depth`, or would take far more memory than it when its shared parts are copied
///         (as a list that holds itself would).
DCP_API Value decode_object_item(Bytes item, const ParseLimits& limits = {});

}  // namespace dcp
