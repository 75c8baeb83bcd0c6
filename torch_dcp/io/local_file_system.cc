#include "torch_dcp/io/local_file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/io/direct_writer_internal.h"
#include "torch_dcp/io/io_internal.h"

namespace dcp {
namespace {

/// The most that one system call writes, and the step of early write-back: large
/// enough for full speed, small enough for the medium to start early.
constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;
/// The system's limit on the parts of one call (IOV_MAX).
constexpr std::size_t kMaxPartsPerCall = 1024;
constexpr std::uint64_t kPageBytes = 4096;
/// Direct writes begin after so many bytes of a file: small ones are better off in the page cache.
constexpr std::uint64_t kDirectFrom = std::uint64_t{1} << 20;

/// Repeats a system call while signals interrupt it.
template <typename Call>
auto retry_interrupted(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

/// Checks what every path must fulfil before it becomes a C string.
const char* system_path(const char* action, const std::string& path) {
  check_path(action, path);
  return path.c_str();
}

/// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor(const char* action, const std::string& path, int flags)
      : number_(retry_interrupted(
            [name = system_path(action, path), flags] { return ::open(name, flags | O_CLOEXEC, 0666); })) {
    if (number_ >= 0) return;
    const int error_number = errno;
    DCP_CHECK(error_number != ELOOP || (flags & O_NOFOLLOW) == 0, kUnsupported, "cannot ", action, " \"", path,
              "\": it is a symbolic link");
    throw_io_error(action, path, error_number);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }

  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }

  /// Returns 0 or the error number. The descriptor is gone either way.
  int close() {
    const int result = ::close(std::exchange(number_, -1));
    // Linux has released the descriptor when a signal interrupts; a second call could close another thread's file.
    return result == 0 || errno == EINTR ? 0 : errno;
  }

 private:
  int number_;
};

struct stat stat_of(const Descriptor& descriptor, const std::string& path) {
  struct stat status{};
  if (::fstat(descriptor.get(), &status) != 0) throw_io_error("examine", path, errno);
  return status;
}

/// Nothing if nothing is there. A link that is not followed is neither a file nor a directory.
std::optional<struct stat> stat_of(const std::string& path, Links links = Links::kFollow) {
  struct stat status{};
  const char* name = system_path("examine", path);
  if ((links == Links::kFollow ? ::stat(name, &status) : ::lstat(name, &status)) == 0) return status;
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  throw_io_error("examine", path, errno);
}

FileType type_of(const std::optional<struct stat>& status) {
  if (!status) return FileType::kNone;
  if (S_ISREG(status->st_mode)) return FileType::kFile;
  return S_ISDIR(status->st_mode) ? FileType::kDirectory : FileType::kOther;
}

class LocalRandomAccessFile final : public RandomAccessFile {
 public:
  // O_NONBLOCK does nothing for regular files, and opening a FIFO that somebody left here does not wait for a writer.
  LocalRandomAccessFile(const std::string& path, Links links)
      : path_(path), descriptor_("open", path, O_RDONLY | O_NONBLOCK | (links == Links::kRefuse ? O_NOFOLLOW : 0)) {
    const struct stat status = stat_of(descriptor_, path);
    if (S_ISDIR(status.st_mode)) throw_io_error("open", path, EISDIR);
    if (!S_ISREG(status.st_mode)) throw_io_error("open", path, "not a regular file");
    size_ = static_cast<std::uint64_t>(status.st_size);
    // Only a hint: that the system may read further ahead while the bytes before are checked.
    ::posix_fadvise(descriptor_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  }

  std::uint64_t size() const override { return size_; }

  void read_at(std::uint64_t offset, MutableByteSpan out) const override {
    check_read_range(path_, offset, out.size(), size_);
    while (!out.empty()) {
      const ssize_t count = retry_interrupted(
          [&] { return ::pread(descriptor_.get(), out.data(), out.size(), static_cast<off_t>(offset)); });
      if (count < 0) throw_io_error(c10::str("read ", out.size(), " bytes at offset ", offset, " of"), path_, errno);
      DCP_CHECK(count > 0, kCorruptData, "\"", path_, "\" was cut while it was read: it ends at offset ", offset,
                ", its size was ", size_, " bytes");
      out = out.subspan(static_cast<std::size_t>(count));
      offset += static_cast<std::uint64_t>(count);
    }
  }

 private:
  std::string path_;
  Descriptor descriptor_;
  std::uint64_t size_ = 0;
};

/// Walks over the bytes of several parts.
class PartCursor {
 public:
  explicit PartCursor(std::span<const ByteSpan> parts) : parts_(parts) {}

  /// Fills `batch` with the next bytes, at most kPieceBytes; returns the number of entries, 0 at the end.
  std::size_t fill(std::array<iovec, kMaxPartsPerCall>& batch) const {
    std::size_t count = 0;
    std::uint64_t room = kPieceBytes;
    std::size_t offset = offset_;
    for (std::size_t i = next_; i < parts_.size() && count < batch.size() && room > 0; ++i, offset = 0) {
      const ByteSpan rest = parts_[i].subspan(offset);
      const std::size_t take = std::min<std::uint64_t>(rest.size(), room);
      if (take == 0) continue;
      // The system call's type has no const; it only reads.
      batch[count++] = {const_cast<std::uint8_t*>(rest.data()), take};
      room -= take;
    }
    return count;
  }

