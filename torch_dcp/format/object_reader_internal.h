#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/format/tensor_pickle_internal.h"
#include "torch_dcp/format/zip_internal.h"
#include "torch_dcp/io/span_file.h"
#include "torch_dcp/pickle/value.h"

namespace dcp {

/// What may be made of a pickle, in bytes of memory: a value that is referred to often becomes many
/// values when it is copied, in a few lines of pickle more than any memory holds.
class CopyBudget {
 public:
  /// A pickle and storages without shared parts stay far below.
  CopyBudget(std::size_t pickle_bytes, std::size_t item_bytes)
      : left_(kBase + kPerPickleByte * pickle_bytes + kPerItemByte * item_bytes) {}

  /// \throws dcp::Error kUnsupported once the budget is used up.
  void charge(std::size_t bytes) {
    DCP_CHECK(bytes <= left_, kUnsupported, "object: its shared parts, copied, would take far more memory than it");
    left_ -= bytes;
  }
  void charge_value(std::size_t more_bytes = 0) { charge(kPerValue + more_bytes); }

 private:
  static constexpr std::size_t kBase = 16u << 20;
  static constexpr std::size_t kPerPickleByte = 256;
  static constexpr std::size_t kPerItemByte = 4;
  static constexpr std::size_t kPerValue = 128;

  std::size_t left_;
};

/// An object item, opened: its pickle, checked whole, and the storages beside it. Borrows the item.
class ObjectReader {
 public:
  /// \throws dcp::Error kCorruptData, kUnsupported for a damaged item or one that names what runs code.
  ObjectReader(ByteSpan item, const ParseLimits& limits);
  ObjectReader(const ObjectReader&) = delete;
  ObjectReader& operator=(const ObjectReader&) = delete;

  pickle::Ref root() const { return pickle_.root; }
  CopyBudget& budget() { return budget_; }

  /// The tensor that a readable call makes: the same one for the same call, and one storage for the
  /// same key, as in Python. On the CPU, with the strides of the file, conj and neg resolved.
  const at::Tensor& tensor(pickle::Ref call);

  /// Reads the members that nothing has asked for, for their CRCs. Deflated ones are left out.
  void check_all_members() const;

 private:
  at::Tensor make_tensor(const PickledTensor& pickled);
  const at::Tensor& storage(const PickledTensor& pickled);

  SpanFile file_;
  const ParseLimits& limits_;
  zip::Archive archive_;
  bool is_big_endian_;
  Bytes pickle_bytes_;
  pickle::Pickle pickle_;
  CopyBudget budget_;
  std::unordered_map<pickle::Ref, at::Tensor> tensors_;
  std::map<std::pair<std::string, c10::ScalarType>, at::Tensor> storages_;  // each 1-D, all elements
};

}  // namespace dcp
