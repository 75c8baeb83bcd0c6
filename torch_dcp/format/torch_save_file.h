#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torch_dcp/base/export.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/format/torch_save_form.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/value.h"

// A file of torch.save: any value, with any number of tensors that may share storages. FORMAT.md has the picture.

namespace dcp {

/// A tensor in a file.
struct SavedTensor {
  Path path;                   ///< from the root; a tensor that is referred to twice is there twice
  std::string storage_key;     ///< the same for tensors that share their memory
  TensorItem item;             ///< where it lies; positions count from the file's first byte
  bool requires_grad = false;  ///< as the file says, of parameters and of other tensors
};

/// A part of a file that no value can hold: an object of a class that is not known here.
struct UnreadPart {
  Path path;
  std::string type_name;  ///< Python's, such as "collections.deque"
};

/// A file of torch.save, opened: all of it is checked but the elements of its tensors. Executes nothing.
///
/// What is read as a value, and what refused for running code, is as `decode_object_item` tells; an OrderedDict with
/// the attribute `_metadata`, as `Module.state_dict()` makes it, is read without that. Of a Parameter its tensor is
/// read.
///
/// Thread safety: const calls from many threads.
class DCP_API TorchSaveFile {
 public:
  /// \throws dcp::Error kCorruptData, kUnsupported; messages tell the byte offset. The caller adds the path.
  explicit TorchSaveFile(std::shared_ptr<const RandomAccessFile> file, const ParseLimits& limits = {});
  ~TorchSaveFile();
  TorchSaveFile(TorchSaveFile&&) noexcept;

  TorchSaveForm form() const;

  /// The value without elements: tensors are on the meta device with their dtype, sizes and strides, and None stands
  /// for each unread part.
  const Value& structure() const;
  /// All tensors, in the order in which a walk over `structure()` meets them.
  const std::vector<SavedTensor>& tensors() const;
  const std::vector<UnreadPart>& unread() const;

  /// Reads a tensor alone, into memory of its own.
  ///
  /// \throws dcp::Error kCorruptData, kIo.
  at::Tensor read_tensor(const SavedTensor& tensor, bool verify_checksum = true) const;

  /// Reads the whole value: every storage once, straight into the memory of its tensors, which share it as they did;
  /// tensors on the CPU, `requires_grad` as in the file. A tensor that was stored as the conjugate or negative of its
  /// memory's elements gets memory of its own.
  ///
  /// \throws dcp::Error kCorruptData, kIo.
  Value read(bool verify_checksums = true) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether a file begins as one of torch.save does, and in which form; nothing if it does not.
DCP_API std::optional<TorchSaveForm> find_torch_save_form(const RandomAccessFile& file);

/// Writes a value as torch.save does, to a file that is open.
///
/// Tensors share storages in the file as they do in memory. A storage is written whole, also if the tensors reach only
/// a part of it (as torch.save does: clone a small view of a large tensor before). Tensors of other devices go through
/// buffers of 16 MiB. A tensor on the meta device stands for one whose elements come later: the writer stops there
/// until `write` has got them, so that a file can be made of tensors that are never in memory together.
///
/// \code
///   TorchSaveWriter writer(out, structure);
///   while (const at::Tensor* awaited = writer.awaited()) writer.write(make(*awaited));
///   writer.finish();
/// \endcode
///
/// Class state after an error: good for destruction only. Thread safety: none.
/// Source: torch/serialization.py (2.14.1); interop FORMAT.md 7.
class DCP_API TorchSaveWriter {
 public:
  /// Writes everything up to the first elements that are to come.
  ///
  /// \param out    Borrowed.
  /// \param value  An `Opaque` only as the whole value, in its own form; no DTensor, ShardedTensor or Stateful.
  /// \throws dcp::Error kUnsupported, naming the place, for what torch.save cannot write or PyTorch not read: those,
  ///         dtypes without a form, tensors of different dtypes on one memory; kInvalidArgument for undefined tensors.
  TorchSaveWriter(WritableFile& out, const Value& value, TorchSaveForm form = TorchSaveForm::kZip);
  ~TorchSaveWriter();

  /// The tensor on the meta device whose elements come next; null if there are none left. One that the value holds
  /// twice comes once.
  const at::Tensor* awaited() const;

  /// Writes the elements of `awaited()`.
  ///
  /// \param tensor  Of its dtype and sizes; copied once if it is not contiguous on the CPU.
  /// \throws dcp::Error kShape, kType, kState.
  void write(const at::Tensor& tensor);
  /// Writes a part of them: bytes in row-major order, in any number of parts.
  ///
  /// \throws dcp::Error kInvalidArgument for more bytes than are left of it, kState.
  void write_part(ByteSpan bytes);

  /// Ends the file; does not close it.
  ///
  /// \throws dcp::Error kState if elements are missing.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dcp
