#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"
#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/tensor/box.h"

namespace dcp {

/// A tensor that a file will hold, or a part of one.
struct SafetensorsSpec {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Float;
  Sizes sizes;  ///< of what the file holds, [ndim]
  /// Where that begins in the whole tensor, [ndim]; given for all tensors of a file or for none.
  std::optional<Sizes> saved_offsets = {};
  /// Of the whole tensor, [ndim], so that a reader misses parts that are lost; only with `saved_offsets`.
  std::optional<Sizes> global_size = {};
};

/// Writes one safetensors file, tensor by tensor, so that only one of them need be in memory.
///
/// The file is laid out as the safetensors package does (wider dtypes first, then by name; data from a multiple of 8
/// on), with `"format": "pt"`. Until `close` has returned it must not be used. Thread safety: one thread.
class DCP_API SafetensorsFileWriter {
 public:
  /// Creates or truncates the file and writes its header.
  ///
  /// \param metadata  Further entries of the header's `__metadata__`.
  /// \throws dcp::Error naming all faults: kUnsupported for a dtype that the form lacks, kKey for equal names,
  ///         kInvalidArgument; kIo. Nothing was created unless it is kIo.
  SafetensorsFileWriter(FileSystem& files, std::string path, std::vector<SafetensorsSpec> tensors,
                        bool sync_file = true, OrderedMap<std::string, std::string> metadata = {});
  ~SafetensorsFileWriter();
  SafetensorsFileWriter(const SafetensorsFileWriter&) = delete;
  SafetensorsFileWriter& operator=(const SafetensorsFileWriter&) = delete;

  /// The tensors in the order in which they must be appended.
  const std::vector<SafetensorsSpec>& order() const;

  /// Writes the next tensor: any strides and device; sizes and dtype as announced. A tensor that is not contiguous on
  /// the CPU passes through a buffer of 32 MiB.
  void append(const at::Tensor& tensor);

  /// Writes the next bytes of the elements, row-major and little-endian, also across tensors' ends.
  void append_bytes(ByteSpan bytes);

  /// Where the elements of a tensor, counted in `order()`, begin in the file, in bytes.
  std::int64_t position_of(std::size_t number) const;

  /// Ends the file, synced if it should be.
  ///
  /// \throws dcp::Error kState if elements are missing, kIo.
  void close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dcp
