#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/comm/group_factory.h"

namespace dcp {
namespace {

using Gloo = c10d::ProcessGroupGloo;
using Device = std::shared_ptr<::gloo::transport::Device>;

// Equal for two ranks only if one's loopback address reaches the other: the same
// running kernel and the same network namespace. Empty if that cannot be known.
std::string network_stack() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::array<char, 256> space{};
  const ssize_t length = ::readlink("/proc/self/ns/net", space.data(), space.size());
  if (boot.empty() || length <= 0) return {};
  return boot + " " + std::string(space.data(), static_cast<std::size_t>(length));
}

// Rank 0 looks at all ranks' stacks and tells the result: two keys a rank, not a
// key for each pair.
bool shares_network_stack(c10d::Store& store, int rank, int size) {
  const auto key = [](int of) { return c10::str("network/", of); };
  store.set(key(rank), network_stack());
  if (rank == 0) {
    const std::string mine = network_stack();
    bool shared = !mine.empty();
    for (int other = 1; other < size; ++other) shared = (store.get_to_str(key(other)) == mine) && shared;
    store.set("network/shared", shared ? "yes" : "no");
  }
  return store.get_to_str("network/shared") == "yes";
}

Device make_device(const GlooFactoryOptions& options, c10d::Store& store, int rank, int size) {
  if (!options.hostname.empty()) return Gloo::createDeviceForHostname(options.hostname);
  if (!options.interface.empty()) return Gloo::createDeviceForInterface(options.interface);
  if (shares_network_stack(store, rank, size)) return Gloo::createDeviceForHostname("127.0.0.1");
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') return Gloo::createDeviceForInterface(interface);
  return Gloo::createDefaultDevice();
}

}  // namespace

GroupFactory gloo_group_factory(GlooFactoryOptions options) {
  return [options = std::move(options)](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                        std::chrono::milliseconds timeout) {
    auto gloo_options = Gloo::Options::create(timeout);
    gloo_options->devices.push_back(make_device(options, *store, rank, size));
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                      c10::make_intrusive<Gloo>(store, rank, size, gloo_options));
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    return group;
  };
}

}  // namespace dcp
