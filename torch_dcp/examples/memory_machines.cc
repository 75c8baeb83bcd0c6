#include "torch_dcp/examples/memory_machines.h"

#include <thread>

#include "torch_dcp/examples/train_run.h"
#include "torch_dcp/memory/vault_server.h"

namespace dcp::examples {

class MemoryMachines::Machine {
 public:
  explicit Machine(const std::string& socket) : server_(options(socket)), thread_([this] { server_.run(); }) {}
  ~Machine() {
    server_.stop();
    thread_.join();
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  const std::string& id() const { return server_.id(); }

 private:
  static VaultServerOptions options(const std::string& socket) {
    VaultServerOptions options;
    options.socket = socket;
    options.job = kMemoryJob;
    return options;
  }

  VaultServer server_;
  std::thread thread_;
};

MemoryMachines::MemoryMachines(int count) : sockets_("memory") {
  machines_.resize(static_cast<std::size_t>(count));
  for (int machine = 0; machine < count; ++machine) replace(machine);
}

MemoryMachines::~MemoryMachines() = default;

std::vector<std::string> MemoryMachines::vaults() const {
  std::vector<std::string> ids;
  for (const auto& machine : machines_) ids.push_back(machine->id());
  return ids;
}

void MemoryMachines::lose(int machine) { machines_.erase(machines_.begin() + machine); }

void MemoryMachines::replace(int machine) {
  machines_[static_cast<std::size_t>(machine)] =
      std::make_unique<Machine>(sockets_.path() + "/" + std::to_string(started_++));
}

}  // namespace dcp::examples
