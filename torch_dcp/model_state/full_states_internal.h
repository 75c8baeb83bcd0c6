#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// Where a tensor of full states goes on this rank.
struct FullTarget {
  /// Whether this rank takes elements of it. Otherwise the value stays as it is.
  bool is_wanted = false;
  /// The live tensor, if elements may be written straight into it: last, when nothing can fail any more.
  std::optional<at::Tensor> live = std::nullopt;
  /// How the tensor is spread; null for a whole one.
  const DTensorLayout* layout = nullptr;
  c10::Device device = at::kCPU;  ///< of new memory
  /// The value that takes its place if it is not wanted.
  std::optional<Value> instead = std::nullopt;
};

/// Full states on their way to the parts that ranks hold.
class FullStates {
 public:
  /// \param communicator  The coordinator's states count; null: every rank has them.
  FullStates(Communicator* communicator, std::int64_t bucket_bytes)
      : communicator_(communicator), bucket_bytes_(bucket_bytes) {}

  /// Says what the full states are like: with tensors that have elements only where every rank has them. Collective.
  const Dict& outline(const Dict& full);

  /// The states with this rank's parts in place of wholes. What is not written in place has its elements when this
  /// returns. Collective.
  /// \param choose  Is asked once for each tensor.
  Dict receive(const std::function<FullTarget(const Path&, const at::Tensor&)>& choose);

  /// Writes the elements that go straight into live tensors. Collective.
  void write_in_place();

 private:
  /// A bit for each answer of a rank about a tensor.
  static constexpr std::uint8_t kWanted = 1, kInPlace = 2;

  struct Leaf {
    std::string key;
    at::Tensor source;  ///< undefined on a rank that has it not
    FullTarget target;
    std::uint8_t flags = 0;
    Value destination;
  };

  void agree();
  void transfer(bool is_in_place);
  static bool goes_in_place(const Leaf& leaf) { return (leaf.flags & kInPlace) != 0; }

  Communicator* communicator_;
  std::int64_t bucket_bytes_;
  Dict outline_;
  std::vector<at::Tensor> sources_;
  std::vector<Leaf> leaves_;
};

}  // namespace dcp
