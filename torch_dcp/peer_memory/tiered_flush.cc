// A flush is a save whose bytes are there already:
//
//   1. "flush plan"    every rank makes the folder; the coordinator finds out what the commit replaces, and gives the
//                      data files a tag if old ones have their names
//   2. "flush write"   every rank copies its files, syncs them, and then the folder
//   3. "flush commit"  the coordinator writes side file and `.metadata`: the commit of FileSystemWriter
//
// Whatever fails before the commit's rename leaves what the folder held before.

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/comm/rank_step.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/peer_memory/tiered_flush_internal.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/plan/wire.h"
#include "torch_dcp/storage/filesystem_writer.h"

namespace dcp::tiered {
namespace {

constexpr std::string_view kSuffix = ".distcp";
constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;
/// A stopped flush is at the end of a piece, or of a step, by then.
constexpr std::chrono::seconds kStopGrace{2};

/// One rank's part in one flush.
class Flush {
 public:
  Flush(Communicator& comm, const FlushOptions& options, FlushJob job, const std::atomic<bool>& stop,
        std::atomic<std::int64_t>& bytes)
      : comm_(comm),
        options_(options),
        files_(options.file_system ? options.file_system : local_file_system()),
        job_(std::move(job)),
        stop_(stop),
        bytes_(bytes),
        writer_(job_.path, writer_options()) {}

  void run() {
    try {
      plan();
      status_step(comm_, "flush write", [this] { write(); });
    } catch (const CheckpointError& error) {
      // Not where this rank does not know how the others' step ended.
      if (is_decided(error)) clear();
      throw;
    }
    commit();
    writer_.committed();
  }

 private:
  FileSystemWriterOptions writer_options() const {
    FileSystemWriterOptions options;
    options.sync_files = options_.sync_files;
    options.file_system = files_;
    return options;
  }

  void throw_if_stopped() const {
    DCP_CHECK(!stop_, kCancelled, "the flush was stopped");
    comm_.throw_if_cancelled();
  }

  static bool is_decided(const CheckpointError& error) {
    return std::none_of(error.failures().begin(), error.failures().end(),
                        [](const RankFailure& failure) { return failure.rank < 0; });
  }

  void plan() {
    const SavePlan mine = reduce_scatter_step(
        comm_, "flush plan",
        [this] {
          if (job_.problem) std::rethrow_exception(job_.problem);
          throw_if_stopped();
          StorageWriterContext context;
          context.rank = comm_.rank();
          context.world_size = comm_.size();
          context.is_coordinator = comm_.is_coordinator();
          writer_.set_up(context);
          SavePlan empty = writer_.prepare_local_plan({});
          empty.storage_data = job_.path;
          return empty;
        },
        [this](std::vector<SavePlan> plans) {
          for (std::size_t rank = 0; rank < plans.size(); ++rank) {
            DCP_CHECK(plans[rank].storage_data == job_.path, kState, "rank ", rank, " flushes to '",
                      plans[rank].storage_data, "', the coordinator to '", job_.path, "'");
          }
          DCP_CHECK(job_.metadata, kState, "the flush's coordinator is not the save's");
          return writer_.prepare_global_plan(std::move(plans));
        });
    tag_ = mine.storage_data;
  }

  void write() {
    for (const FlushJob::Source& source : job_.files) {
      const std::string name = name_with_tag(source.name, tag_);
      try {
        copy(*source.file, name);
      } catch (c10::Error& error) {
        error.add_context(
            c10::str("while copying '", source.name, "' from memory to '", join_path(job_.path, name), "'"));
        throw;
      }
    }
    if (options_.sync_files && !job_.files.empty()) files_->sync_directory(job_.path);
    // Nothing of its own to write; syncs the names of directories that were made.
    writer_.write_data({}, DefaultSavePlanner());
    job_.files.clear();  // memory of an old generation
  }

  void copy(const RandomAccessFile& from, const std::string& name) {
    const auto to = files_->create_file(join_path(job_.path, name), /*exclusive=*/true);
    written_.push_back(name);
    to->set_early_write_back(options_.sync_files);
    to->set_direct_writes(options_.sync_files);
    Bytes piece;
    for (std::uint64_t at = 0; at < from.size(); at += piece.size()) {
      throw_if_stopped();
      piece.resize(std::min(kPieceBytes, from.size() - at));
      from.read_at(at, piece);
      to->append(piece);
      bytes_ += static_cast<std::int64_t>(piece.size());
    }
    if (options_.sync_files) to->sync();
    to->close();
  }

