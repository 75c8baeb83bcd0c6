// Loads the tensors of a checkpoint on some ranks, each its part, and saves them as safetensors:
//
//   safetensors_copy SRC DST FORM RANKS
//
// FORM is "whole", "mapped" (three files), "sharded", "consolidated" or "mapped_consolidated". Whole files are written
// by one rank.

#include <ATen/core/Tensor.h>

#include <iostream>
#include <memory>
#include <string>

#include "test/support/rank_runner.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/storage/safetensors_writer.h"

namespace {

dcp::SafetensorsWriterOptions options_of(const std::string& form, const dcp::Metadata& metadata) {
  dcp::SafetensorsWriterOptions options;
  options.save_distributed = form == "sharded" || form.ends_with("consolidated");
  options.enable_consolidation = form.ends_with("consolidated");
  options.thread_count = 2;
  options.thread_count_consolidation = 2;
  if (form.starts_with("mapped")) {
    std::int64_t number = 0;
    for (const auto& [key, entry] : metadata.state_dict_metadata) {
      options.fqn_to_index_mapping.insert(key, number++ % 3 + 1);
    }
  }
  return options;
}

void copy(const std::string& source, const std::string& destination, const std::string& form,
          dcp::testing::RankContext& context) {
  const dcp::Metadata metadata = dcp::read_metadata(source);
  const auto mesh = dcp::DeviceMesh::make({context.size()}, context.rank());
  dcp::StateDict state;
  int number = 0;
  for (const auto& [key, entry] : metadata.state_dict_metadata) {
    const auto& tensor = std::get<dcp::TensorStorageMetadata>(entry);
    // Rows of some and columns of others.
    const auto dim = tensor.size.empty() ? 0 : number++ % static_cast<std::int64_t>(tensor.size.size());
    const auto placement = tensor.size.empty() ? dcp::Placement::replicate() : dcp::Placement::shard(dim);
    state.insert_or_assign(key, dcp::DTensor::empty(tensor.size, tensor.properties.dtype, mesh, {placement}));
  }
  const auto communicator = std::make_shared<dcp::Communicator>(context.communicator());
  dcp::LoadOptions load_options;
  load_options.communicator = communicator;
  dcp::LoadPlannerOptions load_planner;
  load_planner.flatten = dcp::FlattenRule::kTopLevel;
  load_options.planner = std::make_shared<dcp::DefaultLoadPlanner>(load_planner);
  dcp::load(state, source, load_options);

  dcp::SafetensorsWriter writer(destination, options_of(form, metadata));
  dcp::SaveOptions save_options;
  save_options.communicator = communicator;
  dcp::SavePlannerOptions save_planner;
  save_planner.flatten = dcp::FlattenRule::kTopLevel;
  save_options.planner = std::make_shared<dcp::DefaultSavePlanner>(save_planner);
  dcp::save(state, writer, save_options);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: safetensors_copy SRC DST FORM RANKS\n";
    return 2;
  }
  try {
    dcp::testing::run_ranks(std::stoi(argv[4]),
                            [&](dcp::testing::RankContext& context) { copy(argv[1], argv[2], argv[3], context); });
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
