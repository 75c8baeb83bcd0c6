#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/peer_memory/transport_head_internal.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/stateful.h"

namespace dcp {

struct IncomingOptions {
  ParseLimits limits;
  std::int64_t max_state_bytes = 0;
  bool strict_in_place = false;
  c10::Device device = c10::kCPU;  ///< of tensors that have no place in the given state
};

/// A state that arrives: its head is read and checked, and memory is there for every byte, before the first is taken.
///
/// The tree is read twice. First only tensors are looked for: each is compared with the one at the same place in the
/// given state. Then it is known which storages go straight into given memory, and the values are made.
class IncomingState {
 public:
  /// Where the bytes of one storage go.
  struct Target {
    at::Tensor bytes;  ///< uint8, contiguous, on any device
    std::string name;  ///< key of a tensor that lies in it
  };

  /// \param given  Tensors in it are filled in place where they agree; null for none. Not changed before `finish`, but
  ///               for the memory of the targets.
  /// \throws dcp::Error kCorruptData for a head that is none; of `strict_in_place`, naming all keys.
  IncomingState(Bytes head, const Dict* given, const IncomingOptions& options);
  ~IncomingState();
  IncomingState(const IncomingState&) = delete;
  IncomingState& operator=(const IncomingState&) = delete;

  const std::vector<Target>& targets() const { return targets_; }
  /// Whether a target is memory of the given state.
  bool writes_in_place() const { return writes_in_place_; }
  /// Once all bytes are there: fills what could not be filled straight away, and gives the state.
  Dict finish();

 private:
  struct Use;
  enum class Pass : std::uint8_t { kLook, kMake };

  Value read(const Value* given, std::size_t depth);
  Value read_value(ValueKind kind, const Value* given, std::size_t depth);
  Value read_dict(const Value* given, std::size_t depth);
  template <typename Sequence>
  Value read_sequence(const Value* given, std::size_t depth);
  Value read_dtensor(const Value* given);
  Value read_sharded_tensor(const Value* given);
  Value read_opaque();
  Key read_key();
  at::Tensor take_tensor(const at::Tensor* given);
  const Value* state_of(const Value& given);
  void note_missing(const Dict& given, const std::vector<const Value*>& found);

  void look(std::uint64_t number, const at::Tensor* given);
  at::Tensor make(std::uint64_t number, const at::Tensor* given);
  void reject_conflicts();
  void place_storages();
  bool is_straight(std::size_t storage, const std::vector<const Use*>& uses) const;
  void check_strict();
  std::string here() const;

  const IncomingOptions options_;
  const Bytes head_;
  ByteReader in_;
  HeadTables tables_;
  Pass pass_ = Pass::kLook;
  Path path_;
  std::size_t value_count_ = 0;
  FaultList faults_;  // of strict_in_place
  std::vector<Use> uses_;
  std::vector<bool> needs_memory_;  // of each storage: a tensor in it has no place in the given state
  std::unordered_map<std::uint64_t, std::unordered_set<const c10::TensorImpl*>> in_place_;  // by tensor
  std::vector<Target> targets_;
  std::vector<c10::Storage> memory_;                          // for storages that do not go straight into given memory
  std::vector<at::Tensor> made_;                              // by tensor, where it was made
  std::vector<std::pair<at::Tensor, std::uint64_t>> copies_;  // into, of
  std::unordered_map<const Stateful*, std::unique_ptr<Value>> states_;
  std::vector<std::pair<std::shared_ptr<Stateful>, Dict>> loads_;
  bool writes_in_place_ = false;
  Dict result_;
};

}  // namespace dcp
