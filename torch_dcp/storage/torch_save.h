#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/format/torch_save_form.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/value.h"
#include "torch_dcp/tensor/box.h"

// Files of Python's torch.save, both ways; beside checkpoints, for weights that come from or go to other programs.

namespace dcp {

struct TorchLoadOptions {
  bool verify_checksums = true;  ///< the CRC-32 of every storage, where one is recorded
  /// Reads a file in which there are objects that no `Value` can hold (a set, an object of a user's class): None stands
  /// in their place. Without it such a file is refused, with the place of each. `TorchFileReader::skipped` lists them.
  bool skip_unknown = false;
  ParseLimits limits = {};
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< the local one if null
};

/// Loads a file of torch.save. Executes nothing: a file that names what runs code is refused, whatever else is in it.
///
/// Python's dict and OrderedDict become a Dict (keys of str and int), list, tuple, str, bytes, int, float, bool and
/// None what they are, a tensor or a Parameter an `at::Tensor` on the CPU with its strides and `requires_grad`. Each
/// storage is read once, straight into memory of its own, which the tensors share as they did when they were saved:
/// tied weights stay tied, views stay views. A state dict is `torch_load(path).as_dict()`.
///
/// \throws dcp::Error kNotFound, kIo; kCorruptData for a damaged or foreign file; kUnsupported for what cannot be read
///         (sparse tensors, dtypes that this LibTorch lacks), by name. Numbers in the file are checked against its size
///         before anything is allocated for them.
/// Collective: no. Thread safety: pure.
/// Source: torch/serialization.py (2.14.1); interop FORMAT.md 7.
DCP_API Value torch_load(const std::string& path, const TorchLoadOptions& options = {});

struct TorchSaveOptions {
  TorchSaveForm form = TorchSaveForm::kZip;
  bool sync = true;                                   ///< waits until the file is on the medium
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< the local one if null
};

/// Writes a value to a file that `torch.load(path, weights_only=True)` opens.
///
/// The file is written beside (`path.tmp`), synced and renamed: a crash at any moment leaves the old file, or none, or
/// the new one whole. As in Python, tensors that share memory share it in the file, and a storage is written whole even
/// if only a small view of it is in the value: save a clone of such a view. A tensor that `requires_grad` does so in
/// Python.
///
/// \param value  Often a Dict. No DTensor, ShardedTensor or Stateful in it: gather them before.
/// \throws dcp::Error kUnsupported, kInvalidArgument, naming the place in the value, for what torch.save cannot write
/// or
///         PyTorch not read; kIo.
/// Collective: no.
DCP_API void torch_save(const Value& value, const std::string& path, const TorchSaveOptions& options = {});

/// A tensor in a file of torch.save.
struct TorchFileTensor {
  Path path;  ///< from the root of the file's value
  at::ScalarType dtype = at::ScalarType::Float;
  Sizes sizes;
  bool requires_grad = false;
  std::string storage_key;            ///< the same for tensors that share memory
  std::int64_t storage_position = 0;  ///< of the storage's first byte in the file; of its deflated form, if it has one
  std::int64_t storage_bytes = 0;
};

/// A file of torch.save, opened, for reading it tensor by tensor. All of it is checked but the elements.
///
/// Thread safety: const calls from many threads.
class DCP_API TorchFileReader {
 public:
  /// \throws dcp::Error as `torch_load`.
  explicit TorchFileReader(std::string path, TorchLoadOptions options = {});
  ~TorchFileReader();
  TorchFileReader(TorchFileReader&&) noexcept;

  TorchSaveForm form() const;

  /// The value with every tensor on the meta device: dtype, sizes and strides without elements.
  const Value& structure() const;
  /// All tensors in the order in which a walk over `structure()` meets them; one that is there twice (tied) is here
  /// twice.
  const std::vector<TorchFileTensor>& tensors() const;
  /// Places and Python's types of what `TorchLoadOptions::skip_unknown` left out, such as `['args']:
  /// argparse.Namespace`.
  const std::vector<std::string>& skipped() const;

  /// Reads a tensor into memory of its own: no more of its storage than it needs.
  ///
  /// \param number  In `tensors()`.
  /// \throws dcp::Error kInvalidArgument, kCorruptData, kIo.
  at::Tensor read(std::size_t number) const;

  /// Reads all, as `torch_load`.
  Value read_all() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes a file of torch.save tensor by tensor, so that they are never in memory together.
///
/// \code
///   TorchFileWriter writer(structure, path);  // some of its tensors are on the meta device
///   while (const at::Tensor* awaited = writer.awaited()) writer.write(make(*awaited));
///   writer.commit();
/// \endcode
///
/// Class state after an error: good for destruction only; `path` is as it was. Thread safety: none.
class DCP_API TorchFileWriter {
 public:
  /// \param structure  A value as for `torch_save`. A tensor on the meta device stands for one of its dtype and sizes
  ///                   whose elements come later, row-major; quantized ones must be there themselves.
  /// \throws dcp::Error as `torch_save`.
  TorchFileWriter(const Value& structure, std::string path, TorchSaveOptions options = {});
  ~TorchFileWriter();
  TorchFileWriter(TorchFileWriter&&) noexcept;

  /// The tensor on the meta device whose elements come next; null if there are none left. They come in the order in
  /// which a walk over the structure meets them, one that is there twice once.
  const at::Tensor* awaited() const;

  /// Writes the elements of `awaited()`.
  ///
  /// \param tensor  Of its dtype and sizes, on any device, with any strides.
  /// \throws dcp::Error kType, kShape, kState, kIo.
  void write(const at::Tensor& tensor);
  /// Writes a part of them: bytes in row-major order, little-endian.
  ///
  /// \throws dcp::Error kInvalidArgument for more bytes than are left of the tensor, kState, kIo.
  void write_part(ByteSpan bytes);

  /// Ends the file and gives it its name.
  ///
  /// \throws dcp::Error kState if elements are missing; kIo.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The form of a file of torch.save; nothing for a file that does not begin as one.
///
/// \throws dcp::Error kNotFound, kIo.
DCP_API std::optional<TorchSaveForm> torch_save_form(const std::string& path,
                                                     std::shared_ptr<FileSystem> file_system = nullptr);

}  // namespace dcp
