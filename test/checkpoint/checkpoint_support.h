#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "test/support/rank_runner.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/io/memory_file_system.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/value.h"

/// What tests of whole saves and loads have in common.
namespace dcp::test {

using dcp::testing::RankContext;
using dcp::testing::run_ranks;

/// Bits that no test stores, so that what a load did not touch shows.
inline at::Tensor pattern(c10::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  at::Tensor tensor = at::empty(sizes, dtype);
  if (tensor.numel() > 0) std::memset(tensor.mutable_data_ptr(), 0xAB, tensor.nbytes());
  return tensor;
}

inline bool is_pattern(const at::Tensor& tensor) {
  return bit_equal(tensor, pattern(tensor.sizes(), tensor.scalar_type()));
}

inline std::shared_ptr<const DeviceMesh> mesh_of(const RankContext& ranks) {
  return DeviceMesh::make({ranks.size()}, ranks.rank());
}

/// This rank's part of `whole`, split by the chunk rule.
inline DTensor split(const at::Tensor& whole, const RankContext& ranks, std::int64_t dim = 0) {
  return DTensor::distribute(whole, mesh_of(ranks), {Placement::shard(dim)});
}

inline DTensor pattern_on(std::shared_ptr<const DeviceMesh> mesh, Placements placements, c10::IntArrayRef sizes,
                          at::ScalarType dtype = at::kFloat) {
  DTensor tensor = DTensor::empty(Sizes(sizes), dtype, std::move(mesh), std::move(placements));
  if (tensor.local().numel() > 0) std::memset(tensor.local().mutable_data_ptr(), 0xAB, tensor.local().nbytes());
  return tensor;
}

inline DTensor split_pattern(c10::IntArrayRef sizes, const RankContext& ranks, std::int64_t dim = 0,
                             at::ScalarType dtype = at::kFloat) {
  return pattern_on(mesh_of(ranks), {Placement::shard(dim)}, sizes, dtype);
}

inline at::Tensor counted(c10::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).view(sizes).to(dtype);
}

/// A file system, and the ranks that save and load in it.
struct Place {
  std::shared_ptr<FileSystem> files = make_memory_file_system();
  std::shared_ptr<Communicator> communicator = nullptr;

  Metadata save(const StateDict& state, const std::string& path, FileSystemWriterOptions storage = {}) const {
    SaveOptions options;
    options.communicator = communicator;
    return save_with(state, path, options, std::move(storage));
  }

  Metadata save_with(const StateDict& state, const std::string& path, SaveOptions options,
                     FileSystemWriterOptions storage = {}) const {
    if (!options.communicator) options.communicator = communicator;
    storage.file_system = files;
    return dcp::save(state, path, options, storage);
  }

  LoadReport load(StateDict& state, const std::string& path, LoadOptions options = {},
                  FileSystemReaderOptions storage = {}) const {
    if (!options.communicator) options.communicator = communicator;
    storage.file_system = files;
    return dcp::load(state, path, options, storage);
  }

  StateDict rebuild(const std::string& path, std::set<std::string> keys = {}) const {
    return load_keys(path, std::move(keys), {.file_system = files});
  }

  Metadata metadata(const std::string& path) const { return read_metadata(path, {.file_system = files}); }
};

/// A place on `files` for the ranks of a run. Collective.
inline Place place_of(const RankContext& ranks, std::shared_ptr<FileSystem> files, CommunicatorOptions options = {}) {
  return {std::move(files), std::make_shared<Communicator>(ranks.communicator(std::move(options)))};
}

/// Name -> bytes of all files in a directory.
inline std::map<std::string, Bytes> contents_of(FileSystem& files, const std::string& directory) {
  std::map<std::string, Bytes> contents;
  if (files.file_type(directory) != FileType::kDirectory) return contents;
  for (const std::string& name : files.list_directory(directory)) {
    const std::string path = join_path(directory, name);
    if (files.file_type(path) == FileType::kFile) contents[name] = read_whole_file(files, path, 1u << 30);
  }
  return contents;
}

inline std::vector<std::string> names_in(FileSystem& files, const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : contents_of(files, directory)) names.push_back(name);
  return names;
}

inline void write_file(FileSystem& files, const std::string& path, ByteSpan bytes) {
  const auto file = files.create_file(path);
  file->append(bytes);
  file->close();
}

/// What every rank saw of one call that must fail on all of them alike.
class ErrorsByRank {
 public:
  explicit ErrorsByRank(int world_size) : errors_(static_cast<std::size_t>(world_size)) {}

  /// Runs one rank's call.
  template <typename Call>
  void run(int rank, const Call& call) {
    const auto start = std::chrono::steady_clock::now();
    try {
      call();
    } catch (const CheckpointError& error) {
      errors_[static_cast<std::size_t>(rank)] = error;
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << "rank " << rank;
  }

  /// Expects that all ranks threw the same error, with failures of `failed`, every one of which
  /// has all of `texts` in its message. After the ranks have ended.
  void expect(const std::vector<int>& failed, const std::vector<std::string>& texts = {}) const {
    for (std::size_t rank = 0; rank < errors_.size(); ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      ASSERT_TRUE(errors_[rank]) << "did not throw";
      EXPECT_EQ(errors_[rank]->failures(), errors_[0]->failures());
      EXPECT_STREQ(errors_[rank]->what_without_backtrace(), errors_[0]->what_without_backtrace());
    }
    std::vector<int> ranks;
    for (const RankFailure& failure : error().failures()) {
      ranks.push_back(failure.rank);
      for (const std::string& text : texts) {
        EXPECT_NE(failure.message.find(text), std::string::npos) << "\"" << text << "\" is not in: " << failure.message;
      }
    }
    EXPECT_EQ(ranks, failed) << error().what_without_backtrace();
  }

  const CheckpointError& error() const { return *errors_.at(0); }
  std::string text() const { return errors_.at(0) ? errors_[0]->what_without_backtrace() : "no error"; }
  ErrorKind kind() const { return error().failures().at(0).kind; }

 private:
  std::vector<std::optional<CheckpointError>> errors_;
};

inline std::vector<int> all_of(int world_size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size; ++rank) ranks.push_back(rank);
  return ranks;
}

/// What a call throws in a world of one.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CheckpointError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace dcp::test
