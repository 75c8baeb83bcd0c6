#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/tensor/box.h"

// A file of the safetensors form: a length, a JSON header, the elements. Drawn in FORMAT.md beside this file.

namespace dcp {

/// One tensor of a file, or the part of one that the file holds.
struct SafetensorsTensor {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Float;
  Sizes sizes;  ///< of what the file holds, [ndim]
  /// Where that begins in the whole tensor, [ndim]; nothing: it is the whole.
  std::optional<Sizes> saved_offsets;
  std::int64_t position = 0;  ///< of the first byte, counted from the first of all elements
  std::int64_t byte_count = 0;
  /// Of the whole tensor, [ndim]; nothing: not told, as in PyTorch's files. Only with `saved_offsets`.
  std::optional<Sizes> global_size = {};
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;         ///< in the order of their bytes
  OrderedMap<std::string, std::string> metadata;  ///< `__metadata__`, but for the parts' places
  std::int64_t data_position = 0;                 ///< of the first of all elements in the file
};

/// The form's name of a dtype, such as `BF16`; nothing for one that the safetensors package cannot hand to Python:
/// complex128, complex32, float8_e8m0fnu, quantized and packed ones.
DCP_API std::optional<std::string_view> safetensors_dtype(c10::ScalarType dtype);

/// The reverse. Also knows `F8_E8M0`, which is read but not written.
DCP_API std::optional<c10::ScalarType> dtype_from_safetensors(std::string_view name);

/// Reads and checks a file's header: that it lies in the file and is JSON of the right form without equal names; that
/// dtype and shape make the bytes of each tensor; that the tensors lie one after another without overlap or hole up to
/// the file's end; and that `DCP_SHARDING_INFO`, if there is one, has offsets of the right rank for each tensor, and
/// where it has a global size, that the part lies in it. Unknown fields of a tensor are ignored, as the package does.
///
/// Memory: the header, and a few times the bytes of its names.
/// \throws dcp::Error kCorruptData; kUnsupported for a dtype that this LibTorch lacks. Messages name the tensor where
/// it
///         is known; the caller adds the file.
/// Source: the safetensors package 0.8.0; torch/distributed/checkpoint/hf_storage.py (2.14.1); interop FORMAT.md 6.
DCP_API SafetensorsHeader read_safetensors_header(const RandomAccessFile& file, const ParseLimits& limits = {});

/// Lays tensors out as the package does: wider dtypes first, then by name. Sets their positions and byte counts.
///
/// \throws dcp::Error naming all faults: kUnsupported for a dtype without a name in this form; kKey for equal names,
///         kInvalidArgument for one that is no UTF-8 or `__metadata__`, for bytes that overflow 64 bits, for offsets
///         that only some tensors have, and for a part that does not lie in its global size.
DCP_API SafetensorsHeader lay_out_safetensors(std::vector<SafetensorsTensor> tensors);

/// The bytes up to the first element, a multiple of 8: `metadata`, and, if the tensors have `saved_offsets`, what
/// PyTorch adds of them, with the global sizes that are given.
///
/// \pre The header comes from `lay_out_safetensors`; only its metadata was changed.
DCP_API Bytes encode_safetensors_header(const SafetensorsHeader& header);

}  // namespace dcp
