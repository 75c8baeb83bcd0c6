#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/tensor/box.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/tensor/quantized.h"

// One item of a data file: what torch.save writes for one tensor. The bytes are drawn in FORMAT.md beside this file.

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

/// What is in a tensor item, found without reading its elements; or where a tensor of a torch.save file lies.
struct TensorItem {
  c10::ScalarType dtype = c10::ScalarType::Float;
  NewerDtype newer_dtype = NewerDtype::kNone;  ///< what `dtype` stands for, as in NamedDtype
  Sizes sizes;                                 ///< [ndim]
  Sizes strides;                               ///< [ndim], in elements, non-negative; all inside the storage
  std::int64_t storage_offset = 0;             ///< in elements; 0 without elements
  bool is_conj = false;                        ///< the stored elements are to be conjugated
  bool is_neg = false;                         ///< the stored elements are to be negated
  bool is_big_endian = false;                  ///< the stored elements are to be swapped
  std::optional<Quantizer> quantizer;          ///< of a quantized dtype

  // Where the storage lies.
  bool is_stored = true;           ///< else deflated: only `read_storage` gives its bytes
  std::int64_t data_position = 0;  ///< of the storage's first byte within the item (or of its deflated form)
  std::int64_t data_bytes = 0;     ///< bytes of the storage: exactly its elements
  std::int64_t compressed_bytes = 0;
  std::uint32_t crc32 = 0;  ///< of the storage's bytes; 0: not recorded

  /// Whether the elements lie row-major without gaps from `storage_offset` elements behind `data_position` on, in
  /// plain form: a slice can be read straight from the file.
  bool is_plain_contiguous() const;
};

namespace zip {
class ClosingPart;
}

/// The form that items of one dtype and shape have in common: all of their bytes but the elements, the checksum and
/// what follows from it. For many small tensors, whose frames would take longer than their elements.
///
/// Thread safety: none.
class DCP_API TensorItemForm {
 public:
  /// \throws dcp::Error as `begin_tensor_item`.
  TensorItemForm(c10::ScalarType dtype, c10::IntArrayRef sizes);
  ~TensorItemForm();

  const Bytes& head() const { return head_; }
  std::int64_t data_bytes() const { return item_.data_bytes; }
  std::int64_t item_bytes() const { return item_bytes_; }

  /// What `finish_tensor_item` returns for this CRC-32; valid until the next call.
  ByteSpan tail(std::uint32_t crc32);

  /// Opens an item if it has this form byte by byte, as nearly all that are written by this library or by PyTorch have.
  ///
  /// \returns What `open_tensor_item` would, or nothing: then that function has to say what the item is.
  /// \throws dcp::Error kIo, kCorruptData if the item is not inside the file.
  std::optional<TensorItem> open(const RandomAccessFile& file, std::int64_t offset, std::int64_t length);

 private:
  Bytes head_;
  std::int64_t item_bytes_ = 0;
  TensorItem item_;
  std::unique_ptr<zip::ClosingPart> closing_;
  Bytes read_;  // kept for its memory
};

/// Keeps the forms that were needed before, up to a number of them. Thread safety: none.
class DCP_API TensorItemForms {
 public:
  /// The form; valid until the next call.
  TensorItemForm& of(c10::ScalarType dtype, c10::IntArrayRef sizes);

 private:
  struct Key {
    c10::ScalarType dtype;
    Sizes sizes;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const { return SizesHash()(key.sizes) * 31 + static_cast<int>(key.dtype); }
  };

  std::unordered_map<Key, std::unique_ptr<TensorItemForm>, Hash> forms_;
};

/// Opens the tensor item at [offset, offset + length) of a file and checks everything but its elements:
/// zip structure, members, version, byte order, pickle, dtype, that sizes, strides and offset stay
/// inside the storage, and that the storage has exactly the bytes that its numel states. Reads a few
/// KiB however large the tensor is. An item may also have the form that torch.save had before zip.
///
/// \throws dcp::Error kCorruptData or kUnsupported; messages tell the byte offset within the item.
///         The caller adds file and key.
/// Collective: no. Thread safety: pure.
DCP_API TensorItem open_tensor_item(const RandomAccessFile& file, std::int64_t offset, std::int64_t length,
                                    const ParseLimits& limits = {});

/// Reads every member of the item at [offset, offset + length) of a file, of a tensor or an object, and checks its
/// CRC-32 (where one is recorded), and looks up every storage that its pickle names. Takes 1 MiB of memory and the
/// pickle, however large the item is.
///
/// \param on_read  Told how many bytes of the file have been read since the last call; may be empty.
/// \throws dcp::Error kCorruptData, kUnsupported, kIo.
DCP_API void check_item_members(const RandomAccessFile& file, std::int64_t offset, std::int64_t length,
                                const ParseLimits& limits = {}, const std::function<void(std::int64_t)>& on_read = {});

/// Reads the whole storage of an item as it is stored, inflated if needed, and checks its CRC-32.
///
/// \throws dcp::Error kCorruptData, kIo.
DCP_API Bytes read_storage(const RandomAccessFile& file, std::int64_t item_offset, const TensorItem& item);

/// Reads a stored tensor: on the CPU, with the sizes and strides of the file, conjugated and negated where the file
/// says so, quantized with its quantizer. Goes from the file into the tensor's memory without another copy. Of a
/// storage that is much larger than what the tensor reaches in it, only that is read, and no CRC-32 checked.
///
/// \param verify_checksum  Checks the CRC-32 of a storage that is read whole, if one is recorded.
/// \throws dcp::Error kCorruptData, kIo.
DCP_API at::Tensor read_tensor(const RandomAccessFile& file, std::int64_t item_offset, const TensorItem& item,
                               bool verify_checksum = true);

}  // namespace dcp
