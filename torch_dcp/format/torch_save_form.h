#pragma once

#include <cstdint>

namespace dcp {

/// The two forms of torch.save. PyTorch and this library read both.
enum class TorchSaveForm : std::uint8_t {
  kZip,        ///< since PyTorch 1.6
  kBeforeZip,  ///< `_use_new_zipfile_serialization=False`: no checksums, and only dtypes with a class of storage of
               ///< their own
};

}  // namespace dcp
