#include "torch_dcp/model_state/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <mutex>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/state_dict/per_rank.h"

namespace dcp {
namespace {

constexpr const char* kCpu = "cpu";
constexpr const char* kCuda = "cuda";

/// Those of all CUDA devices, by LibTorch's interfaces alone: nothing of CUDA is needed to compile this.
std::vector<at::Generator> cuda_generators() {
  std::vector<at::Generator> generators;
  if (!at::hasCUDA()) return generators;
  const c10::DeviceIndex count = c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount();
  for (c10::DeviceIndex i = 0; i < count; ++i) {
    generators.push_back(at::globalContext().defaultGenerator(c10::Device(at::kCUDA, i)));
  }
  return generators;
}

void check_fits(const at::Tensor& state, const at::Tensor& current) {
  DCP_CHECK(state.defined() && state.scalar_type() == at::kByte && state.device().is_cpu(), kType,
            "the state of a generator is a uint8 tensor on the CPU");
  DCP_CHECK(state.sizes() == current.sizes(), kShape, "the given state of a generator has shape ", state.sizes(),
            ", this generator's has ", current.sizes());
}

}  // namespace

at::Tensor get_random_state(const at::Generator& generator) {
  DCP_CHECK(generator.defined(), kInvalidArgument, "the generator is undefined");
  at::Generator handle = generator;
  const std::lock_guard<std::mutex> lock(handle.mutex());
  return handle.get_state();
}

at::Tensor get_random_state() { return get_random_state(at::detail::getDefaultCPUGenerator()); }

void set_random_state(const at::Tensor& state, at::Generator& generator) {
  DCP_CHECK(generator.defined(), kInvalidArgument, "the generator is undefined");
  const std::lock_guard<std::mutex> lock(generator.mutex());
  check_fits(state, generator.get_state());
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

Dict RandomState::state_dict() {
  Dict state = {{kCpu, get_random_state()}};
  List of_devices;
  for (const at::Generator& generator : cuda_generators()) of_devices.push_back(get_random_state(generator));
  if (!of_devices.empty()) state[kCuda] = std::move(of_devices);
  return state;
}

void RandomState::load_state_dict(const Dict& state) {
  std::vector<at::Generator> generators = cuda_generators();
  const List none;
  const List& of_devices = generators.empty() ? none : state.at(kCuda).as_list();
  DCP_CHECK(of_devices.size() >= generators.size(), kKey, "there are states of ", of_devices.size(),
            " CUDA devices, and ", generators.size(), " devices");
  check_fits(state.at(kCpu).as_tensor(), get_random_state());
  for (std::size_t i = 0; i < generators.size(); ++i) {
    check_fits(of_devices[i].as_tensor(), get_random_state(generators[i]));
  }
  set_random_state(state.at(kCpu).as_tensor());
  for (std::size_t i = 0; i < generators.size(); ++i) set_random_state(of_devices[i].as_tensor(), generators[i]);
}

std::pair<std::string, std::shared_ptr<Stateful>> per_rank_random_state(int rank) {
  return {per_rank_key("rng", rank), std::make_shared<RandomState>()};
}

}  // namespace dcp
