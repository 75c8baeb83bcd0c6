#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace dcp::examples {

/// Which process of the job this is, and where the processes meet.
struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  std::string master_address = "127.0.0.1";
  std::uint16_t master_port = 0;
  /// Whether rank 0 hosts the store; else the launcher's agent does.
  bool rank_0_hosts_store = true;
  std::string store_prefix;                    ///< tells restarts of a job apart on an agent's store; may be empty
  std::optional<int> store_listen_descriptor;  ///< a bound socket that rank 0 inherited for the store
};

/// Looks up an environment variable.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;

/// The variables of this process.
Variables process_variables();

/// Reads what torchrun (RANK and others), Open MPI's mpirun (OMPI_COMM_WORLD_*) or Slurm's srun (SLURM_*) say, the
/// first of these that says anything.
///
/// torchrun's variables are also those of the example's own launcher. Without MASTER_ADDR a job of mpirun must be on
/// one machine, and one of Slurm meets on the first host of its node list; without MASTER_PORT they meet on
/// `kDefaultMasterPort` and on a port made from the job's number.
///
/// \returns Nothing if the process was started by none of them.
/// \throws std::invalid_argument naming the variable that is missing, or has a value that cannot be.
std::optional<LaunchEnvironment> read_launch_environment(const Variables& variables);

inline constexpr std::uint16_t kDefaultMasterPort = 29500;
/// Set by the example's own launcher: `store_listen_descriptor`.
inline constexpr const char* kStoreDescriptorVariable = "TORCH_DCP_TRAIN_STORE_FD";

/// The first host of a Slurm node list, such as node003 of `node[003-005,9],login1`.
///
/// \throws std::invalid_argument for a list that has none.
std::string first_host(const std::string& node_list);

}  // namespace dcp::examples
