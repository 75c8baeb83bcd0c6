#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "test/support/expect_error.h"
#include "torch_dcp/io/file_system.h"

/// What every FileSystem must do. A test includes this file once and instantiates
/// `FileSystemSuite` with the implementations it has:
///
///     INSTANTIATE_TEST_SUITE_P(All, FileSystemSuite, ::testing::Values(...), case_name);
namespace dcp::test {

struct FileSystemCase {
  std::string name;
  std::function<std::shared_ptr<FileSystem>()> make_file_system;
  /// Makes a new, empty directory and returns its path.
  std::function<std::string(FileSystem&)> make_root;
};

inline std::string case_name(const ::testing::TestParamInfo<FileSystemCase>& info) { return info.param.name; }

class FileSystemSuite : public ::testing::TestWithParam<FileSystemCase> {
 protected:
  void SetUp() override {
    files_ = GetParam().make_file_system();
    root_ = GetParam().make_root(*files_);
  }

  // Whoever clears up after tests may not know how to spell every name that is tried here.
  void TearDown() override {
    if (root_.starts_with(::testing::TempDir())) std::filesystem::remove_all(root_);
  }

  FileSystem& files() { return *files_; }
  const std::string& root() const { return root_; }
  std::string path(const std::string& name) const { return join_path(root_, name); }

  void write(const std::string& name, const std::string& text) {
    const auto file = files().create_file(path(name));
    file->append(as_bytes(text));
    file->close();
  }

  std::string read(const std::string& name) {
    return std::string(as_text(read_whole_file(files(), path(name), std::uint64_t{1} << 30)));
  }

 private:
  std::shared_ptr<FileSystem> files_;
  std::string root_;
};

inline Bytes random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; i += 8) {
    const std::uint64_t value = random();
    std::memcpy(bytes.data() + i, &value, std::min<std::size_t>(8, count - i));
  }
  return bytes;
}

/// Runs `call(thread number)` on threads that all start at the same moment.
inline void run_together(int thread_count, const std::function<void(int)>& call) {
  std::barrier start(thread_count);
  std::vector<std::jthread> threads;
  for (int i = 0; i < thread_count; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      EXPECT_NO_THROW(call(i));
    });
  }
}

TEST_P(FileSystemSuite, AWrittenFileReadsBack) {
  const auto file = files().create_file(path("f"));
  EXPECT_EQ(file->size(), 0u);
  file->append(as_bytes("abc"));
  file->append({});
  file->append_all({as_bytes("de"), {}, as_bytes("fgh"), {}});
  file->append_all({});
  EXPECT_EQ(file->size(), 8u);
  file->sync();
  file->append(as_bytes("i"));
  file->close();

  EXPECT_EQ(files().file_type(path("f")), FileType::kFile);
  EXPECT_EQ(files().file_size(path("f")), 9u);
  const auto reader = files().open_file(path("f"));
  EXPECT_EQ(reader->size(), 9u);
  for (std::size_t begin = 0; begin <= 9; ++begin) {
    for (std::size_t end = begin; end <= 9; ++end) {
      Bytes out(end - begin);
      reader->read_at(begin, out);
      EXPECT_EQ(as_text(out), std::string("abcdefghi").substr(begin, end - begin));
    }
  }
}

TEST_P(FileSystemSuite, AnEmptyFileIsThere) {
  files().create_file(path("empty"))->close();
  EXPECT_EQ(files().file_size(path("empty")), 0u);
  EXPECT_EQ(read("empty"), "");
}

TEST_P(FileSystemSuite, LargeAndManyPartsReadBack) {
  const Bytes bytes = random_bytes((std::size_t{21} << 20) + 4567, 1);
  for (const auto& [early_write_back, direct_writes] : {std::pair(true, false), {false, false}, {true, true}}) {
    const auto file = files().create_file(path("large"));
    file->set_early_write_back(early_write_back);
    file->set_direct_writes(direct_writes);
    ByteSpan rest(bytes);
    const auto take = [&](std::size_t count) {
      const ByteSpan part = rest.first(count);
      rest = rest.subspan(count);
      return part;
    };
    file->append(take(123));
    file->append(take(std::size_t{9} << 20));
    std::vector<ByteSpan> parts;
    for (std::size_t i = 0; i < 3000; ++i) parts.push_back(take(i % 1500));
    parts.push_back(take(std::size_t{8} << 20));
    parts.push_back(rest);
    file->append_all(parts);
    EXPECT_EQ(file->size(), bytes.size());
    file->sync();
    file->close();
    EXPECT_TRUE(read_whole_file(files(), path("large"), bytes.size()) == bytes);
  }
}

