#pragma once

#include <ATen/core/Tensor.h>

#include "torch_dcp/base/export.h"

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

}  // namespace dcp
