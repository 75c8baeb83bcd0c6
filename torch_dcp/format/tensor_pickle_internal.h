#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "torch_dcp/base/limits.h"
#include "torch_dcp/pickle/value.h"
#include "torch_dcp/pickle/writer.h"
#include "torch_dcp/tensor/box.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {

struct PickledQuantizer;

/// What a pickled call that makes a tensor says (`_rebuild_tensor_v2`, `_rebuild_tensor_v3`, `_rebuild_qtensor`, or
/// `_rebuild_parameter` around one), checked: sizes and strides of one ndim, non-negative, and all elements inside the
/// storage. Strides of 0 may make more elements than the storage has; their bytes fit 64 bits.
struct PickledTensor {
  std::string storage_key;         ///< digits: the member "data/KEY"
  std::int64_t storage_numel = 0;  ///< in elements of `dtype`
  std::int64_t storage_bytes = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  NewerDtype newer_dtype = NewerDtype::kNone;  ///< what `dtype` stands for, as in NamedDtype
  Sizes sizes;
  Sizes strides;
  std::int64_t storage_offset = 0;  ///< in elements; 0 without elements
  bool is_conj = false;
  bool is_neg = false;
  bool requires_grad = false;                         ///< of a parameter, what is said of that
  std::shared_ptr<const PickledQuantizer> quantizer;  ///< of a quantized tensor, null for others
};

/// The affine quantizer of a tensor. Per channel its numbers are tensors themselves, [sizes[axis]].
struct PickledQuantizer {
  bool is_per_channel = false;
  double scale = 1;
  std::int64_t zero_point = 0;
  PickledTensor scales;       ///< float64 or float32
  PickledTensor zero_points;  ///< int64 or int32; float64 or float32 for the scheme with those
  std::int64_t axis = 0;
};

/// What a persistent id says of a storage.
struct PickledStorage {
  std::string key;  ///< digits
  /// uint8 for an untyped one.
  c10::ScalarType dtype = c10::ScalarType::Byte;
  std::int64_t bytes = 0;
};

/// Whether a persistent id is one of a storage in form: ('storage', class, key, location, count), in the form before
/// zip with a None behind.
bool is_storage_id(pickle::Ref node);

/// \throws dcp::Error kCorruptData, kUnsupported (an unknown class of storage, a part of another storage).
PickledStorage parse_storage_id(pickle::Ref node);

/// Whether the node is a call that makes a tensor (of any kind, also one that is refused below).
bool is_tensor_call(pickle::Ref node);

/// \throws dcp::Error kCorruptData, kUnsupported (a kind of tensor that is not read, an unknown storage or dtype).
PickledTensor parse_tensor_call(pickle::Ref node, const ParseLimits& limits);

/// Writes the call that makes a tensor, with Python's memo places, leaving it on the pickle's stack. Returns the
/// tensor's memo number.
///
/// \param is_before_zip  Whether storages are named as in the form before zip.
/// \throws dcp::Error kUnsupported for a dtype that torch.save has no form for.
std::uint32_t write_tensor_call(pickle::Writer& writer, const PickledTensor& tensor, bool is_before_zip = false);

/// The same for a contiguous tensor that has the storage `storage_key` alone.
///
/// \throws dcp::Error also kUnsupported for a quantized dtype, which needs a quantizer.
void write_tensor_call(pickle::Writer& writer, const std::string& storage_key, c10::ScalarType dtype,
                       c10::IntArrayRef sizes);

/// A contiguous tensor of these sizes that has a storage of its own.
///
/// \throws dcp::Error kInvalidArgument if its bytes do not fit 64 bits.
PickledTensor contiguous_tensor(std::string storage_key, c10::ScalarType dtype, c10::IntArrayRef sizes);

}  // namespace dcp
