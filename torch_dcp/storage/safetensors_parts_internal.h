#pragma once

#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/format/safetensors.h"
#include "torch_dcp/plan/metadata.h"

namespace dcp {

/// Puts tensors together from the parts of them that files hold.
class SafetensorsParts {
 public:
  void add(const std::string& file, const SafetensorsHeader& header);

  /// Checks that the parts of each tensor are all of it and hands them over. Where a file says how large a tensor is,
  /// it is that large, else as large as it must be to hold the parts.
  ///
  /// \param heading  Of the error.
  /// \throws dcp::Error kCorruptData naming all tensors whose parts are not all of it, with their files.
  Metadata finish(const std::string& heading);

 private:
  /// The parts of one tensor that were found.
  struct Parts {
    TensorStorageMetadata tensor;  ///< `size` is the least that holds all parts
    std::vector<StorageInfo> places;
    std::optional<Sizes> global_size;  ///< that a file told
  };

  void add(const std::string& file, std::int64_t position, const SafetensorsTensor& found);
  /// How a part contradicts those before it.
  static std::optional<std::string> contradiction(const Parts& parts, const SafetensorsTensor& found);
  static void drop_empty_parts(Parts& parts);
  static std::string files_of(const Parts& parts);

  OrderedMap<std::string, Parts> tensors_;
  FaultList faults_;
};

}  // namespace dcp
