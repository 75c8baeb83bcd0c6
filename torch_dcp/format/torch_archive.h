#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/tensor/box.h"

// One item of a data file: the zip archive that torch.save writes for one tensor. The bytes are
// drawn in FORMAT.md beside this file.

namespace dcp {

/// The bytes around a contiguous tensor's elements in its item: an item is `head`, then
/// `data_bytes` bytes of elements, then what `finish_tensor_item` returns.
struct TensorItemFrame {
  Bytes head;  ///< up to the first element; a multiple of 64 bytes
  std::int64_t data_bytes = 0;
  std::int64_t item_bytes = 0;    ///< of the whole item
  std::int64_t pickle_bytes = 0;  ///< of `data.pkl` in `head`
};

/// Starts the item of a contiguous little-endian tensor, as `torch.save` would write it and
/// `torch.load(weights_only=True)` opens it.
///
/// \param sizes  Shape of the chunk, [ndim]; may be empty or hold 0.
/// \throws dcp::Error kUnsupported for a dtype that PyTorch cannot save this way (quantized ones need a
///         quantizer), kInvalidArgument if the bytes overflow 64 bits.
/// Collective: no. Thread safety: pure.
/// Source: torch/serialization.py, caffe2/serialize (2.14.1); interop FORMAT.md 3.
DCP_API TensorItemFrame begin_tensor_item(c10::ScalarType dtype, c10::IntArrayRef sizes);

/// The bytes after the elements.
///
/// \param crc32  Zip's CRC-32 of the elements' bytes; see crc32.h.
DCP_API Bytes finish_tensor_item(const TensorItemFrame& frame, std::uint32_t crc32);

/// What is in a tensor item, found without reading its elements.
struct TensorItem {
  c10::ScalarType dtype = c10::ScalarType::Float;
  Sizes sizes;                      ///< [ndim]
  Sizes strides;                    ///< [ndim], in elements, non-negative; all inside the storage
  std::int64_t storage_offset = 0;  ///< in elements; 0 without elements
  bool is_conj = false;             ///< the stored elements are to be conjugated
  bool is_neg = false;              ///< the stored elements are to be negated
  bool is_big_endian = false;       ///< the stored elements are to be swapped

  // Where the storage lies.
  bool is_stored = true;           ///< else deflated: only `read_storage` gives its bytes
  std::int64_t data_position = 0;  ///< of the storage's first byte within the item (or of its deflated form)
  std::int64_t data_bytes = 0;     ///< bytes of the storage: exactly its elements
  std::int64_t compressed_bytes = 0;
  std::uint32_t crc32 = 0;  ///< of the storage's bytes; 0: not recorded

  /// Whether the elements lie row-major without gaps from `data_position` on, in plain form: a slice can be
  /// read straight from the file.
  bool is_plain_contiguous() const;
};

/// Opens the tensor item at [offset, offset + length) of a file and checks everything but its elements:
/// zip structure, members, version, byte order, pickle, dtype, that sizes, strides and offset stay
/// inside the storage, and that the storage has exactly the bytes that its numel states. Reads a few
/// KiB however large the tensor is.
///
/// \throws dcp::Error kCorruptData or kUnsupported; messages tell the byte offset within the item.
///         The caller adds file and key.
/// Collective: no. Thread safety: pure.
DCP_API TensorItem open_tensor_item(const RandomAccessFile& file, std::int64_t offset, std::int64_t length,
                                    const ParseLimits& limits = {});

/// Reads the whole storage of an item, inflated if needed, and checks its CRC-32.
///
/// \throws dcp::Error kCorruptData, kIo.
DCP_API Bytes read_storage(const RandomAccessFile& file, std::int64_t item_offset, const TensorItem& item);

}  // namespace dcp