  void advance(std::size_t byte_count) {
    while (byte_count > 0) {
      const std::size_t step = std::min(byte_count, parts_[next_].size() - offset_);
      byte_count -= step;
      offset_ += step;
      if (offset_ == parts_[next_].size()) {
        ++next_;
        offset_ = 0;
      }
    }
  }

 private:
  std::span<const ByteSpan> parts_;
  std::size_t next_ = 0;    // the part that is being written
  std::size_t offset_ = 0;  // within it
};

/// Starts write-back of a file's new bytes while the program goes on.
class EarlyWriteBack {
 public:
  void set_enabled(bool enabled) { is_enabled_ = enabled; }

  /// To be called when the file has `size` bytes.
  void grown_to(const Descriptor& descriptor, const std::string& path, std::uint64_t size) {
#if defined(SYNC_FILE_RANGE_WRITE)
    if (!is_enabled_ || size - started_ < kPieceBytes) return;
    // A page that is not full yet would go to the medium twice.
    const std::uint64_t end = size - size % kPageBytes;
    const int result = retry_interrupted([&] {
      return ::sync_file_range(descriptor.get(), static_cast<off64_t>(started_), static_cast<off64_t>(end - started_),
                               SYNC_FILE_RANGE_WRITE);
    });
    if (result != 0 && !is_unsupported(errno)) throw_io_error("start write-back of", path, errno);
    if (result != 0) is_enabled_ = false;
    started_ = end;
#endif
  }

 private:
  /// Not every file system has it, and some containers forbid the call.
  static bool is_unsupported(int error_number) {
    return error_number == EINVAL || error_number == ENOSYS || error_number == EOPNOTSUPP || error_number == ESPIPE ||
           error_number == EPERM;
  }

  bool is_enabled_ = true;
  std::uint64_t started_ = 0;  // write-back of the bytes before has been started
};

class LocalWritableFile final : public WritableFile {
 public:
  LocalWritableFile(const std::string& path, bool exclusive)
      : path_(path), descriptor_("create", path, O_WRONLY | O_CREAT | O_NOFOLLOW | (exclusive ? O_EXCL : O_TRUNC)) {}

  void append(ByteSpan bytes) override { append_parts({&bytes, 1}); }
  void append_all(const std::vector<ByteSpan>& parts) override { append_parts(parts); }
  std::uint64_t size() const override { return size_; }
  void set_early_write_back(bool enabled) override { early_write_back_.set_enabled(enabled); }
  void set_direct_writes(bool enabled) override { is_direct_wanted_ = enabled; }

  void sync() override {
    check_usable("sync");
    is_failed_ = true;
    finish_direct();
    if (retry_interrupted([&] { return ::fsync(descriptor_.get()); }) != 0) throw_io_error("sync", path_, errno);
    is_failed_ = false;
  }

  void close() override {
    check_usable("close");
    is_failed_ = true;
    finish_direct();
    is_failed_ = false;
    if (const int error_number = descriptor_.close()) throw_io_error("close", path_, error_number);
  }

 private:
  void check_usable(const char* action) const {
    DCP_CHECK(descriptor_.is_open(), kState, "cannot ", action, " \"", path_, "\": it is closed");
    // After a failed fsync the system forgets the lost pages, and the next fsync would succeed.
    if (is_failed_) throw_io_error(action, path_, "an earlier call failed");
  }

  void append_parts(std::span<const ByteSpan> parts) {
    check_usable("write to");
    is_failed_ = true;
    if (is_direct_wanted_) {
      for (const ByteSpan part : parts) write_direct(part);
    } else {
      write_cached(parts);
    }
    is_failed_ = false;
  }

  void write_direct(ByteSpan bytes) {
    if (!direct_) {
      const ByteSpan lead =
          bytes.first(std::min<std::uint64_t>(bytes.size(), kDirectFrom - std::min(size_, kDirectFrom)));
      write_cached({&lead, 1});
      bytes = bytes.subspan(lead.size());
      if (bytes.empty()) return;
      if (is_direct_wanted_) direct_ = DirectWriter::start(descriptor_.get(), path_, size_);
      is_direct_wanted_ = direct_ != nullptr;
      if (!direct_) return write_cached({&bytes, 1});
    }
    direct_->append(bytes);
    size_ += bytes.size();
  }

  void finish_direct() {
    if (!direct_) return;
    direct_->finish();
    direct_.reset();
    is_direct_wanted_ = false;
  }

  void write_cached(std::span<const ByteSpan> parts) {
    PartCursor cursor(parts);
    std::array<iovec, kMaxPartsPerCall> batch;
    while (const std::size_t count = cursor.fill(batch)) {
      const ssize_t written =
          retry_interrupted([&] { return ::writev(descriptor_.get(), batch.data(), static_cast<int>(count)); });
      if (written < 0) throw_io_error(c10::str("write at offset ", size_, " of"), path_, errno);
      if (written == 0) throw_io_error("write to", path_, "the system took no byte");
      cursor.advance(static_cast<std::size_t>(written));
      size_ += static_cast<std::uint64_t>(written);
      early_write_back_.grown_to(descriptor_, path_, size_);
    }
  }

