#include "tools/dcp/copy.h"

#include <ATen/core/Tensor.h>

#include <exception>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/plan/validate.h"

namespace dcp::tool {
namespace {

DTensor make_shard(const TensorStorageMetadata& tensor, const std::shared_ptr<const DeviceMesh>& mesh) {
  const Placement placement = tensor.size.empty() ? Placement::replicate() : Placement::shard(0);
  DTensor shard = DTensor::empty(tensor.size, tensor.properties.dtype, mesh, {placement});
  if (tensor.properties.requires_grad) shard.local().requires_grad_(true);
  return shard;
}

/// The destinations of one rank: a shard for each tensor and None for each object, nested as they were saved.
StateDict make_destinations(const Metadata& metadata, const std::shared_ptr<const DeviceMesh>& mesh) {
  // A list is no longer than the keys explain, but for the None that fill it up.
  const auto max_list_index = static_cast<std::int64_t>(1000 + 64 * metadata.state_dict_metadata.size());
  StateDict state;
  for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
    const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
    Value value = tensor ? Value(make_shard(*tensor, mesh)) : Value();
    const Path* path = metadata.planner_data ? metadata.planner_data->find(fqn) : nullptr;
    if (path) {
      set_element(state, *path, std::move(value), max_list_index);
    } else {
      state.insert_or_assign(fqn, std::move(value));
    }
  }
  return state;
}

/// Before anything is allocated for them.
void check_chunks(const std::string& source, const Metadata& metadata) {
  for (const auto& [fqn, entry] : metadata.state_dict_metadata) {
    const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
    if (!tensor) continue;
    const auto fault = find_chunk_fault(*tensor, true);
    DCP_CHECK(!fault, kCorruptData, source, ": ", fqn, ": ", *fault);
  }
}

void copy_on_rank(const std::string& source, const std::string& destination, const CopyOptions& options,
                  const Metadata& metadata, std::shared_ptr<Communicator> communicator) {
  const auto mesh = DeviceMesh::make({options.ranks}, communicator->rank());
  const FlattenRule rule = metadata.planner_data ? FlattenRule::kCurrent : FlattenRule::kTopLevel;
  StateDict state = make_destinations(metadata, mesh);

  LoadOptions load_options;
  load_options.communicator = communicator;
  LoadPlannerOptions load_planner;
  load_planner.flatten = rule;
  load_options.planner = std::make_shared<DefaultLoadPlanner>(load_planner);
  load(state, source, load_options);

  SaveOptions save_options;
  save_options.communicator = std::move(communicator);
  SavePlannerOptions save_planner;
  save_planner.flatten = rule;
  save_options.planner = std::make_shared<DefaultSavePlanner>(save_planner);
  FileSystemWriterOptions writer_options;
  writer_options.thread_count = options.threads;
  save(state, destination, save_options, writer_options);
}

}  // namespace

void copy_checkpoint(const std::string& source, const std::string& destination, const CopyOptions& options) {
  DCP_CHECK(options.ranks > 0, kInvalidArgument, "a copy needs at least one rank");
  const Metadata metadata = read_metadata(source);
  check_chunks(source, metadata);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(options.ranks));
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < options.ranks; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          // Only tells rank, size and store: the library makes a group of its own from these.
          const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, options.ranks);
          CommunicatorOptions communicator_options;
          communicator_options.store = store;
          copy_on_rank(source, destination, options, metadata,
                       std::make_shared<Communicator>(Communicator::create(group, communicator_options)));
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  // Every rank throws the same.
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace dcp::tool
