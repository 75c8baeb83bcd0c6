#include <string>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/peer_memory/peer_memory_impl_internal.h"
#include "torch_dcp/peer_memory/process_group_storage.h"

namespace dcp {

class ProcessGroupStorageReader::Impl {
 public:
  Impl(std::shared_ptr<PeerMemory> of, FileSystemReaderOptions reader_options)
      : memory(std::move(of)), options(std::move(reader_options)) {
    DCP_CHECK(memory, kInvalidArgument, "a reader of peers' memory needs one");
    options.file_system = memory->file_system();
  }

  /// Reads from this generation from now on, or from the newest.
  void open_newest() {
    std::optional<PeerGeneration> newest = memory->newest();
    DCP_CHECK(newest, kNotFound, "incomplete checkpoint mem: the memory of the ", memory->size(),
              " ranks holds no complete generation", what_is_lost());
    open(*std::move(newest));
  }

  /// In words, what was found but cannot be used.
  std::string what_is_lost() const {
    std::string text;
    for (const std::string& lost : memory->report().lost) text += (text.empty() ? ": " : "; ") + lost;
    return text;
  }

  void open(PeerGeneration known) {
    generation = std::move(known);
    files = std::make_unique<FileSystemReader>(PeerMemory::directory_of(generation->number), options);
  }

  std::string place() const {
    const std::optional<PeerGeneration> known = generation ? generation : memory->newest();
    if (!known) return "mem:";
    return c10::str("mem:generation ", known->number, " (step ", known->step, ")");
  }

  /// What the files' reader gives; its errors say where that was.
  template <typename Call>
  auto read(const Call& call) {
    DCP_CHECK(files, kState, "set_up comes first");
    try {
      return call(*files);
    } catch (c10::Error& error) {
      error.add_context(c10::str("while reading ", place()));
      throw;
    }
  }

  std::shared_ptr<PeerMemory> memory;
  FileSystemReaderOptions options;
  std::optional<PeerGeneration> generation;
  std::unique_ptr<FileSystemReader> files;
};

ProcessGroupStorageReader::ProcessGroupStorageReader(std::shared_ptr<PeerMemory> memory,
                                                     FileSystemReaderOptions options)
    : impl_(std::make_unique<Impl>(std::move(memory), std::move(options))) {}
ProcessGroupStorageReader::~ProcessGroupStorageReader() = default;

std::string ProcessGroupStorageReader::place() const { return impl_->place(); }

std::optional<Metadata> ProcessGroupStorageReader::read_metadata() {
  impl_->open_newest();
  return impl_->read([](FileSystemReader& files) { return files.read_metadata(); });
}

void ProcessGroupStorageReader::set_up(const Metadata& metadata, const StorageReaderContext& context) {
  DCP_CHECK(context.use_collectives, kUnsupported,
            "loading from peers' memory without collectives (use_collectives = false)");
  DCP_CHECK(context.rank == impl_->memory->rank() && context.world_size == impl_->memory->size(), kInvalidArgument,
            "the load's group is not the memory's: rank ", context.rank, " of ", context.world_size,
            ", in the memory's rank ", impl_->memory->rank(), " of ", impl_->memory->size());
  const std::string save_id = metadata.storage_meta ? metadata.storage_meta->save_id.value_or("") : std::string();
  const bool is_open = context.is_coordinator && impl_->files && impl_->generation->save_id == save_id;
  if (!is_open) {
    std::optional<PeerGeneration> generation = impl_->memory->impl().generation_of(save_id);
    DCP_CHECK(generation, kState, "this rank does not know the generation of the save ", save_id,
              " to be in memory: the ranks must attach again");
    impl_->open(*std::move(generation));
  }
  impl_->read([&](FileSystemReader& files) { files.set_up(metadata, context); });
}

LoadPlan ProcessGroupStorageReader::prepare_local_plan(LoadPlan plan) {
  return impl_->read([&](FileSystemReader& files) { return files.prepare_local_plan(std::move(plan)); });
}

std::vector<LoadPlan> ProcessGroupStorageReader::prepare_global_plan(std::vector<LoadPlan> plans) {
  return impl_->read([&](FileSystemReader& files) { return files.prepare_global_plan(std::move(plans)); });
}

bool ProcessGroupStorageReader::is_still_there() { return !impl_->files || impl_->files->is_still_there(); }

void ProcessGroupStorageReader::check(const LoadPlan& plan, LoadPlanner& planner) {
  impl_->read([&](FileSystemReader& files) { files.check(plan, planner); });
}

void ProcessGroupStorageReader::read_data(const LoadPlan& plan, LoadPlanner& planner) {
  impl_->read([&](FileSystemReader& files) { files.read_data(plan, planner); });
}

}  // namespace dcp
