#include "torch_dcp/io/local_file_system.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "test/support/expect_error.h"

namespace dcp {
namespace {

using test::expect_error;

class LocalFileSystemTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = join_path(::testing::TempDir(), "localXXXXXX");
    ASSERT_NE(::mkdtemp(root_.data()), nullptr);
  }

  std::string path(const std::string& name) const { return join_path(root_, name); }

  void write(const std::string& name, ByteSpan bytes) {
    const auto file = files_->create_file(path(name));
    file->append(bytes);
    file->close();
  }

  const std::shared_ptr<FileSystem> files_ = local_file_system();
  std::string root_;
};

Bytes pattern(std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(i * 31 + i / 251);
  return bytes;
}

/// The numbers of the open descriptors that lead to `path`.
std::vector<int> descriptors_of(const std::string& path) {
  std::vector<int> numbers;
  for (const std::string& name : local_file_system()->list_directory("/proc/self/fd")) {
    std::string target(path.size() + 1, '\0');
    const auto length = ::readlink(("/proc/self/fd/" + name).c_str(), target.data(), target.size());
    if (length >= 0 && target.substr(0, static_cast<std::size_t>(length)) == path) numbers.push_back(std::stoi(name));
  }
  return numbers;
}

TEST_F(LocalFileSystemTest, DescriptorsAreNotInheritedAndNotLeaked) {
  write("f", as_bytes("x"));
  {
    const auto reader = files_->open_file(path("f"));
    const auto writer = files_->create_file(path("f"));
    const auto numbers = descriptors_of(path("f"));
    EXPECT_EQ(numbers.size(), 2u);
    for (const int number : numbers) EXPECT_EQ(::fcntl(number, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  }
  EXPECT_EQ(descriptors_of(path("f")).size(), 0u);
  expect_error(ErrorKind::kIo, root_, [&] { files_->open_file(root_); });
  files_->sync_directory(root_);
  files_->list_directory(root_);
  EXPECT_EQ(descriptors_of(root_).size(), 0u);
}

TEST_F(LocalFileSystemTest, LinksAreFollowed) {
  files_->create_directories(path("target"));
  ASSERT_EQ(::symlink("target", path("link").c_str()), 0);
  ASSERT_EQ(::symlink("nowhere", path("dangling").c_str()), 0);
  EXPECT_EQ(files_->file_type(path("link")), FileType::kDirectory);
  EXPECT_EQ(files_->file_type(path("dangling")), FileType::kNone);
  EXPECT_EQ(files_->create_directories(path("link/below")), std::vector<std::string>{path("link")});
  EXPECT_EQ(files_->list_directory(path("target")), std::vector<std::string>{"below"});
  expect_error(ErrorKind::kAlreadyExists, path("dangling"), [&] { files_->create_directories(path("dangling")); });
}

TEST_F(LocalFileSystemTest, RelativePathsStartAtTheCurrentDirectory) {
  const std::string name = root_.substr(root_.rfind('/') + 1) + "_relative";
  EXPECT_EQ(files_->create_directories(name + "/sub"), (std::vector<std::string>{".", name}));
  files_->sync_directory(".");
  EXPECT_EQ(files_->file_type("./" + name + "/sub"), FileType::kDirectory);
}

TEST_F(LocalFileSystemTest, AFifoIsNoFileAndDoesNotBlockTheReader) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(files_->file_type(path("fifo")), FileType::kOther);
  EXPECT_EQ(files_->file_size(path("fifo")), std::nullopt);
  expect_error(ErrorKind::kIo, "not a regular file", [&] { files_->open_file(path("fifo")); });
}

TEST_F(LocalFileSystemTest, ALinkIsReadWhereAllowedAndNeverWrittenThrough) {
  write("outside", as_bytes("0123"));
  ASSERT_EQ(::symlink("outside", path("link").c_str()), 0);
  ASSERT_EQ(::symlink("nowhere", path("dangling").c_str()), 0);
  EXPECT_EQ(files_->open_file(path("link"))->size(), 4u);
  EXPECT_EQ(files_->file_size(path("link")), 4u);
  EXPECT_EQ(files_->file_size(path("link"), Links::kRefuse), std::nullopt);
  EXPECT_EQ(files_->file_size(path("outside"), Links::kRefuse), 4u);
  EXPECT_EQ(files_->open_file(path("outside"), Links::kRefuse)->size(), 4u);
  for (const std::string& name : {path("link"), path("dangling")}) {
    const std::string cause = name + "\": it is a symbolic link";
    expect_error(ErrorKind::kUnsupported, cause, [&] { files_->open_file(name, Links::kRefuse); });
    expect_error(ErrorKind::kUnsupported, cause, [&] { files_->create_file(name); });
    expect_error(ErrorKind::kAlreadyExists, name, [&] { files_->create_file(name, /*exclusive=*/true); });
  }
  EXPECT_EQ(files_->file_size(path("outside")), 4u);
  EXPECT_EQ(files_->file_type(path("nowhere")), FileType::kNone);
}

TEST_F(LocalFileSystemTest, ANameThatIsTooLongIsNamed) {
  const std::string name(300, 'n');
  expect_error(ErrorKind::kIo, name, [&] { files_->file_type(path(name)); });
  expect_error(ErrorKind::kIo, name + "\": File name too long", [&] { files_->create_file(path(name)); });
}

TEST_F(LocalFileSystemTest, AFileThatIsCutWhileOpenIsCorruptData) {
  write("f", as_bytes("0123456789"));
  const auto reader = files_->open_file(path("f"));
  ASSERT_EQ(::truncate(path("f").c_str(), 4), 0);
  Bytes out(6);
  expect_error(ErrorKind::kCorruptData, "it ends at offset 4", [&] { reader->read_at(1, out); });
  expect_error(ErrorKind::kCorruptData, path("f"), [&] { reader->read_at(4, out); });
}

/// Limits the size of files while it lives: the system then writes what fits and refuses the rest.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    old_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    ::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  sighandler_t old_handler_ = SIG_DFL;
};

