#include <charconv>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/peer_memory/tiered_folders_internal.h"
#include "torch_dcp/peer_memory/tiered_storage.h"

namespace dcp {
namespace {

/// The coordinator's decision, for the others, in the metadata's `load_id`, which no checkpoint is known by.
constexpr std::string_view kMemoryMark = "tiered:memory:";
constexpr std::string_view kDiskMark = "tiered:disk:";

}  // namespace

class TieredReader::Impl {
 public:
  Impl(std::shared_ptr<PeerMemory> memory_in, std::string directory_in, TieredReaderOptions options_in)
      : memory(std::move(memory_in)),
        directory(std::move(directory_in)),
        options(std::move(options_in)),
        folders(options.folder),
        files(options.reader.file_system ? options.reader.file_system : local_file_system()) {
    DCP_CHECK(memory || !directory.empty(), kInvalidArgument, "neither memory nor a directory to load from");
  }

  StorageReader& chosen() {
    DCP_CHECK(reader, kState, "set_up comes first");
    return *reader;
  }

  void choose_memory(const PeerGeneration& generation) {
    auto found = std::make_unique<ProcessGroupStorageReader>(memory, options.reader);
    source = TieredSource{true, generation.step, found->place(), {}};
    decision = std::string(kMemoryMark) + std::to_string(generation.number);
    reader = std::move(found);
  }

  void choose_folder(const tiered::StepFolders::Found& folder) {
    const std::string path = join_path(directory, folder.name);
    reader = std::make_unique<FileSystemReader>(path, options.reader);
    source = TieredSource{false, folder.step, path, {}};
    decision = std::string(kDiskMark) + folder.name;
  }

  /// What the coordinator has chosen.
  void follow(const std::string& told) {
    if (told.starts_with(kMemoryMark)) {
      DCP_CHECK(memory, kInvalidArgument, "the coordinator loads from the ranks' memory, this rank has none");
      const std::optional<PeerGeneration> newest = memory->newest();
      const std::string number = told.substr(kMemoryMark.size());
      DCP_CHECK(newest && std::to_string(newest->number) == number, kState, "the coordinator loads generation ", number,
                " of the ranks' memory, this rank knows ", newest ? std::to_string(newest->number) : "none",
                " to be the newest: the ranks must attach again");
      choose_memory(*newest);
      return;
    }
    DCP_CHECK(told.starts_with(kDiskMark), kInvalidArgument,
              "the coordinator has told nothing of where it loads from: it needs a TieredReader too");
    const std::string name = told.substr(kDiskMark.size());
    const std::optional<std::int64_t> step = folders.step_of(name);
    DCP_CHECK(step && !directory.empty(), kInvalidArgument, "the coordinator loads from the folder '", name,
              "', which is none of this rank's: it has other options");
    choose_folder({*step, name});
  }

  /// Tries one place. \returns The reason why it is passed over, or nothing.
  template <typename Choose>
  std::optional<std::string> try_source(const std::string& place, const Choose& choose) {
    try {
      choose();
      metadata = reader->read_metadata();
      return std::nullopt;
    } catch (const Error& error) {
      reader.reset();
      source.reset();
      return place + ": " + error.what_without_backtrace();
    }
  }

  void find() {
    reader.reset();
    source.reset();
    metadata.reset();
    std::vector<std::string> passed;
    std::optional<PeerGeneration> generation;
    if (memory) generation = memory->newest();
    bool memory_is_left = generation.has_value();
    const auto try_memory = [&] {
      memory_is_left = false;
      return take(passed, try_source("memory", [&] { choose_memory(*generation); }));
    };
    if (!directory.empty()) {
      for (const auto& folder : list_folders(passed)) {
        if (memory_is_left && generation->step >= folder.step && try_memory()) return;
        const auto choose = [&] {
          DCP_CHECK(is_complete(join_path(directory, folder.name), files), kNotFound, "incomplete checkpoint");
          choose_folder(folder);
        };
        if (take(passed, try_source(folder.name, choose))) return;
      }
    }
    if (memory_is_left && try_memory()) return;
    throw_nothing(passed);
  }

