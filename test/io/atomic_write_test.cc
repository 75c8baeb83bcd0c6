#include "torch_dcp/io/atomic_write.h"

#include <gtest/gtest.h>

#include <optional>

#include "test/support/crashing_file_system.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/io/memory_file_system.h"

namespace dcp {
namespace {

using test::CrashPolicy;
using test::expect_error;
using test::FaultInjectingFileSystem;
using test::FileOp;
using Lines = std::vector<std::string>;

constexpr const char* kPath = "dir/meta";

std::optional<std::string> content(FileSystem& files, const std::string& path = kPath) {
  if (files.file_type(path) == FileType::kNone) return std::nullopt;
  return std::string(as_text(read_whole_file(files, path, 1000)));
}

std::shared_ptr<FaultInjectingFileSystem> make_files() {
  auto base = make_memory_file_system();
  base->create_directories("dir");
  return std::make_shared<FaultInjectingFileSystem>(base);
}

TEST(AtomicWriteTest, KeepsTheOrderThatACrashNeeds) {
  const auto files = make_files();
  atomic_write(*files, "dir", "meta", as_bytes("12345"));
  EXPECT_EQ(files->changes(), (Lines{"create dir/meta.tmp", "append dir/meta.tmp 5", "sync dir/meta.tmp",
                                     "close dir/meta.tmp", "rename dir/meta.tmp dir/meta", "sync_directory dir"}));
  EXPECT_EQ(content(*files), "12345");
  EXPECT_EQ(files->list_directory("dir"), Lines{"meta"});
}

TEST(AtomicWriteTest, WithoutSyncReplacesAllTheSame) {
  const auto files = make_files();
  atomic_write(*files, "dir", "meta", as_bytes("old"), false);
  files->clear_trace();
  atomic_write(*files, "dir/", "meta", as_bytes("new"), false);
  EXPECT_EQ(files->changes(), (Lines{"create dir/meta.tmp", "append dir/meta.tmp 3", "close dir/meta.tmp",
                                     "rename dir/meta.tmp dir/meta"}));
  EXPECT_EQ(content(*files), "new");
}

TEST(AtomicWriteTest, WritesInTheCurrentDirectory) {
  const auto files = make_files();
  atomic_write(*files, "", "meta", as_bytes("x"));
  EXPECT_EQ(content(*files, "meta"), "x");
  EXPECT_EQ(files->changes().back(), "sync_directory .");
}

TEST(AtomicWriteTest, TakesOverATemporaryFileThatACrashLeft) {
  const auto files = make_files();
  files->create_file("dir/meta.tmp")->append(as_bytes("a longer text of before"));
  atomic_write(*files, "dir", "meta", as_bytes("new"));
  EXPECT_EQ(content(*files), "new");
  EXPECT_EQ(files->list_directory("dir"), Lines{"meta"});
}

TEST(AtomicWriteTest, AFailureBeforeTheRenameLeavesTheOldFileAlone) {
  for (const FileOp op : {FileOp::kCreate, FileOp::kAppend, FileOp::kSync, FileOp::kClose, FileOp::kRename}) {
    const auto files = make_files();
    atomic_write(*files, "dir", "meta", as_bytes("old"));
    files->fail({.op = op, .path_contains = "meta.tmp"});
    expect_error(ErrorKind::kIo, "dir/meta.tmp\": No space left on device",
                 [&] { atomic_write(*files, "dir", "meta", as_bytes("new")); });
    EXPECT_EQ(content(*files), "old") << file_op_name(op);
    EXPECT_EQ(files->list_directory("dir"), Lines{"meta"}) << file_op_name(op);
  }
}

TEST(AtomicWriteTest, TheFirstErrorIsReportedWhenTheRemovalFailsToo) {
  const auto files = make_files();
  files->fail({.op = FileOp::kSync, .message = "the first"});
  files->fail({.op = FileOp::kRemove, .message = "the second"});
  expect_error(ErrorKind::kIo, "the first", [&] { atomic_write(*files, "dir", "meta", as_bytes("new")); });
  EXPECT_EQ(content(*files), std::nullopt);
}

TEST(AtomicWriteTest, AFailedDirectorySyncIsReportedAndTheNewFileStays) {
  const auto files = make_files();
  files->fail({.op = FileOp::kSyncDirectory, .message = "Input/output error"});
  expect_error(ErrorKind::kIo, "\"dir\": Input/output error",
               [&] { atomic_write(*files, "dir", "meta", as_bytes("new")); });
  EXPECT_EQ(content(*files), "new");
}

TEST(AtomicWriteTest, AMissingDirectoryIsNotFound) {
  const auto files = make_files();
  expect_error(ErrorKind::kNotFound, "none/meta.tmp", [&] { atomic_write(*files, "none", "meta", as_bytes("new")); });
}

/// The outcomes of a power cut after `change_count` changes of an atomic write; false once it runs to its end.
bool power_cut_keeps_old_or_new(std::uint64_t change_count) {
  const auto disk = test::make_crashing_file_system();
  for (const std::string& directory : disk->create_directories("dir")) disk->sync_directory(directory);
  atomic_write(*disk, "dir", "meta", as_bytes("the old one"));
  FaultInjectingFileSystem files(disk);
  files.stop_after_changes(change_count);
  try {
    atomic_write(files, "dir", "meta", as_bytes("the new one, which is longer"));
  } catch (const Error& error) {
    EXPECT_TRUE(files.is_stopped()) << error.what_without_backtrace();
  }
  const auto check = [&](FileSystem& found, const std::string& policy) {
    const auto text = content(found);
    const bool is_new = text == "the new one, which is longer";
    EXPECT_TRUE(is_new || text == "the old one") << policy << " after " << change_count << ": " << *text;
    EXPECT_TRUE(is_new || files.is_stopped()) << policy << ": the write returned, and its file is lost";
  };
  check(*disk->crash(CrashPolicy::kLoseUnsynced), "lose");
  check(*disk->crash(CrashPolicy::kKeepAll), "keep");
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    check(*disk->crash(CrashPolicy::kTornWrites, seed), c10::str("torn ", seed));
  }
  return files.is_stopped();
}

TEST(AtomicWriteTest, APowerCutAtAnyMomentLeavesTheOldOrTheNewFile) {
  std::uint64_t change_count = 0;
  while (power_cut_keeps_old_or_new(change_count)) ++change_count;
  EXPECT_EQ(change_count, 6u);
}

}  // namespace
}  // namespace dcp
