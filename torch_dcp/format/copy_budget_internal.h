#pragma once

#include <cstddef>

#include "torch_dcp/base/error.h"

namespace dcp {

/// What may be made of a pickle, in bytes of memory: a value that is referred to often becomes many
/// values when it is copied, in a few lines of pickle more than any memory holds.
class CopyBudget {
 public:
  /// \param what  Of what the pickle tells, for the message.
  CopyBudget(const char* what, std::size_t bytes) : what_(what), left_(bytes) {}

  /// Of an object item: a pickle and storages without shared parts stay far below.
  static CopyBudget of_object(std::size_t pickle_bytes, std::size_t item_bytes) {
    return {"object", kBase + kPerObjectByte * pickle_bytes + kPerItemByte * item_bytes};
  }

  /// Of `.metadata`, whose entries share names: what PyTorch writes stays far below.
  static CopyBudget of_metadata(std::size_t pickle_bytes) {
    return {".metadata", kBase + kPerMetadataByte * pickle_bytes};
  }

  /// \throws dcp::Error kUnsupported once the budget is used up.
  void charge(std::size_t bytes) {
    DCP_CHECK(bytes <= left_, kUnsupported, what_, ": its shared parts, copied, would take far more memory than it");
    left_ -= bytes;
  }
  void charge_value(std::size_t more_bytes = 0) { charge(kPerValue + more_bytes); }

 private:
  static constexpr std::size_t kBase = 16u << 20;
  static constexpr std::size_t kPerObjectByte = 256;
  static constexpr std::size_t kPerMetadataByte = 32;
  static constexpr std::size_t kPerItemByte = 4;
  static constexpr std::size_t kPerValue = 128;

  const char* what_;
  std::size_t left_;
};

}  // namespace dcp
