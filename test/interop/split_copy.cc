// Loads a whole checkpoint on each of some ranks, and saves it from there with replicated tensors cut into pieces:
//
//   split_copy SRC DST RANKS BYTES
//
// Tensors of more than BYTES bytes are cut.

#include <iostream>
#include <memory>
#include <string>

#include "test/support/rank_runner.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/plan/default_save_planner.h"

namespace {

void copy(const std::string& source, const std::string& destination, std::int64_t bytes,
          dcp::testing::RankContext& context) {
  const dcp::StateDict state = dcp::load_keys(source);
  dcp::SaveOptions options;
  options.communicator = std::make_shared<dcp::Communicator>(context.communicator());
  options.check_replicas = true;
  dcp::SavePlannerOptions planner;
  planner.split_replicated_bytes = bytes;
  options.planner = std::make_shared<dcp::DefaultSavePlanner>(planner);
  const dcp::Metadata metadata = dcp::save(state, destination, options);
  if (context.rank() != 0) return;
  std::size_t cut_count = 0;
  for (const auto& [key, entry] : metadata.state_dict_metadata) {
    const auto* tensor = std::get_if<dcp::TensorStorageMetadata>(&entry);
    if (tensor && tensor->chunks.size() > 1) ++cut_count;
  }
  std::cout << cut_count << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: split_copy SRC DST RANKS BYTES\n";
    return 2;
  }
  try {
    dcp::testing::run_ranks(std::stoi(argv[3]), [&](dcp::testing::RankContext& context) {
      copy(argv[1], argv[2], std::stoll(argv[4]), context);
    });
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
