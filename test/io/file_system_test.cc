#include "torch_dcp/io/file_system.h"

#include <gtest/gtest.h>

#include "test/support/expect_error.h"
#include "torch_dcp/io/memory_file_system.h"

namespace dcp {
namespace {

using test::expect_error;

TEST(PathTest, JoinsWithOneSlash) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "/b"), "a/b");
  EXPECT_EQ(join_path("a", "//b/c"), "a/b/c");
  EXPECT_EQ(join_path("/", "b"), "/b");
  EXPECT_EQ(join_path("", "b"), "b");
  EXPECT_EQ(join_path("", "/b"), "b");
  EXPECT_EQ(join_path("a", ""), "a");
  EXPECT_EQ(join_path("", ""), "");
}

TEST(PathTest, TheParentHoldsTheLastName) {
  EXPECT_EQ(parent_path("/a/b"), "/a");
  EXPECT_EQ(parent_path("/a/b//"), "/a");
  EXPECT_EQ(parent_path("a//b"), "a");
  EXPECT_EQ(parent_path("/a"), "/");
  EXPECT_EQ(parent_path("//a/"), "/");
  EXPECT_EQ(parent_path("/"), "/");
  EXPECT_EQ(parent_path("a"), ".");
  EXPECT_EQ(parent_path("a/"), ".");
  EXPECT_EQ(parent_path("."), ".");
  EXPECT_EQ(parent_path(""), ".");
}

TEST(ReadWholeFileTest, RefusesWhatIsTooLarge) {
  const auto files = make_memory_file_system();
  const auto file = files->create_file("f");
  file->append(as_bytes("12345"));
  file->close();
  EXPECT_EQ(as_text(read_whole_file(*files, "f", 5)), "12345");
  expect_error(ErrorKind::kCorruptData, "\"f\" has 5 bytes", [&] { read_whole_file(*files, "f", 4); });
  expect_error(ErrorKind::kNotFound, "\"g\"", [&] { read_whole_file(*files, "g", 4); });
}

TEST(FileSystemWrapperTest, NeedsAFileSystem) {
  expect_error(ErrorKind::kInvalidArgument, "FileSystemWrapper", [] { FileSystemWrapper wrapper(nullptr); });
}

/// A file of an implementation that knows only the calls that it must.
class ListOfAppends final : public WritableFile {
 public:
  void append(ByteSpan bytes) override { appended.emplace_back(as_text(bytes)); }
  std::uint64_t size() const override { return appended.size(); }
  void sync() override {}
  void close() override {}

  std::vector<std::string> appended;
};

TEST(WritableFileTest, AppendsPartsOneByOneByDefault) {
  ListOfAppends file;
  file.append_all({as_bytes("ab"), as_bytes("c")});
  file.set_early_write_back(false);
  EXPECT_EQ(file.appended, (std::vector<std::string>{"ab", "c"}));
}

}  // namespace
}  // namespace dcp
