#include "torch_dcp/io/memory_file_system.h"

#include <gtest/gtest.h>

namespace dcp {
namespace {

void write(FileSystem& files, const std::string& path, const std::string& text) {
  const auto file = files.create_file(path);
  file->append(as_bytes(text));
  file->close();
}

TEST(MemoryFileSystemTest, EveryWayToWriteAPathLeadsToOneFile) {
  const auto files = make_memory_file_system();
  files->create_directories("/a/b");
  write(*files, "a/b/f", "x");
  for (const char* path : {"/a/b/f", "./a/b/f", "a//b/./f", "a/b/../b/f", "../a/b/f"}) {
    EXPECT_EQ(as_text(read_whole_file(*files, path, 1)), "x") << path;
  }
  for (const char* path : {"/", ".", "a/.."}) {
    EXPECT_EQ(files->list_directory(path), std::vector<std::string>{"a"}) << path;
  }
}

TEST(MemoryFileSystemTest, EachIsAWorldOfItsOwn) {
  const auto first = make_memory_file_system();
  const auto second = make_memory_file_system();
  write(*first, "f", "x");
  EXPECT_EQ(first->file_type("f"), FileType::kFile);
  EXPECT_EQ(second->file_type("f"), FileType::kNone);
}

TEST(MemoryFileSystemTest, OpenFilesOutliveIt) {
  auto files = make_memory_file_system();
  write(*files, "f", "abc");
  const auto reader = files->open_file("f");
  const auto writer = files->create_file("g");
  files.reset();
  writer->append(as_bytes("d"));
  EXPECT_EQ(writer->size(), 1u);
  Bytes out(3);
  reader->read_at(0, out);
  EXPECT_EQ(as_text(out), "abc");
}

TEST(MemoryFileSystemTest, ManySmallAppendsReadBack) {
  const auto files = make_memory_file_system();
  const auto writer = files->create_file("f");
  std::string expected;
  for (int i = 0; i < 20000; ++i) {
    const std::string text = std::to_string(i) + ",";
    writer->append(as_bytes(text));
    expected += text;
  }
  writer->close();
  EXPECT_TRUE(as_text(read_whole_file(*files, "f", expected.size())) == expected);
  // Reads that begin or end at the places where the memory may change.
  const auto reader = files->open_file("f");
  for (const std::size_t middle : {4096u, 8192u, 16384u, 32768u, 65536u}) {
    for (std::size_t begin = middle - 2; begin <= middle + 1; ++begin) {
      Bytes out(3);
      reader->read_at(begin, out);
      EXPECT_EQ(as_text(out), expected.substr(begin, 3));
    }
  }
}

}  // namespace
}  // namespace dcp
