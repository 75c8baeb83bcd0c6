#include "torch_dcp/io/memory_file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/io/io_internal.h"

namespace dcp {
namespace {

constexpr std::uint64_t kMinChunkBytes = 4096;
constexpr std::uint64_t kMaxChunkBytes = std::uint64_t{16} << 20;

/// A stretch of a file that never moves, so that readers need no lock.
struct Chunk {
  std::uint64_t offset = 0;  // within the file
  std::uint64_t capacity = 0;
  std::shared_ptr<std::uint8_t[]> bytes;

  std::uint64_t end() const { return offset + capacity; }
};

/// A file as it was at one moment. Later appends go behind its last byte.
struct Snapshot {
  std::uint64_t size = 0;
  std::vector<Chunk> chunks;
};

/// A file's bytes. One thread appends; any thread takes snapshots.
class Content {
 public:
  Snapshot snapshot() const {
    const std::lock_guard lock(mutex_);
    return {size_, chunks_};
  }

  std::uint64_t size() const {
    const std::lock_guard lock(mutex_);
    return size_;
  }

  void append(const std::string& path, ByteSpan bytes) {
    while (!bytes.empty()) {
      const MutableByteSpan room = room_for(path, bytes.size());
      const ByteSpan now = bytes.first(std::min(room.size(), bytes.size()));
      // Without the lock: nobody looks behind size_.
      std::memcpy(room.data(), now.data(), now.size());
      bytes = bytes.subspan(now.size());
      const std::lock_guard lock(mutex_);
      size_ += now.size();
    }
  }

 private:
  /// The free end of the last chunk, or a new chunk that takes all of `byte_count`.
  MutableByteSpan room_for(const std::string& path, std::uint64_t byte_count) {
    const std::lock_guard lock(mutex_);
    if (chunks_.empty() || chunks_.back().end() == size_) {
      // Grows with the file, so that the number of chunks stays small.
      const std::uint64_t capacity = std::max(byte_count, std::clamp(size_, kMinChunkBytes, kMaxChunkBytes));
      std::shared_ptr<std::uint8_t[]> memory(new (std::nothrow) std::uint8_t[capacity]);
      if (memory == nullptr) throw_io_error(c10::str("write at offset ", size_, " of"), path, ENOMEM);
      chunks_.push_back({size_, capacity, std::move(memory)});
    }
    const Chunk& last = chunks_.back();
    return {last.bytes.get() + (size_ - last.offset), last.end() - size_};
  }

  mutable std::mutex mutex_;
  std::uint64_t size_ = 0;
  std::vector<Chunk> chunks_;
};

class MemoryRandomAccessFile final : public RandomAccessFile {
 public:
  MemoryRandomAccessFile(std::string path, Snapshot file) : path_(std::move(path)), file_(std::move(file)) {}

  std::uint64_t size() const override { return file_.size; }

  void read_at(std::uint64_t offset, MutableByteSpan out) const override {
    check_read_range(path_, offset, out.size(), file_.size);
    auto chunk = std::upper_bound(file_.chunks.begin(), file_.chunks.end(), offset,
                                  [](std::uint64_t value, const Chunk& one) { return value < one.end(); });
    while (!out.empty()) {
      const std::size_t count = std::min<std::uint64_t>(out.size(), chunk->end() - offset);
      std::memcpy(out.data(), chunk->bytes.get() + (offset - chunk->offset), count);
      out = out.subspan(count);
      offset += count;
      ++chunk;
    }
  }

 private:
  std::string path_;
  Snapshot file_;
};

class MemoryWritableFile final : public WritableFile {
 public:
  MemoryWritableFile(std::string path, std::shared_ptr<Content> content)
      : path_(std::move(path)), content_(std::move(content)) {}

  void append(ByteSpan bytes) override {
    check_usable("write to");
    is_failed_ = true;
    content_->append(path_, bytes);
    is_failed_ = false;
  }

  std::uint64_t size() const override { return content_->size(); }
  void sync() override { check_usable("sync"); }

  void close() override {
    check_usable("close");
    is_closed_ = true;
  }

 private:
  void check_usable(const char* action) const {
    DCP_CHECK(!is_closed_, kState, "cannot ", action, " \"", path_, "\": it is closed");
    if (is_failed_) throw_io_error(action, path_, "an earlier call failed");
  }

  std::string path_;
  std::shared_ptr<Content> content_;
  bool is_closed_ = false;
  bool is_failed_ = false;  // also while a call is under way, so that an exception leaves it set
};

struct Directory;

/// What a name stands for: one of the two.
struct Entry {
  std::shared_ptr<Content> file;
  std::shared_ptr<Directory> directory;
};

struct Directory {
  std::map<std::string, Entry> entries;
};

class MemoryFileSystem final : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create_file(const std::string& path, bool exclusive) override {
    const std::lock_guard lock(mutex_);
    const Place place = place_of("create", path);
    if (exclusive && place.entry.has_value()) throw_io_error("create", path, EEXIST);
    if (place.is_directory()) throw_io_error("create", path, EISDIR);
    auto content = std::make_shared<Content>();
    place.parent->entries[place.name] = {content, nullptr};
    return std::make_unique<MemoryWritableFile>(path, std::move(content));
  }

