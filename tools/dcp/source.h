#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "torch_dcp/state_dict/flatten.h"
#include "torch_dcp/state_dict/value.h"
#include "torch_dcp/storage/checkpoint_kind.h"
#include "torch_dcp/tensor/box.h"

namespace dcp::tool {

struct SourceOptions {
  bool follow_links = false;
  /// Leaves out what a file of torch.save holds and no value can; else that is an error.
  bool skip_unknown = false;
};

/// A checkpoint of any kind, opened, for reading it piece by piece. Holds its objects, but no elements of tensors.
class Source {
 public:
  virtual ~Source();

  /// The nested state dict. Tensors are on the meta device: dtype and sizes without elements.
  const StateDict& state() const { return state_; }
  /// The same by flat keys; the tensors are those of `state()`.
  const FlatStateDict& leaves() const { return leaves_; }
  /// Whether flat keys were made of paths. If not, each top-level value has been stored as one.
  bool has_paths() const { return has_paths_; }
  /// Tensors of which the source says so, by flat key.
  const std::set<std::string>& requiring_grad() const { return requiring_grad_; }
  /// What was left out, with Python's type.
  const std::vector<std::string>& skipped() const { return skipped_; }

  /// Reads a part of a tensor, contiguous on the CPU. Takes its memory only, but:
  ///   - stored parts that went through transforms, are deflated, strided or of the other byte order are held whole;
  ///   - of a torch.save file one whole tensor is held.
  ///
  /// \throws dcp::Error naming file, key and cause. Thread safety: one call at a time.
  virtual at::Tensor read(const std::string& key, const Box& piece) = 0;

  /// Whether reading many small parts of a tensor would cost as much each time as reading it whole.
  virtual bool is_costly_in_parts(const std::string& key) const = 0;

  /// Once everything has been read. \throws dcp::Error kState if another save has replaced the source since it was
  ///         opened: what was read may then be of two checkpoints.
  virtual void check_unchanged() = 0;

 protected:
  StateDict state_;
  FlatStateDict leaves_;
  bool has_paths_ = true;
  std::set<std::string> requiring_grad_;
  std::vector<std::string> skipped_;
};

/// \throws dcp::Error; all that is wrong with its metadata, structure and objects.
std::unique_ptr<Source> open_source(const std::string& path, CheckpointKind kind, const SourceOptions& options);

}  // namespace dcp::tool
