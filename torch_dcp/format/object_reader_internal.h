#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_dcp/base/limits.h"
#include "torch_dcp/format/copy_budget_internal.h"
#include "torch_dcp/format/tensor_pickle_internal.h"
#include "torch_dcp/format/torch_archive_internal.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/pickle/value.h"

namespace dcp {

/// What torch.save wrote, opened: its pickle, checked whole, and the storages beside it. Borrows the file.
class ObjectReader {
 public:
  /// A tensor that `describe` has returned.
  struct Described {
    at::Tensor tensor;  ///< on the meta device
    PickledTensor pickled;
  };

  /// \param item  One item seen as a file of its own (or a file that torch.save wrote).
  /// \throws dcp::Error kCorruptData, kUnsupported for a damaged item or one that names what runs code.
  ObjectReader(const RandomAccessFile& item, const ParseLimits& limits);
  ObjectReader(const ObjectReader&) = delete;
  ObjectReader& operator=(const ObjectReader&) = delete;

  pickle::Ref root() const { return saved_.pickle.root; }
  CopyBudget& budget() { return budget_; }
  const SavedArchive& archive() const { return saved_; }
  /// Ends this reader's use.
  SavedArchive take_archive() { return std::move(saved_); }

  /// The tensor that a readable call makes: the same one for the same call, and one storage for the
  /// same key, as in Python. On the CPU, with the strides of the file, conj and neg resolved.
  const at::Tensor& tensor(pickle::Ref call);

  /// The same tensor without elements, on the meta device.
  const at::Tensor& describe(pickle::Ref call);
  /// All tensors that `describe` has made, in that order.
  std::vector<Described> take_described() { return std::exchange(described_, {}); }

  /// Reads the members that nothing has asked for, for their CRCs. Deflated ones are left out.
  void check_all_members() const;

 private:
  PickledTensor parse(pickle::Ref call) const;
  void charge_expanded(const PickledTensor& pickled);

  const RandomAccessFile& item_;
  const ParseLimits& limits_;
  SavedArchive saved_;
  CopyBudget budget_;
  TensorLoader loader_;
  std::unordered_map<pickle::Ref, at::Tensor> tensors_;
  std::vector<Described> described_;
};

}  // namespace dcp
