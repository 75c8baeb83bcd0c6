#include "test/support/fault_injecting_file_system.h"

#include <gtest/gtest.h>

#include "test/support/expect_error.h"
#include "torch_dcp/io/memory_file_system.h"

namespace dcp::test {
namespace {

using Lines = std::vector<std::string>;

class FaultInjectingFileSystemTest : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    const auto file = files_.create_file(path);
    file->append(as_bytes(text));
    file->sync();
    file->close();
  }

  std::string content(const std::string& path) { return std::string(as_text(read_whole_file(*base_, path, 1000))); }

  const std::shared_ptr<FileSystem> base_ = make_memory_file_system();
  FaultInjectingFileSystem files_{base_};
};

TEST_F(FaultInjectingFileSystemTest, RecordsAllOperationsInOrder) {
  files_.create_directories("d");
  const auto file = files_.create_file("d/f");
  file->append(as_bytes("abc"));
  file->append_all({as_bytes("de"), as_bytes("f")});
  file->sync();
  file->close();
  files_.rename_file("d/f", "d/g");
  files_.sync_directory("d");
  Bytes out(4);
  files_.open_file("d/g")->read_at(2, out);
  files_.file_size("d/g");
  files_.file_type("d/g");
  files_.list_directory("d");
  files_.remove_file("d/g");

  Lines lines;
  for (const FileEvent& event : files_.trace()) lines.push_back(to_string(event));
  EXPECT_EQ(lines, (Lines{"create_directories d", "create d/f", "append d/f 3", "append d/f 3", "sync d/f", "close d/f",
                          "rename d/f d/g", "sync_directory d", "open d/g", "read d/g 4", "stat d/g", "stat d/g",
                          "list d", "remove d/g"}));
  EXPECT_EQ(files_.trace()[3].offset, 3u);
  EXPECT_EQ(files_.trace()[9].offset, 2u);
  EXPECT_EQ(files_.changes().size(), 9u);
  files_.clear_trace();
  EXPECT_TRUE(files_.trace().empty());
}

TEST_F(FaultInjectingFileSystemTest, FailsTheNthOperationOfAKindOnce) {
  files_.fail({.op = FileOp::kCreate, .nth = 2});
  write("a", "1");
  expect_error(ErrorKind::kIo, "cannot create \"b\": No space left on device", [&] { files_.create_file("b"); });
  write("b", "2");
  EXPECT_EQ(content("b"), "2");
  EXPECT_EQ(files_.changes()[4], "refused create b");
}

TEST_F(FaultInjectingFileSystemTest, FailsByPathForEver) {
  files_.fail({.path_contains = "bad", .is_lasting = true, .kind = ErrorKind::kNotFound, .message = "gone"});
  write("good", "1");
  for (int i = 0; i < 3; ++i) {
    expect_error(ErrorKind::kNotFound, "gone", [&] { files_.file_type("bad"); });
    expect_error(ErrorKind::kNotFound, "gone", [&] { files_.rename_file("good", "bad"); });
  }
  EXPECT_EQ(base_->list_directory("/"), Lines{"good"});
  files_.clear_faults();
  EXPECT_EQ(files_.file_type("bad"), FileType::kNone);
}

TEST_F(FaultInjectingFileSystemTest, EveryKindOfOperationCanFail) {
  write("f", "abc");
  base_->create_directories("d");
  const auto writer = files_.create_file("w");
  const auto reader = files_.open_file("f");
  Bytes out(1);
  const std::vector<std::pair<FileOp, std::function<void()>>> calls = {
      {FileOp::kCreate, [&] { files_.create_file("x"); }},
      {FileOp::kOpen, [&] { files_.open_file("f"); }},
      {FileOp::kRead, [&] { reader->read_at(0, out); }},
      {FileOp::kStat, [&] { files_.file_size("f"); }},
      {FileOp::kList, [&] { files_.list_directory("d"); }},
      {FileOp::kCreateDirectories, [&] { files_.create_directories("e"); }},
      {FileOp::kRemove, [&] { files_.remove_file("f"); }},
      {FileOp::kRename, [&] { files_.rename_file("f", "g"); }},
      {FileOp::kSyncDirectory, [&] { files_.sync_directory("d"); }},
      {FileOp::kAppend, [&] { files_.create_file("y")->append(as_bytes("z")); }},
      {FileOp::kSync, [&] { files_.create_file("y")->sync(); }},
      {FileOp::kClose, [&] { files_.create_file("y")->close(); }},
  };
  for (const auto& [op, call] : calls) {
    files_.fail({.op = op, .message = "refused"});
    expect_error(ErrorKind::kIo, c10::str("cannot ", file_op_name(op)), call);
    files_.clear_faults();
    EXPECT_NO_THROW(call()) << file_op_name(op);
    if (op == FileOp::kRemove) write("f", "abc");
  }
}

TEST_F(FaultInjectingFileSystemTest, ARefusedAppendWritesHalfAndSpoilsTheFile) {
  files_.fail({.op = FileOp::kAppend, .nth = 2});
  const auto file = files_.create_file("f");
  file->append(as_bytes("abc"));
  expect_error(ErrorKind::kIo, "No space", [&] { file->append_all({as_bytes("d"), as_bytes("efghi")}); });
  expect_error(ErrorKind::kIo, "an earlier call failed", [&] { file->append(as_bytes("x")); });
  expect_error(ErrorKind::kIo, "an earlier call failed", [&] { file->sync(); });
  expect_error(ErrorKind::kIo, "an earlier call failed", [&] { file->close(); });
  EXPECT_EQ(content("f"), "abcdef");
}

TEST_F(FaultInjectingFileSystemTest, RefusesAfterSoManyBytesOfAllFiles) {
  files_.fail({.path_contains = "data", .is_lasting = true, .after_bytes = 10});
  write("other", std::string(100, 'o'));
  write("data0", "1234567");
  const auto file = files_.create_file("data1");
  file->append(as_bytes("89"));
  expect_error(ErrorKind::kIo, "data1", [&] { file->append(as_bytes("0ab")); });
  EXPECT_EQ(content("data1"), "890");
  const auto next = files_.create_file("data2");
  expect_error(ErrorKind::kIo, "data2", [&] { next->append(as_bytes("c")); });
  EXPECT_EQ(content("data2"), "");
}

TEST_F(FaultInjectingFileSystemTest, NothingHappensAfterTheStop) {
  std::uint64_t change_count = 0;
  for (;; ++change_count) {
    files_.stop_after_changes(change_count);
    try {
      write("f", "abcd");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
    }
    if (!files_.is_stopped()) break;
    expect_error(ErrorKind::kIo, "process stopped", [&] { files_.remove_file("f"); });
    expect_error(ErrorKind::kIo, "process stopped", [&] { files_.file_type("f"); });
    if (change_count == 1) {
      EXPECT_EQ(content("f"), "ab");
    }
  }
  EXPECT_EQ(change_count, 4u);
  EXPECT_EQ(content("f"), "abcd");
}

TEST_F(FaultInjectingFileSystemTest, AHookMayThrowWhatItLikes) {
  files_.set_hook([](const FileEvent& event) {
    if (event.op == FileOp::kSync) throw 42;
  });
  EXPECT_THROW(write("f", "abc"), int);
  EXPECT_EQ(files_.changes(), (Lines{"create f", "append f 3", "refused sync f"}));
}

}  // namespace
}  // namespace dcp::test
