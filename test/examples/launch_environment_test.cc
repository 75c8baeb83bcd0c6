#include "torch_dcp/examples/launch_environment.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>

namespace dcp::examples {
namespace {

using Names = std::map<std::string, std::string>;

std::optional<LaunchEnvironment> read(const Names& names) {
  return read_launch_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = names.find(name);
    return found == names.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

/// What reading `names` throws; empty if it throws nothing.
std::string error_of(const Names& names) {
  try {
    read(names);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return {};
}

Names with(Names names, const std::string& name, const std::string& value) {
  names[name] = value;
  return names;
}

Names without(Names names, const std::string& name) {
  names.erase(name);
  return names;
}

const Names kTorchrun = {{"RANK", "2"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "0"},
                         {"MASTER_ADDR", "node7"},
                         {"MASTER_PORT", "29511"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                         {"TORCHELASTIC_RESTART_COUNT", "3"}};
const Names kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Names kSlurm = {{"SLURM_PROCID", "5"},
                      {"SLURM_STEP_NUM_TASKS", "6"},
                      {"SLURM_JOB_ID", "1234567"},
                      {"SLURM_STEP_NODELIST", "node[003-005,9],login1"}};

TEST(LaunchEnvironment, NobodyStartedIt) {
  EXPECT_FALSE(read({}).has_value());
  EXPECT_FALSE(read({{"RANK", ""}, {"MASTER_ADDR", "node7"}}).has_value());
  // A batch script runs alone, whatever its job has.
  EXPECT_FALSE(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "6"}, {"SLURM_JOB_ID", "7"}}).has_value());
}

TEST(LaunchEnvironment, Torchrun) {
  const LaunchEnvironment environment = read(kTorchrun).value();
  EXPECT_EQ(environment.rank, 2);
  EXPECT_EQ(environment.world_size, 4);
  EXPECT_EQ(environment.master_address, "node7");
  EXPECT_EQ(environment.master_port, 29511);
  EXPECT_FALSE(environment.rank_0_hosts_store);
  EXPECT_EQ(environment.store_prefix, "/worker/attempt_3");
  EXPECT_FALSE(environment.store_listen_descriptor.has_value());
}

TEST(LaunchEnvironment, TorchrunWithoutAgentStore) {
  const LaunchEnvironment environment = read(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "False")).value();
  EXPECT_TRUE(environment.rank_0_hosts_store);
  EXPECT_EQ(environment.store_prefix, "");
}

TEST(LaunchEnvironment, OwnLauncherGivesTheStoresSocket) {
  const LaunchEnvironment environment = read(with(kTorchrun, kStoreDescriptorVariable, "7")).value();
  EXPECT_EQ(environment.store_listen_descriptor, 7);
}

TEST(LaunchEnvironment, OpenMpi) {
  const LaunchEnvironment environment = read(kOpenMpi).value();
  EXPECT_EQ(environment.rank, 1);
  EXPECT_EQ(environment.world_size, 2);
  EXPECT_EQ(environment.master_address, "127.0.0.1");
  EXPECT_EQ(environment.master_port, kDefaultMasterPort);
  EXPECT_TRUE(environment.rank_0_hosts_store);
}

TEST(LaunchEnvironment, OpenMpiOnSeveralMachines) {
  const Names spread = with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1");
  EXPECT_NE(error_of(spread).find("MASTER_ADDR is missing"), std::string::npos) << error_of(spread);
  const LaunchEnvironment environment =
      read(with(with(spread, "MASTER_ADDR", "10.0.0.1"), "MASTER_PORT", "77")).value();
  EXPECT_EQ(environment.master_address, "10.0.0.1");
  EXPECT_EQ(environment.master_port, 77);
}

TEST(LaunchEnvironment, Slurm) {
  const LaunchEnvironment environment = read(kSlurm).value();
  EXPECT_EQ(environment.rank, 5);
  EXPECT_EQ(environment.world_size, 6);
  EXPECT_EQ(environment.master_address, "node003");
  EXPECT_EQ(environment.master_port, 14567);
  EXPECT_TRUE(environment.rank_0_hosts_store);
}

TEST(LaunchEnvironment, SlurmWithMasterGiven) {
  const LaunchEnvironment environment =
      read(with(with(without(without(kSlurm, "SLURM_STEP_NODELIST"), "SLURM_JOB_ID"), "MASTER_ADDR", "head"),
                "MASTER_PORT", "4000"))
          .value();
  EXPECT_EQ(environment.master_address, "head");
  EXPECT_EQ(environment.master_port, 4000);
}

TEST(LaunchEnvironment, SlurmTakesTheJobsNodesWhereTheStepHasNone) {
  const Names names = with(without(kSlurm, "SLURM_STEP_NODELIST"), "SLURM_JOB_NODELIST", "gpu12");
  EXPECT_EQ(read(names)->master_address, "gpu12");
}

TEST(LaunchEnvironment, TorchrunComesBeforeOpenMpiBeforeSlurm) {
  Names all = kTorchrun;
  all.insert(kOpenMpi.begin(), kOpenMpi.end());
  all.insert(kSlurm.begin(), kSlurm.end());
  EXPECT_EQ(read(all)->world_size, 4);
  for (const auto& [name, value] : kTorchrun) all.erase(name);
  EXPECT_EQ(read(all)->world_size, 2);
}

struct Wrong {
  Names names;
  std::string variable;  ///< that the error must begin with
};

TEST(LaunchEnvironment, ErrorsNameTheVariable) {
  const Wrong cases[] = {
      {without(kTorchrun, "WORLD_SIZE"), "WORLD_SIZE is missing"},
      {without(kTorchrun, "RANK"), "RANK is missing"},
      {without(kTorchrun, "MASTER_ADDR"), "MASTER_ADDR is missing"},
      {without(kTorchrun, "MASTER_PORT"), "MASTER_PORT is missing"},
      {with(kTorchrun, "RANK", "4"), "RANK is 4, but WORLD_SIZE is 4"},
      {with(kTorchrun, "RANK", "-1"), "RANK is '-1'"},
      {with(kTorchrun, "RANK", "two"), "RANK is 'two'"},
      {with(kTorchrun, "WORLD_SIZE", "4x"), "WORLD_SIZE is '4x'"},
      {with(kTorchrun, "WORLD_SIZE", "0"), "WORLD_SIZE is '0'"},
      {with(kTorchrun, "WORLD_SIZE", "99999999999999999999"), "WORLD_SIZE is '9999"},
      {with(kTorchrun, "MASTER_PORT", "65536"), "MASTER_PORT is '65536'"},
      {with(kTorchrun, kStoreDescriptorVariable, "x"), std::string(kStoreDescriptorVariable) + " is 'x'"},
      {without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE is missing"},
      {without(kOpenMpi, "OMPI_COMM_WORLD_RANK"), "OMPI_COMM_WORLD_RANK is missing"},
      {without(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE"), "MASTER_ADDR is missing"},
      {with(kOpenMpi, "OMPI_COMM_WORLD_RANK", "2"), "OMPI_COMM_WORLD_RANK is 2"},
      {without(kSlurm, "SLURM_PROCID"), "SLURM_PROCID is missing"},
      {with(kSlurm, "SLURM_PROCID", "6"), "SLURM_PROCID is 6, but SLURM_STEP_NUM_TASKS is 6"},
      {without(kSlurm, "SLURM_STEP_NODELIST"), "SLURM_STEP_NODELIST is missing"},
      {with(kSlurm, "SLURM_STEP_NODELIST", "node["), "SLURM_STEP_NODELIST has a bad range"},
      {without(kSlurm, "SLURM_JOB_ID"), "SLURM_JOB_ID is missing"},
      {with(kSlurm, "SLURM_JOB_ID", "j1"), "SLURM_JOB_ID is 'j1'"},
  };
  for (const Wrong& wrong : cases) {
    EXPECT_EQ(error_of(wrong.names).find("environment variable " + wrong.variable), 0u)
        << "wanted: " << wrong.variable << "\ngot: " << error_of(wrong.names);
  }
}

TEST(FirstHost, OfSlurmsLists) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("node1,node2"), "node1");
  EXPECT_EQ(first_host("node[003-005,9]"), "node003");
  EXPECT_EQ(first_host("node[9,11-12],other"), "node9");
  EXPECT_EQ(first_host("rack[1-2]-n[7,8]x"), "rack1-n7x");
  EXPECT_EQ(first_host("node[5]"), "node5");
}

TEST(FirstHost, RefusesWhatIsNone) {
  for (const char* list : {"", ",node1", "node[", "node[]", "node[-2]", "node[1-2"}) {
    EXPECT_THROW(first_host(list), std::invalid_argument) << list;
  }
}

}  // namespace
}  // namespace dcp::examples
