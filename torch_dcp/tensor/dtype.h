#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "torch_dcp/base/export.h"

namespace dcp {

using c10::ScalarType;

/// Python's name of a dtype without "torch.": `float32`, `bfloat16`, `float8_e4m3fn`.
///
/// \throws dcp::Error kUnsupported for a type that has none.
DCP_API std::string dtype_name(ScalarType dtype);

/// The reverse of dtype_name; nothing for an unknown name or one this LibTorch lacks.
DCP_API std::optional<ScalarType> dtype_from_name(std::string_view name);

/// A dtype of later releases of PyTorch that this LibTorch may lack.
enum class NewerDtype : std::uint8_t {
  kNone,
  kFloat8E8m0fnu,
  kFloat4E2m1fnX2,
  kBComplex32,
};

/// What this LibTorch has for a dtype's name.
struct NamedDtype {
  ScalarType dtype = ScalarType::Undefined;
  /// The dtype that it lacks; `dtype` is then the unsigned integer of the same width, so that the elements' bits can be
  /// kept.
  NewerDtype newer = NewerDtype::kNone;
};

/// As dtype_from_name, but a dtype of a later release gets a stand-in.
DCP_API std::optional<NamedDtype> named_dtype(std::string_view name);

/// Python's name of what `named_dtype` found.
DCP_API std::string dtype_name(const NamedDtype& dtype);

/// Bytes of one element.
DCP_API std::int64_t element_bytes(ScalarType dtype);

/// How torch.save writes a dtype's storage.
struct StorageName {
  std::string_view module;  ///< "torch", or "torch.storage" for UntypedStorage
  std::string_view name;    ///< such as "FloatStorage"
  /// Whether the tensor is written by `_rebuild_tensor_v3` with the dtype as an
  /// argument, its persistent id counting bytes.
  bool is_untyped = false;
};

/// \throws dcp::Error kUnsupported for a dtype that torch.distributed.checkpoint cannot save.
/// Source: torch/storage.py (2.14.1); interop FORMAT.md 3.3.
DCP_API StorageName storage_name(ScalarType dtype);

/// The dtype of a typed storage's class name such as "FloatStorage"; nothing if unknown.
DCP_API std::optional<ScalarType> dtype_from_storage_name(std::string_view name);

/// Bytes that byte-order swapping treats as one number: half an element for complex types.
DCP_API std::int64_t swap_unit_bytes(ScalarType dtype);

/// Whether every value of `from` is a value of `to` (bool to uint8, bfloat16 to float32).
/// A dtype converts to itself.
DCP_API bool converts_without_loss(ScalarType from, ScalarType to);

}  // namespace dcp
