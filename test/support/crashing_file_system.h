#pragma once

#include <cstdint>
#include <memory>

#include "torch_dcp/io/file_system.h"

namespace dcp::test {

/// What of the unsynced changes a power cut leaves.
enum class CrashPolicy : std::uint8_t {
  kLoseUnsynced,  ///< nothing
  kKeepAll,       ///< everything
  /// By chance: each unsynced create, rename and remove is there or not, on its own
  /// except that a file's changes of name last in their order; an unsynced file has its last synced bytes, or the new
  /// ones up to some length, with what follows those missing or garbage.
  kTornWrites,
};

/// A file system in memory that knows what was synced and can lose the rest.
///
/// `WritableFile::sync` makes a file's bytes last, not its name; `sync_directory` makes
/// the directory's names last, not the files' bytes nor what is in its sub-directories.
/// A rename lasts or is lost as a whole. Safe to use from many threads.
class CrashingFileSystem : public FileSystem {
 public:
  /// The file system as found after a power cut at this moment; all in it is synced.
  /// This one goes on, so that several outcomes of one moment can be looked at.
  ///
  /// \param seed  For kTornWrites.
  virtual std::shared_ptr<CrashingFileSystem> crash(CrashPolicy policy, std::uint64_t seed = 0) const = 0;
};

/// Returns a new, empty one; "/" and relative paths both start at its root.
std::shared_ptr<CrashingFileSystem> make_crashing_file_system();

}  // namespace dcp::test
