#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/transform/skeleton_internal.h"
#include "torch_dcp/transform/transfer_report.h"

namespace dcp {

/// A tensor of the full state, and where it goes here.
struct Transfer {
  std::string key;  ///< flat
  TensorInfo info;
  std::optional<TensorQuantizer> quantizer;
  Value* target = nullptr;  ///< null where this rank has none
};

/// How a full state fits a rank's own. Points into both.
struct Match {
  std::vector<Transfer> transfers;                     ///< all tensors, in the order of the full state
  std::vector<std::pair<Value*, const Value*>> plain;  ///< (here, in the full state)
  TransferReport report;
};

/// Finds every value of the full state in `local`.
///
/// A dict may have other keys. Everything else must fit: kinds of containers, lengths of sequences, tensors where
/// tensors are, their (global) sizes and dtypes.
///
/// \throws dcp::Error that names every value that does not fit, with `what` for a heading: kKey, kType, kShape, or
///         kUnsupported for tensors that cannot be written.
Match match_states(const Skeleton& full, Dict& local, bool strict, const char* what);

/// Gives `local` the plain values, and removes what the full state lacks, if `strict`. The match is no longer valid.
void finish_match(const Skeleton& full, Dict& local, Match& match, bool strict);

/// Where new tensors are made.
struct PlaceOptions {
  std::optional<c10::Device> device;  ///< of tensors that have no memory yet; the CPU by default
  bool cpu_offload = false;           ///< all end on the CPU
};

/// The parts of a target that are written where they are, as elements; none for those that get other memory.
std::vector<LocalChunk> chunks_in_place(const Transfer& transfer, const PlaceOptions& options);

/// A target whose elements are on their way. Until it is closed the rank's state has what it had, but for parts that
/// are written where they are.
struct OpenTarget {
  Value value;                     ///< what the target becomes
  std::vector<LocalChunk> chunks;  ///< the views of elements that this rank has of the whole
};

/// Opens and closes the targets of one state.
class Targets {
 public:
  explicit Targets(PlaceOptions options) : options_(options) {}

  /// Makes memory for a target that has none (undefined, meta) or lies elsewhere than the options say. New parts keep
  /// layout, strides and requires_grad; a tensor that is there twice is one new tensor in both places.
  OpenTarget open(const Transfer& transfer);
  /// All elements are there: the rank's state gets the target, with its quantizer.
  static void close(const Transfer& transfer, OpenTarget target);

 private:
  struct Replaced {
    c10::weak_intrusive_ptr<c10::TensorImpl> old;  ///< holds its address, not its memory
    at::Tensor made;
  };

  at::Tensor with_memory(const at::Tensor& part);

  PlaceOptions options_;
  std::unordered_map<const c10::TensorImpl*, Replaced> replaced_;
};

}  // namespace dcp
