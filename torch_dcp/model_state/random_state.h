#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>

#include "torch_dcp/base/export.h"
#include "torch_dcp/state_dict/stateful.h"

namespace at {
struct Generator;
}

namespace dcp {

/// The state of the CPU's default generator: uint8 [5056] on the CPU, byte for byte what `torch.get_rng_state()` gives
/// in Python. Save it under a `per_rank_key`.
///
/// Thread safety: takes the generator's lock.
DCP_API at::Tensor get_random_state();

/// The same of any generator; [n] as its kind has it.
DCP_API at::Tensor get_random_state(const at::Generator& generator);

/// Puts a state back into the CPU's default generator, which then continues as the one it was taken from.
///
/// \throws dcp::Error kType unless it is a uint8 CPU tensor, kShape unless it has the shape of the generator's
///         own state, kCorruptData if the generator refuses its content. The generator is unchanged then.
DCP_API void set_random_state(const at::Tensor& state);
DCP_API void set_random_state(const at::Tensor& state, at::Generator& generator);

/// The default generators of a process: the CPU's, and that of each CUDA device if LibTorch has CUDA and there are any.
///
/// Its state is `{"cpu": uint8 [5056], "cuda": [uint8 [16] for each device]}`, the list being left out where there is
/// no device. A load needs a state for each device that is there; states of further ones are ignored. Ranks have states
/// of their own: put it into a state dict under a `per_rank_key`, as `per_rank_random_state` does.
///
/// Thread safety: takes the generators' locks. All states are checked before the first generator changes.
class DCP_API RandomState : public Stateful {
 public:
  Dict state_dict() override;

  /// \throws dcp::Error kKey for a generator without a state; as `set_random_state`.
  void load_state_dict(const Dict& state) override;
};

/// A rank's entry for a state dict: `state["rng.rank3"]`, a RandomState, for rank 3.
///
/// \throws dcp::Error kInvalidArgument for a negative rank.
DCP_API std::pair<std::string, std::shared_ptr<Stateful>> per_rank_random_state(int rank);

}  // namespace dcp
