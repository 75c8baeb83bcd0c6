#include <algorithm>
#include <utility>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/peer_memory/tiered_flush_internal.h"
#include "torch_dcp/peer_memory/tiered_folders_internal.h"
#include "torch_dcp/peer_memory/tiered_storage.h"

namespace dcp {
namespace {

/// Before the memory writer's own storage data where the coordinator has decided that the save goes to disk too: its
/// step follows. As a number it is larger than any generation's.
constexpr std::string_view kFlushMark = "to disk:";

std::string mark(std::int64_t step, const std::string& inner) {
  return std::string(kFlushMark) + std::to_string(step) + ":" + inner;
}

/// The step, and what was marked.
std::pair<std::int64_t, std::string> unmark(const std::string& marked) {
  const std::string rest = marked.substr(kFlushMark.size());
  const std::size_t end = rest.find(':');
  return {std::stoll(rest.substr(0, end)), rest.substr(end + 1)};
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    return current_failure(0).message;
  }
}

ProcessGroupWriterOptions memory_options(const TieredWriterOptions& options) {
  ProcessGroupWriterOptions memory;
  memory.step = options.step;
  memory.checksums = options.checksums;
  return memory;
}

Communicator communicator_of(const GroupRef& group, const CommunicatorOptions& options) {
  return group ? Communicator::create(group.get(), options) : Communicator::single();
}

}  // namespace

class TieredWriter::Impl {
 public:
  Impl(std::shared_ptr<PeerMemory> memory_in, const GroupRef& group, std::string directory_in,
       TieredWriterOptions options_in)
      : memory(std::move(memory_in)),
        directory(std::move(directory_in)),
        options(std::move(options_in)),
        folders(options.folder),
        writer(memory, memory_options(options)),
        flusher(communicator_of(group, options.communicator_options), {options.file_system, options.sync_files}),
        step(options.step) {}

  bool is_due() const { return options.disk_every > 0 && step >= 0 && step % options.disk_every == 0; }

  /// Of a flush that has failed, once for each.
  void tell_failure() {
    const std::optional<tiered::FlushOutcome> outcome = flusher.outcome();
    if (!outcome || !outcome->has_ended || !outcome->error || is_told) return;
    is_told = true;
    warnings.push_back(c10::str("the checkpoint of step ", outcome->step, " is in memory alone, its copy to '",
                                outcome->path, "' failed: ", text_of(outcome->error)));
  }

  void throw_if_failed_too_often() {
    const int failed = flusher.failed_in_a_row();
    if (options.most_failed_flushes <= 0 || failed < options.most_failed_flushes || has_thrown_for == failed) return;
    has_thrown_for = failed;
    DCP_THROW(kIo, "the last ", failed,
              " copies of checkpoints from memory to disk failed; the last one: ", text_of(flusher.outcome()->error));
  }

  /// Opens this rank's files before a later save can drop them.
  void start_flush() {
    tiered::FlushJob job = *std::move(next);
    next.reset();
    const std::string generation = PeerMemory::directory_of(writer.committed_generation().value().number);
    try {
      for (const std::string& name : own_files) {
        job.files.push_back({name, memory->file_system()->open_file(join_path(generation, name))});
      }
    } catch (...) {
      // The other ranks have begun: theirs fails with it.
      job.problem = std::current_exception();
    }
    is_told = has_thrown = false;
    flusher.start(std::move(job));
  }

  std::shared_ptr<PeerMemory> memory;
  std::string directory;
  TieredWriterOptions options;
  tiered::StepFolders folders;
  ProcessGroupStorageWriter writer;
  tiered::Flusher flusher;
  std::int64_t step;
  bool was_due = false;                  // this save, by this rank's step
  std::optional<tiered::FlushJob> next;  // of this save, once the coordinator's decision has come
  std::vector<std::string> own_files;
  std::vector<std::string> warnings;
  bool is_told = false;     // of the last flush's failure, by a warning
  bool has_thrown = false;  // likewise, from wait_for_flush
  int has_thrown_for = 0;   // flushes that failed in a row
};

TieredWriter::TieredWriter(std::shared_ptr<PeerMemory> memory, const GroupRef& group, std::string directory,
                           TieredWriterOptions options) {
  DCP_CHECK(memory, kInvalidArgument, "a writer into peers' memory needs one");
  DCP_CHECK(options.disk_every >= 0, kInvalidArgument, "disk_every is ", options.disk_every);
  DCP_CHECK(options.disk_every == 0 || !directory.empty(), kInvalidArgument, "checkpoints on disk need a directory");
  impl_ = std::make_unique<Impl>(std::move(memory), group, std::move(directory), std::move(options));
}

TieredWriter::~TieredWriter() { impl_->flusher.wait_for(impl_->options.close_deadline); }