TEST_P(FileSystemSuite, ReadingBeyondTheEndIsCorruptData) {
  write("f", "0123456789");
  const auto file = files().open_file(path("f"));
  Bytes out(4);
  const std::uint64_t largest = ~std::uint64_t{0};
  for (const std::uint64_t offset : {std::uint64_t{7}, std::uint64_t{10}, std::uint64_t{11}, largest - 3, largest}) {
    expect_error(ErrorKind::kCorruptData, path("f"), [&] { file->read_at(offset, out); });
  }
  file->read_at(10, {});
  expect_error(ErrorKind::kCorruptData, path("f"), [&] { file->read_at(11, {}); });
  file->read_at(6, out);
  EXPECT_EQ(as_text(out), "6789");
}

TEST_P(FileSystemSuite, CreatingTruncatesUnlessExclusive) {
  write("f", "a long text");
  write("f", "short");
  EXPECT_EQ(read("f"), "short");
  expect_error(ErrorKind::kAlreadyExists, path("f"), [&] { files().create_file(path("f"), true); });
  EXPECT_EQ(read("f"), "short");
  const auto file = files().create_file(path("new"), true);
  file->append(as_bytes("x"));
  file->close();
  EXPECT_EQ(read("new"), "x");
}

TEST_P(FileSystemSuite, WhatIsMissingIsNotFound) {
  const std::string missing = path("missing");
  EXPECT_EQ(files().file_type(missing), FileType::kNone);
  EXPECT_EQ(files().file_size(missing), std::nullopt);
  expect_error(ErrorKind::kNotFound, missing, [&] { files().open_file(missing); });
  expect_error(ErrorKind::kNotFound, missing, [&] { files().remove_file(missing); });
  expect_error(ErrorKind::kNotFound, missing, [&] { files().list_directory(missing); });
  expect_error(ErrorKind::kNotFound, missing, [&] { files().sync_directory(missing); });
  expect_error(ErrorKind::kNotFound, missing, [&] { files().rename_file(missing, path("other")); });
  expect_error(ErrorKind::kNotFound, missing + "/f", [&] { files().create_file(missing + "/f"); });
  write("f", "x");
  expect_error(ErrorKind::kNotFound, missing + "/f", [&] { files().rename_file(path("f"), missing + "/f"); });
  EXPECT_EQ(read("f"), "x");
}

TEST_P(FileSystemSuite, TheEmptyPathIsNotFound) {
  EXPECT_EQ(files().file_type(""), FileType::kNone);
  expect_error(ErrorKind::kNotFound, "\"\"", [&] { files().open_file(""); });
  expect_error(ErrorKind::kNotFound, "\"\"", [&] { files().create_file(""); });
  expect_error(ErrorKind::kNotFound, "\"\"", [&] { files().create_directories(""); });
}

TEST_P(FileSystemSuite, APathWithAZeroCharacterIsRefused) {
  write("f", "x");
  const std::string odd = path(std::string("f\0g", 3));
  expect_error(ErrorKind::kIo, "zero character", [&] { files().create_file(odd); });
  expect_error(ErrorKind::kIo, "zero character", [&] { files().open_file(odd); });
  expect_error(ErrorKind::kIo, "zero character", [&] { files().file_type(odd); });
  expect_error(ErrorKind::kIo, "zero character", [&] { files().create_directories(odd); });
  expect_error(ErrorKind::kIo, "zero character", [&] { files().rename_file(path("f"), odd); });
  EXPECT_EQ(files().list_directory(root()), std::vector<std::string>{"f"});
}

TEST_P(FileSystemSuite, APathBelowAFileFailsAndIsNamed) {
  write("plain", "x");
  const std::string below = path("plain/sub");
  EXPECT_EQ(files().file_type(below), FileType::kNone);
  EXPECT_EQ(files().file_size(below), std::nullopt);
  expect_error(ErrorKind::kIo, below, [&] { files().create_file(below); });
  expect_error(ErrorKind::kIo, below, [&] { files().open_file(below); });
  expect_error(ErrorKind::kIo, below, [&] { files().list_directory(below); });
  expect_error(ErrorKind::kIo, below, [&] { files().remove_file(below); });
  expect_error(ErrorKind::kIo, below, [&] { files().sync_directory(below); });
  expect_error(ErrorKind::kIo, path("plain"), [&] { files().list_directory(path("plain")); });
  expect_error(ErrorKind::kIo, path("plain"), [&] { files().sync_directory(path("plain")); });
  expect_error(ErrorKind::kIo, below, [&] { files().create_directories(below); });
  expect_error(ErrorKind::kIo, path("plain") + "\"", [&] { files().create_directories(below + "/deep"); });
  expect_error(ErrorKind::kAlreadyExists, path("plain"), [&] { files().create_directories(path("plain")); });
  EXPECT_EQ(read("plain"), "x");
}

