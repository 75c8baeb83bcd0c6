#pragma once

#include <memory>
#include <string>
#include <vector>

#include "torch_dcp/examples/temporary_folder.h"

namespace dcp::examples {

/// Memory servers that stand for machines: one for each rank of a job on this machine, and not in the ranks' processes,
/// so that it outlives them. On a machine of its own a rank has one of `//tools:dcp_memory`.
class MemoryMachines {
 public:
  /// \throws dcp::Error, std::runtime_error if the system refuses.
  explicit MemoryMachines(int count);
  ~MemoryMachines();
  MemoryMachines(const MemoryMachines&) = delete;
  MemoryMachines& operator=(const MemoryMachines&) = delete;

  /// What ranks connect to, one for each machine.
  std::vector<std::string> vaults() const;

  /// A machine fails: what its memory holds is gone. \pre No rank is connected to it.
  void lose(int machine);
  /// The same, and another machine takes its place, whose memory is empty.
  void replace(int machine);

 private:
  class Machine;

  TemporaryFolder sockets_;
  int started_ = 0;
  std::vector<std::unique_ptr<Machine>> machines_;
};

}  // namespace dcp::examples