void TieredWriter::set_step(std::int64_t step) {
  impl_->step = step;
  impl_->writer.set_step(step);
}

std::optional<PeerGeneration> TieredWriter::committed_generation() const {
  return impl_->writer.committed_generation();
}

void TieredWriter::wait_for_flush() {
  impl_->flusher.wait();
  const std::optional<tiered::FlushOutcome> outcome = impl_->flusher.outcome();
  if (!outcome || !outcome->error || impl_->has_thrown) return;
  impl_->has_thrown = impl_->is_told = true;
  std::rethrow_exception(outcome->error);
}

std::optional<TieredFlush> TieredWriter::last_flush() const {
  const std::optional<tiered::FlushOutcome> outcome = impl_->flusher.outcome();
  if (!outcome) return std::nullopt;
  TieredFlush flush;
  flush.step = outcome->step;
  flush.path = outcome->path;
  flush.has_ended = outcome->has_ended;
  flush.bytes = outcome->bytes;
  if (outcome->error) flush.error = text_of(outcome->error);
  return flush;
}

void TieredWriter::set_up(const StorageWriterContext& context) {
  impl_->warnings.clear();
  impl_->next.reset();
  impl_->own_files.clear();
  impl_->was_due = impl_->is_due();
  if (impl_->was_due) {
    if (!impl_->options.skip_if_busy) impl_->flusher.wait();
    impl_->throw_if_failed_too_often();
  }
  impl_->tell_failure();
  impl_->writer.set_up(context);
}

StorageMeta TieredWriter::storage_meta() const { return impl_->writer.storage_meta(); }

SavePlan TieredWriter::prepare_local_plan(SavePlan plan) { return impl_->writer.prepare_local_plan(std::move(plan)); }

std::vector<SavePlan> TieredWriter::prepare_global_plan(std::vector<SavePlan> plans) {
  plans = impl_->writer.prepare_global_plan(std::move(plans));
  // One rank decides. Once its flush has ended, the others' are about to, and they wait for that.
  if (!impl_->was_due || (impl_->options.skip_if_busy && impl_->flusher.is_busy())) return plans;
  for (SavePlan& plan : plans) plan.storage_data = mark(impl_->step, plan.storage_data);
  return plans;
}

std::vector<WriteResult> TieredWriter::write_data(const SavePlan& plan, const SavePlanner& planner) {
  if (!plan.storage_data.starts_with(kFlushMark)) {
    if (impl_->was_due) {
      DCP_CHECK(impl_->options.skip_if_busy, kInvalidArgument, "step ", impl_->step,
                " is due for disk on this rank, but not on the coordinator: ranks must save the same step");
      impl_->warnings.push_back(c10::str("the checkpoint of step ", impl_->step,
                                         " stays in memory alone: an earlier one is still being copied to disk"));
    }
    return impl_->writer.write_data(plan, planner);
  }
  auto [step, inner] = unmark(plan.storage_data);
  DCP_CHECK(step == impl_->step, kInvalidArgument, "this rank saves step ", impl_->step, ", the coordinator step ",
            step);
  SavePlan of_memory = plan;
  of_memory.storage_data = std::move(inner);
  std::vector<WriteResult> results = impl_->writer.write_data(of_memory, planner);
  for (const WriteResult& result : results) {
    const std::string& name = result.storage.relative_path;
    if (impl_->own_files.empty() || impl_->own_files.back() != name) impl_->own_files.push_back(name);
  }
  std::sort(impl_->own_files.begin(), impl_->own_files.end());
  impl_->own_files.erase(std::unique(impl_->own_files.begin(), impl_->own_files.end()), impl_->own_files.end());
  impl_->next.emplace();
  impl_->next->step = step;
  impl_->next->path = join_path(impl_->directory, impl_->folders.name_of(step));
  return results;
}

Metadata TieredWriter::finish(Metadata metadata, const std::vector<std::vector<WriteResult>>& results) {
  if (impl_->next) {
    impl_->next->metadata = metadata;
    impl_->next->results = results;
  }
  return impl_->writer.finish(std::move(metadata), results);
}

bool TieredWriter::may_have_committed() const { return impl_->writer.may_have_committed(); }

void TieredWriter::committed() noexcept {
  impl_->writer.committed();
  if (!impl_->next) return;
  try {
    impl_->start_flush();
  } catch (...) {  // Whatever a file system of the program's throws.
    impl_->warnings.push_back(
        c10::str("the copy of step ", impl_->step, " to disk has not begun: ", current_failure(0).message));
  }
}

void TieredWriter::abort() noexcept {
  impl_->next.reset();
  impl_->writer.abort();
}

std::vector<std::string> TieredWriter::warnings() const {
  std::vector<std::string> all = impl_->writer.warnings();
  all.insert(all.end(), impl_->warnings.begin(), impl_->warnings.end());
  return all;
}

}  // namespace dcp
