#include "torch_dcp/examples/launch_environment.h"

#include <charconv>
#include <cstdlib>
#include <limits>
#include <stdexcept>

namespace dcp::examples {
namespace {

constexpr long kMaxPort = std::numeric_limits<std::uint16_t>::max();
constexpr int kFirstSlurmPort = 10000;  // a job's port is this one and the last four digits of its number
constexpr long kSlurmPortCount = 10000;

[[noreturn]] void fail(const std::string& name, const std::string& problem) {
  throw std::invalid_argument("environment variable " + name + " " + problem);
}

/// An empty variable says as much as one that is not there.
std::optional<std::string> optional_text(const Variables& variables, const std::string& name) {
  std::optional<std::string> value = variables(name);
  if (value && value->empty()) value.reset();
  return value;
}

std::string text(const Variables& variables, const std::string& name, const std::string& companion) {
  std::optional<std::string> value = optional_text(variables, name);
  if (!value) fail(name, "is missing, but " + companion + " is set");
  return *value;
}

long to_number(const std::string& name, const std::string& value, long min, long max) {
  long number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || number < min || number > max) {
    fail(name, "is '" + value + "', not a number from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return number;
}

std::uint16_t to_port(const std::string& name, const std::string& value) {
  return static_cast<std::uint16_t>(to_number(name, value, 1, kMaxPort));
}

/// Rank and world size, from variables of these names.
LaunchEnvironment read_place(const Variables& variables, const std::string& rank_name, const std::string& size_name) {
  LaunchEnvironment environment;
  const std::string rank = text(variables, rank_name, size_name);
  const std::string size = text(variables, size_name, rank_name);
  constexpr long kMax = std::numeric_limits<int>::max();
  environment.world_size = static_cast<int>(to_number(size_name, size, 1, kMax));
  environment.rank = static_cast<int>(to_number(rank_name, rank, 0, kMax));
  if (environment.rank >= environment.world_size) {
    fail(rank_name, "is " + rank + ", but " + size_name + " is " + size);
  }
  return environment;
}

LaunchEnvironment read_torchrun(const Variables& variables) {
  LaunchEnvironment environment = read_place(variables, "RANK", "WORLD_SIZE");
  environment.master_address = text(variables, "MASTER_ADDR", "RANK");
  environment.master_port = to_port("MASTER_PORT", text(variables, "MASTER_PORT", "RANK"));
  if (optional_text(variables, "TORCHELASTIC_USE_AGENT_STORE") == "True") {
    environment.rank_0_hosts_store = false;
    const std::string attempt = optional_text(variables, "TORCHELASTIC_RESTART_COUNT").value_or("0");
    environment.store_prefix = "/worker/attempt_" + attempt;
  }
  if (const auto descriptor = optional_text(variables, kStoreDescriptorVariable)) {
    constexpr long kMax = std::numeric_limits<int>::max();
    environment.store_listen_descriptor = static_cast<int>(to_number(kStoreDescriptorVariable, *descriptor, 0, kMax));
  }
  return environment;
}

LaunchEnvironment read_open_mpi(const Variables& variables) {
  LaunchEnvironment environment = read_place(variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  if (const auto address = optional_text(variables, "MASTER_ADDR")) {
    environment.master_address = *address;
  } else if (optional_text(variables, "OMPI_COMM_WORLD_LOCAL_SIZE") != std::to_string(environment.world_size)) {
    fail("MASTER_ADDR", "is missing, and the job's processes are not all on one machine (OMPI_COMM_WORLD_LOCAL_SIZE)");
  }
  const auto port = optional_text(variables, "MASTER_PORT");
  environment.master_port = port ? to_port("MASTER_PORT", *port) : kDefaultMasterPort;
  return environment;
}

std::string slurm_first_host(const Variables& variables) {
  for (const std::string name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    const auto list = optional_text(variables, name);
    if (!list) continue;
    try {
      return first_host(*list);
    } catch (const std::invalid_argument& error) {
      fail(name, error.what());
    }
  }
  fail("SLURM_STEP_NODELIST", "is missing, but SLURM_PROCID is set");
}

LaunchEnvironment read_slurm(const Variables& variables) {
  LaunchEnvironment environment = read_place(variables, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
  const auto address = optional_text(variables, "MASTER_ADDR");
  environment.master_address = address ? *address : slurm_first_host(variables);
  if (const auto port = optional_text(variables, "MASTER_PORT")) {
    environment.master_port = to_port("MASTER_PORT", *port);
  } else {
    const std::string job = text(variables, "SLURM_JOB_ID", "SLURM_PROCID");
    const long number = to_number("SLURM_JOB_ID", job, 0, std::numeric_limits<long>::max());
    environment.master_port = static_cast<std::uint16_t>(kFirstSlurmPort + number % kSlurmPortCount);
  }
  return environment;
}

}  // namespace

Variables process_variables() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

std::optional<LaunchEnvironment> read_launch_environment(const Variables& variables) {
  const auto has = [&](const char* name) { return optional_text(variables, name).has_value(); };
  if (has("RANK") || has("WORLD_SIZE")) return read_torchrun(variables);
  if (has("OMPI_COMM_WORLD_RANK") || has("OMPI_COMM_WORLD_SIZE")) return read_open_mpi(variables);
  // Slurm gives SLURM_PROCID to batch scripts too, which run alone; only srun tells the number of tasks of a step.
  if (has("SLURM_STEP_NUM_TASKS")) return read_slurm(variables);
  return std::nullopt;
}

std::string first_host(const std::string& node_list) {
  std::string host;
  std::size_t at = 0;
  while (at < node_list.size() && node_list[at] != ',') {
    if (node_list[at] != '[') {
      host += node_list[at++];
      continue;
    }
    const std::size_t close = node_list.find(']', at);
    const std::size_t end = node_list.find_first_of("-,]", at);
    if (close == std::string::npos || end == at + 1) {
      throw std::invalid_argument("has a bad range: '" + node_list + "'");
    }
    host += node_list.substr(at + 1, end - at - 1);
    at = close + 1;
  }
  if (host.empty()) throw std::invalid_argument("names no host: '" + node_list + "'");
  return host;
}

}  // namespace dcp::examples
