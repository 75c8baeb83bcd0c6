#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "torch_dcp/base/limits.h"
#include "torch_dcp/format/tensor_pickle_internal.h"
#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/format/zip_internal.h"
#include "torch_dcp/pickle/value.h"

// What torch.save wrote, in either of its forms, with any number of tensors in it.

namespace dcp {

/// An opened archive: its pickle, and where the storages lie.
struct SavedArchive {
  /// Of the form before zip too: its parts get the names that they have in a zip, "data.pkl" and "data/KEY".
  zip::Archive archive;
  bool is_before_zip = false;
  bool is_big_endian = false;
  std::int64_t pickle_bytes = 0;
  pickle::Pickle pickle;
};

/// Opens the archive that `item` holds from its first byte on.
///
/// \param max_pickle_bytes  A larger pickle is refused before anything is allocated.
/// \throws dcp::Error kCorruptData, kUnsupported.
SavedArchive open_archive(const RandomAccessFile& item, std::int64_t max_pickle_bytes, const ParseLimits& limits);

class TensorLoader;

/// Where a tensor of the archive lies, checked against the archive's members; the numbers of a quantizer are read.
/// Positions count from the archive's first byte.
///
/// \param loader  Of the archive; reads the quantizer's numbers.
/// \throws dcp::Error kCorruptData.
TensorItem locate_tensor(TensorLoader& loader, const SavedArchive& saved, const PickledTensor& tensor);

/// Makes the tensors of one archive. Each storage is read once, into the memory that all its tensors share.
class TensorLoader {
 public:
  /// Borrows both.
  TensorLoader(const RandomAccessFile& item, const SavedArchive& saved, bool verify_checksums = true)
      : item_(item), saved_(saved), verify_(verify_checksums) {}

  /// On the CPU, with the strides of the file. One that is stored as the conjugate or negative of its elements is
  /// computed, and shares with no other.
  ///
  /// \throws dcp::Error kCorruptData, kUnsupported, kIo.
  at::Tensor load(const PickledTensor& tensor);

 private:
  struct Storage {
    at::Tensor bytes;         ///< uint8, 1-D
    c10::ScalarType dtype{};  ///< of the tensor that made it be read: says what has been swapped
    bool has_bools = false;   ///< bytes other than 0 have been made 1
  };
  const at::Tensor& storage(const PickledTensor& tensor);

  const RandomAccessFile& item_;
  const SavedArchive& saved_;
  bool verify_;
  std::map<std::string, Storage> storages_;
};

}  // namespace dcp