TEST_P(FileSystemSuite, ADirectoryIsNoFile) {
  files().create_directories(path("d"));
  write("f", "x");
  EXPECT_EQ(files().file_type(path("d")), FileType::kDirectory);
  EXPECT_EQ(files().file_size(path("d")), std::nullopt);
  expect_error(ErrorKind::kIo, path("d"), [&] { files().open_file(path("d")); });
  expect_error(ErrorKind::kIo, path("d"), [&] { files().create_file(path("d")); });
  expect_error(ErrorKind::kAlreadyExists, path("d"), [&] { files().create_file(path("d"), true); });
  expect_error(ErrorKind::kIo, path("d"), [&] { files().remove_file(path("d")); });
  expect_error(ErrorKind::kIo, path("d"), [&] { files().rename_file(path("d"), path("e")); });
  expect_error(ErrorKind::kIo, path("d"), [&] { files().rename_file(path("f"), path("d")); });
  EXPECT_EQ(files().list_directory(root()), (std::vector<std::string>{"d", "f"}));
}

TEST_P(FileSystemSuite, CreatingDirectoriesTellsWhichChanged) {
  using Paths = std::vector<std::string>;
  const Paths changed = files().create_directories(path("a/b/c"));
  EXPECT_EQ(changed, (Paths{root(), path("a"), path("a/b")}));
  for (const std::string& directory : changed) files().sync_directory(directory);
  EXPECT_EQ(files().file_type(path("a/b/c")), FileType::kDirectory);
  EXPECT_EQ(files().create_directories(path("a/b/c")), Paths{});
  EXPECT_EQ(files().create_directories(path("a/b/d/")), Paths{path("a/b")});
  EXPECT_EQ(files().list_directory(path("a/b")), (Paths{"c", "d"}));
  EXPECT_EQ(files().create_directories(root()), Paths{});
}

TEST_P(FileSystemSuite, ListsNamesInOrder) {
  EXPECT_EQ(files().list_directory(root()), std::vector<std::string>{});
  const std::vector<std::string> names = {"__0_0.distcp", ".metadata", "Z", "a b", "a\nb", "gr\xC3\xBC\xC3\x9F", "~"};
  for (const std::string& name : names) write(name, name);
  files().create_directories(path("dir/below"));
  std::vector<std::string> expected = names;
  expected.push_back("dir");
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(files().list_directory(root()), expected);
  EXPECT_EQ(files().list_directory(root() + "/"), expected);
  for (const std::string& name : names) EXPECT_EQ(read(name), name);
}

TEST_P(FileSystemSuite, RenamingReplaces) {
  write("from", "new");
  write("to", "old");
  files().rename_file(path("from"), path("to"));
  EXPECT_EQ(read("to"), "new");
  EXPECT_EQ(files().file_type(path("from")), FileType::kNone);
  files().rename_file(path("to"), path("to"));
  EXPECT_EQ(read("to"), "new");
  files().create_directories(path("d"));
  files().rename_file(path("to"), path("d/there"));
  EXPECT_EQ(read("d/there"), "new");
  EXPECT_EQ(files().list_directory(root()), std::vector<std::string>{"d"});
}

TEST_P(FileSystemSuite, RemovingAFileFreesItsName) {
  write("f", "x");
  files().remove_file(path("f"));
  EXPECT_EQ(files().file_type(path("f")), FileType::kNone);
  files().create_directories(path("f"));
  EXPECT_EQ(files().file_type(path("f")), FileType::kDirectory);
}

TEST_P(FileSystemSuite, AnOpenReaderKeepsWhatItOpened) {
  write("removed", "first");
  write("replaced", "second");
  write("other", "third");
  const auto removed = files().open_file(path("removed"));
  const auto replaced = files().open_file(path("replaced"));
  files().remove_file(path("removed"));
  files().rename_file(path("other"), path("replaced"));
  Bytes out(5);
  removed->read_at(0, out);
  EXPECT_EQ(as_text(out), "first");
  out.resize(6);
  replaced->read_at(0, out);
  EXPECT_EQ(as_text(out), "second");
  EXPECT_EQ(read("replaced"), "third");
}