TEST_F(LocalFileSystemTest, AShortWriteGoesOnUntilTheSystemRefuses) {
  constexpr std::size_t kLimit = (std::size_t{9} << 20) + 1000;
  const Bytes bytes = pattern(std::size_t{10} << 20);
  const auto file = files_->create_file(path("f"));
  {
    const FileSizeLimit limit(kLimit);
    expect_error(ErrorKind::kIo, path("f") + "\": File too large",
                 [&] { file->append_all({ByteSpan(bytes).first(1000), ByteSpan(bytes).subspan(1000)}); });
  }
  EXPECT_EQ(file->size(), kLimit);
  // What was lost must not be covered by a later success.
  expect_error(ErrorKind::kIo, path("f"), [&] { file->append(as_bytes("x")); });
  expect_error(ErrorKind::kIo, "an earlier call failed", [&] { file->sync(); });
  expect_error(ErrorKind::kIo, path("f"), [&] { file->close(); });
  const Bytes written = read_whole_file(*files_, path("f"), kLimit);
  ASSERT_EQ(written.size(), kLimit);
  EXPECT_TRUE(std::equal(written.begin(), written.end(), bytes.begin()));
}

TEST_F(LocalFileSystemTest, DirectWritesOfAnySizesReadBack) {
  const Bytes bytes = pattern((std::size_t{70} << 20) + 12'345);
  for (const bool is_synced_between : {false, true}) {
    for (const std::size_t append_bytes : {std::size_t{1} << 20, (std::size_t{3} << 20) + 77, bytes.size()}) {
      SCOPED_TRACE(append_bytes);
      const auto file = files_->create_file(path("f"));
      file->set_direct_writes(true);
      for (ByteSpan rest = bytes; !rest.empty();) {
        const ByteSpan part = rest.first(std::min(append_bytes, rest.size()));
        file->append(part);
        rest = rest.subspan(part.size());
        if (is_synced_between && rest.size() < bytes.size() / 2) file->sync();
        EXPECT_EQ(file->size(), bytes.size() - rest.size());
      }
      file->close();
      EXPECT_EQ(files_->file_size(path("f")), bytes.size());
      EXPECT_TRUE(read_whole_file(*files_, path("f"), bytes.size()) == bytes);
    }
  }
}

TEST_F(LocalFileSystemTest, ADirectWriteThatTheSystemRefusesIsNeverForgotten) {
  const Bytes bytes = pattern(std::size_t{30} << 20);
  const auto file = files_->create_file(path("f"));
  file->set_direct_writes(true);
  {
    const FileSizeLimit limit((std::size_t{9} << 20) + 1000);
    expect_error(ErrorKind::kIo, path("f") + "\": File too large", [&] { file->append(bytes); });
  }
  expect_error(ErrorKind::kIo, path("f"), [&] { file->append(as_bytes("x")); });
  expect_error(ErrorKind::kIo, "an earlier call failed", [&] { file->sync(); });
  expect_error(ErrorKind::kIo, path("f"), [&] { file->close(); });
}

TEST_F(LocalFileSystemTest, AFullDeviceIsReported) {
  const auto file = files_->create_file("/dev/full");
  expect_error(ErrorKind::kIo, "\"/dev/full\": No space left on device", [&] { file->append(as_bytes("x")); });
}

TEST_F(LocalFileSystemTest, AFailedSyncIsReported) {
  const auto file = files_->create_file("/dev/null");
  file->append(as_bytes("x"));
  expect_error(ErrorKind::kIo, "cannot sync \"/dev/null\"", [&] { file->sync(); });
  expect_error(ErrorKind::kIo, "an earlier call failed", [&] { file->sync(); });
}

/// Reads a FIFO to its end, slowly enough that the writer has to wait.
Bytes read_fifo(const std::string& path) {
  Bytes bytes;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  Bytes piece(100000);
  for (;;) {
    const ssize_t count = ::read(descriptor, piece.data(), piece.size());
    if (count <= 0) break;
    bytes.insert(bytes.end(), piece.begin(), piece.begin() + count);
  }
  ::close(descriptor);
  return bytes;
}

// A FIFO shows what regular files do not: writes that a signal cuts or interrupts, and a
// file that early write-back does not work for.
TEST_F(LocalFileSystemTest, SignalsAndMissingWriteBackDoNotDisturbAWrite) {
  struct sigaction action{};
  action.sa_handler = [](int) {};
  struct sigaction old_action{};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &old_action), 0);
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);

  const Bytes bytes = pattern((std::size_t{17} << 20) + 5);
  Bytes received;
  std::jthread reader([&] { received = read_fifo(path("fifo")); });
  std::atomic<bool> is_done{false};
  std::jthread disturber([&, writer = ::pthread_self()] {
    while (!is_done) {
      ::pthread_kill(writer, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  {
    const auto file = files_->create_file(path("fifo"));
    file->append(bytes);
    EXPECT_EQ(file->size(), bytes.size());
    file->close();
  }
  is_done = true;
  disturber.join();
  reader.join();
  ::sigaction(SIGUSR1, &old_action, nullptr);
  EXPECT_TRUE(received == bytes);
}

}  // namespace
}  // namespace dcp