  void commit() {
    try {
      broadcast_step(comm_, "flush commit", [this] {
        throw_if_stopped();
        for (auto& of_rank : job_.results) {
          for (WriteResult& result : of_rank) {
            result.storage.relative_path = name_with_tag(result.storage.relative_path, tag_);
          }
        }
        job_.metadata->storage_meta = writer_.storage_meta();
        writer_.finish(*std::move(job_.metadata), job_.results);
        return true;
      });
    } catch (const CheckpointError& error) {
      const bool is_known =
          std::none_of(error.failures().begin(), error.failures().end(), [](const RankFailure& failure) {
            return failure.kind == ErrorKind::kComm || failure.kind == ErrorKind::kDeadline;
          });
      if (is_known && !may_have_committed()) clear();
      throw;
    }
  }

  bool may_have_committed() {
    try {
      return broadcast_step(comm_, "flush clear", [this] { return writer_.may_have_committed(); });
    } catch (const CheckpointError&) {
      // Nobody can say. What was written stays for the next flush to remove, and the commit's error goes on.
      return true;
    }
  }

  /// What cannot be removed is named by no metadata.
  void clear() noexcept {
    writer_.abort();
    for (const std::string& name : written_) {
      try {
        files_->remove_file(join_path(job_.path, name));
      } catch (const std::exception&) {
        continue;
      }
    }
  }

  Communicator& comm_;
  const FlushOptions& options_;
  std::shared_ptr<FileSystem> files_;
  FlushJob job_;
  const std::atomic<bool>& stop_;
  std::atomic<std::int64_t>& bytes_;
  FileSystemWriter writer_;
  std::string tag_;
  std::vector<std::string> written_;
};

}  // namespace

std::string name_with_tag(const std::string& name, std::string_view tag) {
  DCP_CHECK(name.ends_with(kSuffix), kInternal, "'", name, "' is no data file's name");
  std::string stem = name.substr(0, name.size() - kSuffix.size());
  stem.resize(std::min(stem.size(), stem.find('-')));
  if (!tag.empty()) stem.append("-").append(tag);
  return stem.append(kSuffix);
}

void run_flush(Communicator& comm, const FlushOptions& options, FlushJob job, const std::atomic<bool>& stop,
               std::atomic<std::int64_t>& bytes) {
  const std::int64_t step = job.step;
  try {
    Flush(comm, options, std::move(job), stop, bytes).run();
  } catch (c10::Error& error) {
    error.add_context(c10::str("while copying the checkpoint of step ", step, " from memory to disk"));
    throw;
  }
}

/// Shared with the thread, which may be left behind.
struct Flusher::State {
  State(Communicator communicator, FlushOptions flush_options)
      : comm(std::move(communicator)), options(std::move(flush_options)) {}

  void run(FlushJob job) {
    std::exception_ptr error;
    try {
      run_flush(comm, options, std::move(job), stop, bytes);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard<std::mutex> lock(mutex);
    outcome->has_ended = true;
    outcome->error = error;
    outcome->bytes = bytes;
    failed_in_a_row = error ? failed_in_a_row + 1 : 0;
    is_busy = false;
    ended.notify_all();
  }

  Communicator comm;
  const FlushOptions options;
  std::atomic<bool> stop = false;
  std::atomic<std::int64_t> bytes = 0;
  std::thread thread;  // used by the owner's thread alone

  std::mutex mutex;
  std::condition_variable ended;
  bool is_busy = false;
  int failed_in_a_row = 0;
  std::optional<FlushOutcome> outcome;
};

Flusher::Flusher(Communicator comm, FlushOptions options)
    : state_(std::make_shared<State>(std::move(comm), std::move(options))) {}

Flusher::~Flusher() {
  state_->stop = true;
  if (wait_for(kStopGrace)) {
    if (state_->thread.joinable()) state_->thread.join();
  } else {
    state_->thread.detach();
  }
}

void Flusher::start(FlushJob job) {
  wait();
  if (state_->thread.joinable()) state_->thread.join();
  state_->bytes = 0;
  state_->outcome = FlushOutcome{job.step, job.path};
  state_->is_busy = true;
  try {
    state_->thread = std::thread([state = state_, mine = std::move(job)]() mutable { state->run(std::move(mine)); });
  } catch (...) {
    state_->is_busy = false;
    throw;
  }
}

bool Flusher::is_busy() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->is_busy;
}

void Flusher::wait() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->ended.wait(lock, [this] { return !state_->is_busy; });
}

bool Flusher::wait_for(std::chrono::milliseconds limit) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  return state_->ended.wait_for(lock, limit, [this] { return !state_->is_busy; });
}

std::optional<FlushOutcome> Flusher::outcome() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  std::optional<FlushOutcome> outcome = state_->outcome;
  if (outcome) outcome->bytes = state_->bytes;
  return outcome;
}

int Flusher::failed_in_a_row() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->failed_in_a_row;
}

}  // namespace dcp::tiered
