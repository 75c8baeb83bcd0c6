#include "test/support/crashing_file_system.h"

#include <gtest/gtest.h>

#include <set>

namespace dcp::test {
namespace {

void write(FileSystem& files, const std::string& path, const std::string& text, bool sync) {
  const auto file = files.create_file(path);
  file->append(as_bytes(text));
  if (sync) file->sync();
  file->close();
}

/// The file's text, or "-" if there is none.
std::string content(FileSystem& files, const std::string& path) {
  if (files.file_type(path) == FileType::kNone) return "-";
  return std::string(as_text(read_whole_file(files, path, 1000)));
}

std::string lost(const CrashingFileSystem& files, const std::string& path) {
  return content(*files.crash(CrashPolicy::kLoseUnsynced), path);
}

std::string kept(const CrashingFileSystem& files, const std::string& path) {
  return content(*files.crash(CrashPolicy::kKeepAll), path);
}

/// What many seeds leave of the files at `paths`, joined with "|".
std::set<std::string> torn(const CrashingFileSystem& files, const std::vector<std::string>& paths) {
  std::set<std::string> outcomes;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const auto found = files.crash(CrashPolicy::kTornWrites, seed);
    std::string outcome;
    for (const std::string& path : paths) outcome += (outcome.empty() ? "" : "|") + content(*found, path);
    outcomes.insert(outcome);
  }
  return outcomes;
}

TEST(CrashingFileSystemTest, ASyncedFileNeedsItsNameToo) {
  const auto files = make_crashing_file_system();
  write(*files, "f", "abc", true);
  EXPECT_EQ(lost(*files, "f"), "-");
  EXPECT_EQ(kept(*files, "f"), "abc");
  files->sync_directory("/");
  EXPECT_EQ(lost(*files, "f"), "abc");
}

TEST(CrashingFileSystemTest, ANameDoesNotMakeBytesLast) {
  const auto files = make_crashing_file_system();
  write(*files, "f", "abc", false);
  files->sync_directory("/");
  EXPECT_EQ(lost(*files, "f"), "");
  EXPECT_EQ(kept(*files, "f"), "abc");
}

TEST(CrashingFileSystemTest, BytesAfterTheLastSyncMayBeLost) {
  const auto files = make_crashing_file_system();
  const auto file = files->create_file("f");
  files->sync_directory("/");
  file->append(as_bytes("abc"));
  file->sync();
  file->append(as_bytes("def"));
  EXPECT_EQ(lost(*files, "f"), "abc");
  EXPECT_EQ(kept(*files, "f"), "abcdef");
  for (const std::string& outcome : torn(*files, {"f"})) EXPECT_EQ(outcome.substr(0, 3), "abc");
  EXPECT_GT(torn(*files, {"f"}).size(), 4u);
}

TEST(CrashingFileSystemTest, ATruncationThatIsNotSyncedMayBeUndone) {
  const auto files = make_crashing_file_system();
  write(*files, "f", "the old text", true);
  files->sync_directory("/");
  write(*files, "f", "new", false);
  EXPECT_EQ(lost(*files, "f"), "the old text");
  EXPECT_EQ(kept(*files, "f"), "new");
  const auto outcomes = torn(*files, {"f"});
  for (const char* outcome : {"the old text", "new", ""}) EXPECT_TRUE(outcomes.contains(outcome)) << outcome;
}

TEST(CrashingFileSystemTest, ADirectoryNeedsItsParentsSynced) {
  const auto files = make_crashing_file_system();
  const auto changed = files->create_directories("a/b");
  write(*files, "a/b/f", "abc", true);
  files->sync_directory("a/b");
  EXPECT_EQ(lost(*files, "a/b/f"), "-");
  for (const std::string& directory : changed) files->sync_directory(directory);
  EXPECT_EQ(lost(*files, "a/b/f"), "abc");
}

TEST(CrashingFileSystemTest, ARenameIsDoneOrNot) {
  const auto files = make_crashing_file_system();
  write(*files, "to", "old", true);
  write(*files, "from", "new", true);
  files->sync_directory("/");
  files->rename_file("from", "to");
  EXPECT_EQ(torn(*files, {"from", "to"}), (std::set<std::string>{"new|old", "-|new"}));
  files->sync_directory("/");
  EXPECT_EQ(torn(*files, {"from", "to"}), std::set<std::string>{"-|new"});
}

TEST(CrashingFileSystemTest, ARenameBetweenDirectoriesNeverDoublesAFile) {
  const auto files = make_crashing_file_system();
  for (const char* directory : {"a", "b"}) files->create_directories(directory);
  write(*files, "a/f", "x", true);
  for (const char* directory : {"/", "a", "b"}) files->sync_directory(directory);
  files->rename_file("a/f", "b/f");
  files->rename_file("b/f", "b/g");
  EXPECT_EQ(torn(*files, {"a/f", "b/f", "b/g"}), (std::set<std::string>{"x|-|-", "-|x|-", "-|-|x"}));
}

TEST(CrashingFileSystemTest, SyncingTheLastOfThreeDirectoriesMovesTheFile) {
  const auto files = make_crashing_file_system();
  for (const char* directory : {"a", "b", "c"}) files->create_directories(directory);
  write(*files, "a/f", "x", true);
  for (const char* directory : {"/", "a"}) files->sync_directory(directory);
  files->rename_file("a/f", "b/f");
  files->rename_file("b/f", "c/f");
  files->sync_directory("c");
  EXPECT_EQ(torn(*files, {"a/f", "b/f", "c/f"}), std::set<std::string>{"-|-|x"});
}

TEST(CrashingFileSystemTest, UnsyncedNamesComeAndGoOnTheirOwn) {
  const auto files = make_crashing_file_system();
  write(*files, "old", "o", true);
  files->sync_directory("/");
  files->remove_file("old");
  write(*files, "new", "n", true);
  EXPECT_EQ(torn(*files, {"old", "new"}), (std::set<std::string>{"o|-", "o|n", "-|-", "-|n"}));
}

TEST(CrashingFileSystemTest, ASeedAlwaysGivesTheSameOutcome) {
  const auto files = make_crashing_file_system();
  write(*files, "f", std::string(500, 'f'), false);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(content(*files->crash(CrashPolicy::kTornWrites, seed), "f"),
              content(*files->crash(CrashPolicy::kTornWrites, seed), "f"));
  }
}

TEST(CrashingFileSystemTest, ACrashLeavesTwoWorlds) {
  const auto files = make_crashing_file_system();
  write(*files, "f", "abc", false);
  const auto after = files->crash(CrashPolicy::kKeepAll);
  write(*files, "f", "before", false);
  EXPECT_EQ(content(*after, "f"), "abc");
  EXPECT_EQ(lost(*after, "f"), "abc");
}

}  // namespace
}  // namespace dcp::test