  std::unique_ptr<RandomAccessFile> open_file(const std::string& path, Links /*there are none*/) override {
    const std::lock_guard lock(mutex_);
    const Place place = place_of("open", path);
    require_file("open", path, place);
    return std::make_unique<MemoryRandomAccessFile>(path, place.entry->file->snapshot());
  }

  FileType file_type(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    const auto entry = find(path);
    if (!entry) return FileType::kNone;
    return entry->file ? FileType::kFile : FileType::kDirectory;
  }

  std::optional<std::uint64_t> file_size(const std::string& path, Links /*there are none*/) override {
    const std::lock_guard lock(mutex_);
    const auto entry = find(path);
    if (!entry || !entry->file) return std::nullopt;
    return entry->file->size();
  }

  std::vector<std::string> list_directory(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, entry] : directory_at("list", path).entries) names.push_back(name);
    return names;
  }

  std::vector<std::string> create_directories(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    if (path.empty()) throw_io_error("create directory", path, ENOENT);
    std::vector<std::string> changed;
    for (const std::string& directory : ancestors_and_self(path)) {
      const Place place = place_of("create directory", directory);
      if (place.is_directory()) continue;
      if (place.entry) {
        throw_io_error(c10::str("create directory \"", path, "\": cannot use"), directory,
                       directory == path ? EEXIST : ENOTDIR);
      }
      place.parent->entries[place.name] = {nullptr, std::make_shared<Directory>()};
      changed.push_back(parent_path(directory));
    }
    return changed;
  }

  void remove_file(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    const Place place = place_of("remove", path);
    require_file("remove", path, place);
    place.parent->entries.erase(place.name);
  }

  void rename_file(const std::string& from, const std::string& to) override {
    const std::string action = c10::str("rename to \"", to, "\" the file");
    const std::lock_guard lock(mutex_);
    const Place source = place_of(action, from);
    require_file(action, from, source);
    const Place target = place_of(c10::str("rename \"", from, "\" to"), to);
    if (target.is_directory()) throw_io_error(action, from, EISDIR);
    // Erased first: the two may be the same name.
    source.parent->entries.erase(source.name);
    target.parent->entries[target.name] = *source.entry;
  }

  void sync_directory(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    directory_at("sync directory", path);
  }

 private:
  /// A name in an existing directory, and what it stands for, if anything. The root has no parent.
  struct Place {
    std::shared_ptr<Directory> parent;
    std::string name;
    std::optional<Entry> entry;

    bool is_directory() const { return entry && entry->directory; }
  };

  /// Throws if a directory on the way is not there.
  Place place_of(std::string_view action, const std::string& path) const {
    if (path.empty()) throw_io_error(action, path, ENOENT);
    Place place{nullptr, "", Entry{nullptr, root_}};
    for (std::string& name : path_names(path)) {
      if (!place.entry) throw_io_error(action, path, ENOENT);
      if (!place.is_directory()) throw_io_error(action, path, ENOTDIR);
      place.parent = place.entry->directory;
      place.name = std::move(name);
      const auto found = place.parent->entries.find(place.name);
      place.entry = found == place.parent->entries.end() ? std::nullopt : std::optional(found->second);
    }
    return place;
  }

  std::optional<Entry> find(const std::string& path) const {
    if (path.empty()) return std::nullopt;
    std::optional<Entry> entry = Entry{nullptr, root_};
    for (const std::string& name : path_names(path)) {
      if (!entry->directory) return std::nullopt;
      const auto found = entry->directory->entries.find(name);
      if (found == entry->directory->entries.end()) return std::nullopt;
      entry = found->second;
    }
    return entry;
  }

  static void require_file(std::string_view action, const std::string& path, const Place& place) {
    if (!place.entry) throw_io_error(action, path, ENOENT);
    if (place.is_directory()) throw_io_error(action, path, EISDIR);
  }

  const Directory& directory_at(std::string_view action, const std::string& path) const {
    const Place place = place_of(action, path);
    if (!place.entry) throw_io_error(action, path, ENOENT);
    if (!place.is_directory()) throw_io_error(action, path, ENOTDIR);
    return *place.entry->directory;
  }

  /// Paths of the directories that `path` goes through, outermost first.
  static std::vector<std::string> ancestors_and_self(const std::string& path) {
    std::vector<std::string> paths{path};
    for (std::string parent = parent_path(path); parent != paths.back(); parent = parent_path(parent)) {
      paths.push_back(parent);
    }
    std::reverse(paths.begin(), paths.end());
    return paths;
  }

  std::mutex mutex_;
  std::shared_ptr<Directory> root_ = std::make_shared<Directory>();
};

}  // namespace

std::shared_ptr<FileSystem> make_memory_file_system() { return std::make_shared<MemoryFileSystem>(); }

}  // namespace dcp