  std::string path_;
  Descriptor descriptor_;
  std::uint64_t size_ = 0;
  EarlyWriteBack early_write_back_;
  bool is_direct_wanted_ = false;
  std::unique_ptr<DirectWriter> direct_;  // once bytes go that way
  bool is_failed_ = false;                // also while a call is under way, so that an exception leaves it set
};

/// Owns a directory that is being listed.
class DirectoryStream {
 public:
  explicit DirectoryStream(const std::string& path) : path_(path), stream_(::opendir(system_path("list", path))) {
    if (stream_ == nullptr) throw_io_error("list", path, errno);
  }
  DirectoryStream(const DirectoryStream&) = delete;
  DirectoryStream& operator=(const DirectoryStream&) = delete;
  ~DirectoryStream() { ::closedir(stream_); }

  /// The next name; nothing at the end.
  std::optional<std::string> next() {
    errno = 0;
    if (const dirent* entry = ::readdir(stream_)) return entry->d_name;
    if (errno != 0) throw_io_error("list", path_, errno);
    return std::nullopt;
  }

 private:
  const std::string& path_;
  DIR* stream_;
};

/// Makes one directory of the way to `path`; returns whether it is new.
bool make_directory(const std::string& directory, const std::string& path) {
  if (::mkdir(directory.c_str(), 0777) == 0) return true;
  const int error_number = errno;
  // Another rank was faster.
  if (error_number == EEXIST && type_of(stat_of(directory)) == FileType::kDirectory) return false;
  throw_io_error(c10::str("create directory \"", path, "\": cannot create"), directory, error_number);
}

/// The directories on the way to `path` that are not there, innermost first.
std::vector<std::string> missing_directories(const std::string& path) {
  std::vector<std::string> missing;
  std::string current = path;
  for (;;) {
    const FileType type = type_of(stat_of(current));
    if (type == FileType::kDirectory) return missing;
    if (type != FileType::kNone) {
      throw_io_error(c10::str("create directory \"", path, "\": cannot use"), current,
                     current == path ? EEXIST : ENOTDIR);
    }
    std::string parent = parent_path(current);
    if (parent == current) throw_io_error("create directory", path, ENOENT);
    missing.push_back(std::exchange(current, std::move(parent)));
  }
}

class LocalFileSystem final : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create_file(const std::string& path, bool exclusive) override {
    return std::make_unique<LocalWritableFile>(path, exclusive);
  }

  std::unique_ptr<RandomAccessFile> open_file(const std::string& path, Links links) override {
    return std::make_unique<LocalRandomAccessFile>(path, links);
  }

  FileType file_type(const std::string& path) override { return type_of(stat_of(path)); }

  std::optional<std::uint64_t> file_size(const std::string& path, Links links) override {
    const auto status = stat_of(path, links);
    if (type_of(status) != FileType::kFile) return std::nullopt;
    return static_cast<std::uint64_t>(status->st_size);
  }

  std::vector<std::string> list_directory(const std::string& path) override {
    DirectoryStream stream(path);
    std::vector<std::string> names;
    while (auto name = stream.next()) {
      if (*name != "." && *name != "..") names.push_back(std::move(*name));
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  std::vector<std::string> create_directories(const std::string& path) override {
    if (path.empty()) throw_io_error("create directory", path, ENOENT);
    const std::vector<std::string> missing = missing_directories(path);
    std::vector<std::string> changed;
    for (auto directory = missing.rbegin(); directory != missing.rend(); ++directory) {
      if (make_directory(*directory, path)) changed.push_back(parent_path(*directory));
    }
    return changed;
  }

  void remove_file(const std::string& path) override {
    if (::unlink(system_path("remove", path)) != 0) throw_io_error("remove", path, errno);
  }

  void rename_file(const std::string& from, const std::string& to) override {
    const std::string action = c10::str("rename to \"", to, "\" the file");
    system_path("rename to", to);
    // rename(2) would move a directory too, which other implementations need not be able to.
    if (file_type(from) == FileType::kDirectory) throw_io_error(action, from, EISDIR);
    if (::rename(from.c_str(), to.c_str()) != 0) throw_io_error(action, from, errno);
  }

  void sync_directory(const std::string& path) override {
    const Descriptor descriptor("sync directory", path, O_RDONLY | O_DIRECTORY);
    if (retry_interrupted([&] { return ::fsync(descriptor.get()); }) == 0) return;
    // Some network file systems have no such operation: their servers keep names on the medium as they change.
    if (errno == EINVAL || errno == EBADF || errno == EOPNOTSUPP || errno == ENOSYS) return;
    throw_io_error("sync directory", path, errno);
  }
};

}  // namespace

std::shared_ptr<FileSystem> local_file_system() { return std::make_shared<LocalFileSystem>(); }

}  // namespace dcp
