#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/plan/metadata.h"
#include "torch_dcp/plan/plan.h"

namespace dcp::tiered {

/// What every flush of a writer goes by.
struct FlushOptions {
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< to write to; the local one if null
  bool sync_files = true;
};

/// A committed checkpoint that is to be copied to disk: this rank's part.
struct FlushJob {
  struct Source {
    std::string name;  ///< as the results have it
    std::shared_ptr<const RandomAccessFile> file;
  };
  std::int64_t step = -1;
  std::string path;                       ///< of the folder
  std::vector<Source> files;              ///< this rank's own
  std::exception_ptr problem = {};        ///< why this rank cannot take part: all ranks' flush fails with it
  std::optional<Metadata> metadata = {};  ///< on the coordinator: without storage data, as `finish` takes it
  std::vector<std::vector<WriteResult>> results = {};  ///< likewise
};

/// `name` as it is called in a folder whose new files have `tag` in their names.
std::string name_with_tag(const std::string& name, std::string_view tag);

/// Copies files and commits, as `FileSystemWriter` does.
///
/// \param stop  Once set, throws kCancelled between pieces.
/// \throws dcp::CheckpointError alike on all ranks; a commit that failed before its rename has left no file.
/// Collective: all ranks of `comm`.
void run_flush(Communicator& comm, const FlushOptions& options, FlushJob job, const std::atomic<bool>& stop,
               std::atomic<std::int64_t>& bytes);

/// What became of a flush.
struct FlushOutcome {
  std::int64_t step = -1;
  std::string path;
  bool has_ended = false;
  std::exception_ptr error = {};
  std::int64_t bytes = 0;
};

/// Runs flushes one after another, each on a thread of its own. Used by one thread.
class Flusher {
 public:
  Flusher(Communicator comm, FlushOptions options);
  /// Stops a flush that runs, and leaves it behind if it does not end.
  ~Flusher();
  Flusher(const Flusher&) = delete;
  Flusher& operator=(const Flusher&) = delete;

  /// Waits for the one before, and does not wait for this one.
  void start(FlushJob job);
  bool is_busy() const;
  void wait();
  /// \returns Whether no flush runs any more.
  bool wait_for(std::chrono::milliseconds limit);
  /// Of the last one that was started.
  std::optional<FlushOutcome> outcome() const;
  /// Flushes that failed since the last one that did not.
  int failed_in_a_row() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace dcp::tiered