TEST_P(FileSystemSuite, AnOpenReaderKeepsItsSizeWhileTheFileGrows) {
  const auto writer = files().create_file(path("f"));
  writer->append(as_bytes("abc"));
  const auto reader = files().open_file(path("f"));
  writer->append(random_bytes(100000, 2));
  EXPECT_EQ(reader->size(), 3u);
  Bytes out(3);
  reader->read_at(0, out);
  EXPECT_EQ(as_text(out), "abc");
  out.resize(4);
  expect_error(ErrorKind::kCorruptData, path("f"), [&] { reader->read_at(0, out); });
  writer->close();
  EXPECT_EQ(files().file_size(path("f")), 100003u);
}

TEST_P(FileSystemSuite, AClosedFileSaysSo) {
  const auto file = files().create_file(path("f"));
  file->append(as_bytes("abc"));
  file->close();
  expect_error(ErrorKind::kState, path("f"), [&] { file->append(as_bytes("d")); });
  expect_error(ErrorKind::kState, path("f"), [&] { file->append_all({as_bytes("d")}); });
  expect_error(ErrorKind::kState, path("f"), [&] { file->sync(); });
  expect_error(ErrorKind::kState, path("f"), [&] { file->close(); });
  EXPECT_EQ(file->size(), 3u);
  EXPECT_EQ(read("f"), "abc");
}

TEST_P(FileSystemSuite, AFileDroppedWithoutCloseDoesNoHarm) {
  files().create_file(path("dropped"))->append(as_bytes("abc"));
  write("dropped", "again");
  EXPECT_EQ(read("dropped"), "again");
}

TEST_P(FileSystemSuite, AWriterGoesOnAfterItsNameIsGone) {
  const auto file = files().create_file(path("f"));
  files().remove_file(path("f"));
  file->append(as_bytes("abc"));
  file->sync();
  file->close();
  EXPECT_EQ(files().file_type(path("f")), FileType::kNone);
}

TEST_P(FileSystemSuite, ManyThreadsCreateTheSameDirectories) {
  constexpr int kThreads = 8;
  for (int round = 0; round < 50; ++round) {
    const std::string deep = path(c10::str("round", round, "/p/q/r"));
    std::atomic<std::size_t> made{0};
    run_together(kThreads, [&](int thread) {
      made += files().create_directories(deep).size();
      files().create_file(join_path(deep, std::to_string(thread)), true)->close();
    });
    // Every new name was made by one of them, so that somebody syncs its directory.
    EXPECT_EQ(made, 4u);
    EXPECT_EQ(files().list_directory(deep).size(), std::size_t{kThreads});
  }
}

TEST_P(FileSystemSuite, OneThreadWinsAnExclusiveCreate) {
  for (int round = 0; round < 20; ++round) {
    const std::string name = path(c10::str("f", round));
    std::atomic<int> winners{0};
    run_together(8, [&](int) {
      try {
        files().create_file(name, true)->close();
        ++winners;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kAlreadyExists);
      }
    });
    EXPECT_EQ(winners, 1);
  }
}

TEST_P(FileSystemSuite, ManyThreadsReadOneFile) {
  const Bytes bytes = random_bytes(1 << 20, 3);
  const auto writer = files().create_file(path("f"));
  for (std::size_t i = 0; i < bytes.size(); i += 1 << 16) writer->append(ByteSpan(bytes).subspan(i, 1 << 16));
  writer->close();
  const auto reader = files().open_file(path("f"));
  run_together(8, [&](int thread) {
    std::mt19937_64 random(static_cast<std::uint64_t>(thread));
    for (int i = 0; i < 200; ++i) {
      const std::size_t begin = random() % bytes.size();
      Bytes out(random() % std::min<std::size_t>(bytes.size() - begin, 100000));
      reader->read_at(begin, out);
      EXPECT_TRUE(std::equal(out.begin(), out.end(), bytes.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
  });
}

TEST_P(FileSystemSuite, ThreadsReadWhileOthersWriteAndRename) {
  write("current", std::string(5000, '0'));
  run_together(6, [&](int thread) {
    for (int i = 0; i < 50; ++i) {
      if (thread < 3) {
        const std::string name = c10::str("next", thread);
        write(name, std::string(static_cast<std::size_t>(5000 + thread), static_cast<char>('0' + thread)));
        files().rename_file(path(name), path("current"));
      } else {
        const std::string text = read("current");
        EXPECT_GE(text.size(), 5000u);
        EXPECT_EQ(text, std::string(text.size(), text[0]));
      }
    }
  });
  EXPECT_EQ(files().list_directory(root()), std::vector<std::string>{"current"});
}

}  // namespace dcp::test
