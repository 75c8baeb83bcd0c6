#include "torch_dcp/model_state/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include <mutex>

#include "torch_dcp/base/error.h"

namespace dcp {

at::Tensor get_random_state(const at::Generator& generator) {
  DCP_CHECK(generator.defined(), kInvalidArgument, "the generator is undefined");
  at::Generator handle = generator;
  const std::lock_guard<std::mutex> lock(handle.mutex());
  return handle.get_state();
}

at::Tensor get_random_state() { return get_random_state(at::detail::getDefaultCPUGenerator()); }

void set_random_state(const at::Tensor& state, at::Generator& generator) {
  DCP_CHECK(generator.defined(), kInvalidArgument, "the generator is undefined");
  DCP_CHECK(state.defined() && state.scalar_type() == at::kByte && state.device().is_cpu(), kType,
            "the state of a generator is a uint8 tensor on the CPU");
  const std::lock_guard<std::mutex> lock(generator.mutex());
  const at::Tensor current = generator.get_state();
  DCP_CHECK(state.sizes() == current.sizes(), kShape, "the given state of a generator has shape ", state.sizes(),
            ", this generator's has ", current.sizes());
  try {
    generator.set_state(state.detach().contiguous());
  } catch (const c10::Error& error) {
    DCP_THROW(kCorruptData, "the generator refuses the given state: ", error.what_without_backtrace());
  }
}

void set_random_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  set_random_state(state, generator);
}

}  // namespace dcp