  std::vector<tiered::StepFolders::Found> list_folders(std::vector<std::string>& passed) {
    try {
      return folders.list(*files, directory);
    } catch (const Error& error) {
      passed.push_back("'" + directory + "': " + error.what_without_backtrace());
      return {};
    }
  }

  bool take(std::vector<std::string>& passed, std::optional<std::string> reason) {
    if (reason) {
      passed.push_back(*std::move(reason));
      return false;
    }
    source->passed_over = passed;
    return true;
  }

  [[noreturn]] void throw_nothing(const std::vector<std::string>& passed) const {
    std::string reasons;
    for (const std::string& reason : passed) reasons += "; " + reason;
    DCP_THROW(kNotFound, "incomplete checkpoint: there is none, neither in ",
              memory ? "the memory of the " + std::to_string(memory->size()) + " ranks" : "memory (none was given)",
              " nor in ", directory.empty() ? "files (no directory was given)" : "folders of '" + directory + "'",
              reasons);
  }

  Metadata marked(Metadata found) const {
    if (!found.storage_meta) found.storage_meta.emplace();
    found.storage_meta->load_id = decision;
    return found;
  }

  std::shared_ptr<PeerMemory> memory;
  std::string directory;
  TieredReaderOptions options;
  tiered::StepFolders folders;
  std::shared_ptr<FileSystem> files;
  std::unique_ptr<StorageReader> reader;
  std::optional<TieredSource> source;
  std::string decision;
  std::optional<Metadata> metadata;
};

TieredReader::TieredReader(std::shared_ptr<PeerMemory> memory, std::string directory, TieredReaderOptions options)
    : impl_(std::make_unique<Impl>(std::move(memory), std::move(directory), std::move(options))) {}
TieredReader::~TieredReader() = default;

std::optional<TieredSource> TieredReader::source() const { return impl_->source; }

std::string TieredReader::place() const { return impl_->source ? impl_->source->place : std::string(); }

std::optional<Metadata> TieredReader::read_metadata() {
  impl_->find();
  std::optional<Metadata> metadata = std::exchange(impl_->metadata, std::nullopt);
  if (metadata) metadata = impl_->marked(*std::move(metadata));
  return metadata;
}

std::optional<Metadata> TieredReader::read_merged_metadata() {
  std::optional<Metadata> metadata = impl_->chosen().read_merged_metadata();
  if (metadata) metadata = impl_->marked(*std::move(metadata));
  return metadata;
}

Metadata TieredReader::read_rank_metadata(int rank) {
  if (!impl_->reader) impl_->find();
  return impl_->marked(impl_->chosen().read_rank_metadata(rank));
}

bool TieredReader::is_still_there() { return !impl_->reader || impl_->reader->is_still_there(); }

void TieredReader::set_up(const Metadata& metadata, const StorageReaderContext& context) {
  const std::string told = metadata.storage_meta ? metadata.storage_meta->load_id.value_or("") : std::string();
  // The coordinator has it open. Others begin anew: what they read before may be another.
  if (!impl_->reader || (context.use_collectives && !context.is_coordinator) || told != impl_->decision) {
    impl_->follow(told);
  }
  impl_->reader->set_up(metadata, context);
}

LoadPlan TieredReader::prepare_local_plan(LoadPlan plan) { return impl_->chosen().prepare_local_plan(std::move(plan)); }

std::vector<LoadPlan> TieredReader::prepare_global_plan(std::vector<LoadPlan> plans) {
  return impl_->chosen().prepare_global_plan(std::move(plans));
}

void TieredReader::check(const LoadPlan& plan, LoadPlanner& planner) { impl_->chosen().check(plan, planner); }

void TieredReader::read_data(const LoadPlan& plan, LoadPlanner& planner) { impl_->chosen().read_data(plan, planner); }

}  // namespace dcp
