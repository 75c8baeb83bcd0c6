#include "tools/dcp/copy.h"

#include <ATen/core/Tensor.h>

#include <exception>
#include <memory>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/plan/default_save_planner.h"

namespace dcp::tool {
namespace {

/// This rank's part of a tensor, to be filled.
DTensor make_shard(const TensorStorageMetadata& tensor, const std::shared_ptr<const DeviceMesh>& mesh) {
  const Placement placement = tensor.size.empty() ? Placement::replicate() : Placement::shard(0);
  DTensor shard = DTensor::empty(tensor.size, tensor.properties.dtype, mesh, {placement});
  if (tensor.properties.requires_grad) shard.local().requires_grad_(true);
  return shard;
}

void copy_on_rank(const std::string& source, const std::string& destination, const CopyOptions& options,
                  const Metadata& metadata, std::shared_ptr<Communicator> communicator) {
  const auto mesh = DeviceMesh::make({options.ranks}, communicator->rank());
  const FlattenRule rule = metadata.planner_data ? FlattenRule::kCurrent : FlattenRule::kTopLevel;

  StateDict state;
  LoadOptions load_options;
  load_options.communicator = communicator;
  load_options.planner = std::make_shared<RebuildLoadPlanner>(
      std::set<std::string>(), [&](const std::string&, const auto& tensor) { return Value(make_shard(tensor, mesh)); });
  load(state, source, load_options);

  SaveOptions save_options;
  save_options.communicator = std::move(communicator);
  SavePlannerOptions save_planner;
  save_planner.flatten = rule;
  save_options.planner = std::make_shared<DefaultSavePlanner>(save_planner);
  FileSystemWriterOptions writer_options;
  writer_options.thread_count = options.threads;
  if (options.zstd) writer_options.transforms = {zstd_transform()};
  save(state, destination, save_options, writer_options);
}

}  // namespace

void copy_checkpoint(const std::string& source, const std::string& destination, const CopyOptions& options) {
  DCP_CHECK(options.ranks > 0, kInvalidArgument, "a copy needs at least one rank");
  const Metadata metadata = read_metadata(source);
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
