#include "test/support/crashing_file_system.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/io/io_internal.h"

namespace dcp::test {
namespace {

struct Node;
using NodePtr = std::shared_ptr<Node>;
using Names = std::map<std::string, NodePtr>;

/// A file or a directory, as programs see it and as the medium has it.
struct Node {
  bool is_directory = false;
  Names names;
  Names synced_names;
  Bytes bytes;
  Bytes synced_bytes;
  /// Whether `bytes` is `synced_bytes` and more. Not so after a truncation.
  bool is_appended_only = true;

  bool is_synced() const { return is_appended_only && bytes.size() == synced_bytes.size(); }
};

NodePtr make_directory() {
  auto directory = std::make_shared<Node>();
  directory->is_directory = true;
  return directory;
}

/// A new, removed or changed name that is not on the medium yet.
struct NameChange {
  NodePtr node;
  NodePtr old_directory = {};  // none for a new node
  std::string old_name = {};
  NodePtr new_directory = {};  // none for a removed one
  std::string new_name = {};

  bool concerns(const NodePtr& directory) const { return old_directory == directory || new_directory == directory; }

  /// Carries it out on the names that `names_in` returns for a directory.
  template <typename NamesIn>
  void apply(NamesIn names_in) const {
    if (old_directory) {
      Names& names = names_in(old_directory);
      const auto old = names.find(old_name);
      // Another node may have taken the name.
      if (old != names.end() && old->second == node) names.erase(old);
    }
    if (new_directory) names_in(new_directory)[new_name] = node;
  }
};

/// Everything in one file system; shared with its open files.
struct Store {
  mutable std::mutex mutex;
  NodePtr root = make_directory();
  std::vector<NameChange> unsynced;
};

class Crash {
 public:
  Crash(const Store& store, CrashPolicy policy, std::uint64_t seed) : policy_(policy), random_(seed) {
    std::set<NodePtr> left_behind;
    for (const NameChange& change : store.unsynced) {
      // A node's changes build on each other: once one is lost, so are the later ones.
      if (left_behind.contains(change.node) || !survives()) {
        left_behind.insert(change.node);
      } else {
        change.apply([&](const NodePtr& directory) -> Names& { return names_in(directory); });
      }
    }
    root_ = copy(store.root);
  }

  NodePtr root() const { return root_; }

 private:
  bool survives() { return policy_ == CrashPolicy::kKeepAll || (policy_ == CrashPolicy::kTornWrites && coin()); }

  bool coin() { return random_() % 2 == 0; }
  std::uint64_t up_to(std::uint64_t limit) { return random_() % (limit + 1); }

  Names& names_in(const NodePtr& directory) {
    return names_.try_emplace(directory, directory->synced_names).first->second;
  }

  NodePtr copy(const NodePtr& node) {
    auto result = std::make_shared<Node>();
    result->is_directory = node->is_directory;
    if (node->is_directory) {
      const Names names = names_in(node);
      for (const auto& [name, child] : names) result->names[name] = copy(child);
      result->synced_names = result->names;
    } else {
      result->bytes = bytes_after(*node);
      result->synced_bytes = result->bytes;
    }
    return result;
  }

  Bytes bytes_after(const Node& file) {
    if (policy_ == CrashPolicy::kKeepAll || file.is_synced()) return file.bytes;
    if (policy_ == CrashPolicy::kLoseUnsynced || coin()) return file.synced_bytes;
    return torn(file);
  }

  Bytes torn(const Node& file) {
    const std::uint64_t certain = file.is_appended_only ? file.synced_bytes.size() : 0;
    const std::uint64_t size = certain + up_to(file.bytes.size() - certain);
    const std::uint64_t good = certain + up_to(size - certain);
    Bytes bytes(file.bytes.begin(), file.bytes.begin() + static_cast<std::ptrdiff_t>(good));
    while (bytes.size() < size) bytes.push_back(static_cast<std::uint8_t>(random_()));
    return bytes;
  }

  CrashPolicy policy_;
  std::mt19937_64 random_;
  std::map<NodePtr, Names> names_;  // of the directories that differ from their synced names
  NodePtr root_;
};

class Reader final : public RandomAccessFile {
 public:
  Reader(std::shared_ptr<Store> store, NodePtr node, std::string path)
      : store_(std::move(store)), node_(std::move(node)), path_(std::move(path)), size_(node_->bytes.size()) {}

  std::uint64_t size() const override { return size_; }

  void read_at(std::uint64_t offset, MutableByteSpan out) const override {
    const std::lock_guard lock(store_->mutex);
    // The file may have been truncated since.
    check_read_range(path_, offset, out.size(), std::min<std::uint64_t>(size_, node_->bytes.size()));
    std::copy_n(node_->bytes.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
  }

 private:
  std::shared_ptr<Store> store_;
  NodePtr node_;
  std::string path_;
  std::uint64_t size_;
};

class Writer final : public WritableFile {
 public:
  Writer(std::shared_ptr<Store> store, NodePtr node, std::string path)
      : store_(std::move(store)), node_(std::move(node)), path_(std::move(path)) {}

  void append(ByteSpan bytes) override {
    check_open("write to");
    const std::lock_guard lock(store_->mutex);
    node_->bytes.insert(node_->bytes.end(), bytes.begin(), bytes.end());
    size_ += bytes.size();
  }

  std::uint64_t size() const override { return size_; }

  void sync() override {
    check_open("sync");
    const std::lock_guard lock(store_->mutex);
    node_->synced_bytes = node_->bytes;
    node_->is_appended_only = true;
  }

  void close() override {
    check_open("close");
    is_closed_ = true;
  }

 private:
  void check_open(const char* action) const {
    DCP_CHECK(!is_closed_, kState, "cannot ", action, " \"", path_, "\": it is closed");
  }

  std::shared_ptr<Store> store_;
  NodePtr node_;
  std::string path_;
  std::uint64_t size_ = 0;
  bool is_closed_ = false;
};

class CrashingFileSystemImpl final : public CrashingFileSystem {
 public:
  CrashingFileSystemImpl() = default;
  explicit CrashingFileSystemImpl(NodePtr root) { store_->root = std::move(root); }

  std::shared_ptr<CrashingFileSystem> crash(CrashPolicy policy, std::uint64_t seed) const override {
    const std::lock_guard lock(store_->mutex);
    return std::make_shared<CrashingFileSystemImpl>(Crash(*store_, policy, seed).root());
  }

  std::unique_ptr<WritableFile> create_file(const std::string& path, bool exclusive) override {
    const std::lock_guard lock(store_->mutex);
    Place place = place_of("create", path);
    if (exclusive && place.node) throw_io_error("create", path, EEXIST);
    if (place.is_directory()) throw_io_error("create", path, EISDIR);
    if (place.node) {
      place.node->bytes.clear();
      place.node->is_appended_only = place.node->synced_bytes.empty();
    } else {
      place.node = std::make_shared<Node>();
      change({.node = place.node, .new_directory = place.directory, .new_name = place.name});
    }
    return std::make_unique<Writer>(store_, place.node, path);
  }

  std::unique_ptr<RandomAccessFile> open_file(const std::string& path, Links /*there are none*/) override {
    const std::lock_guard lock(store_->mutex);
    return std::make_unique<Reader>(store_, file_at("open", path).node, path);
  }

  FileType file_type(const std::string& path) override {
    const std::lock_guard lock(store_->mutex);
    const NodePtr node = find(path);
    if (!node) return FileType::kNone;
    return node->is_directory ? FileType::kDirectory : FileType::kFile;
  }

  std::optional<std::uint64_t> file_size(const std::string& path, Links /*there are none*/) override {
    const std::lock_guard lock(store_->mutex);
    const NodePtr node = find(path);
    if (!node || node->is_directory) return std::nullopt;
    return node->bytes.size();
  }

  std::vector<std::string> list_directory(const std::string& path) override {
    const std::lock_guard lock(store_->mutex);
    std::vector<std::string> names;
    for (const auto& [name, node] : directory_at("list", path)->names) names.push_back(name);
    return names;
  }

  std::vector<std::string> create_directories(const std::string& path) override {
    const std::lock_guard lock(store_->mutex);
    std::vector<std::string> changed;
    make_directories(path, path, changed);
    return changed;
  }

  void remove_file(const std::string& path) override {
    const std::lock_guard lock(store_->mutex);
    const Place place = file_at("remove", path);
    change({.node = place.node, .old_directory = place.directory, .old_name = place.name});
  }

  void rename_file(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(store_->mutex);
    const Place source = file_at("rename", from);
    const Place target = place_of("rename to", to);
    if (target.is_directory()) throw_io_error("rename to", to, EISDIR);
    if (source.node == target.node) return;
    change({.node = source.node,
            .old_directory = source.directory,
            .old_name = source.name,
            .new_directory = target.directory,
            .new_name = target.name});
  }

  void sync_directory(const std::string& path) override {
    const std::lock_guard lock(store_->mutex);
    const NodePtr directory = directory_at("sync directory", path);
    std::vector<NameChange> later;
    for (std::size_t i = 0; i < store_->unsynced.size(); ++i) {
      const NameChange& change = store_->unsynced[i];
      if (must_last(i, directory)) {
        change.apply([](const NodePtr& changed) -> Names& { return changed->synced_names; });
      } else {
        later.push_back(change);
      }
    }
    store_->unsynced = std::move(later);
  }

 private:
  /// A name in an existing directory and what it stands for, if anything. The root has no directory.
  struct Place {
    NodePtr directory;
    std::string name;
    NodePtr node;

    bool is_directory() const { return node && node->is_directory; }
  };

  Place place_of(const char* action, const std::string& path) const {
    if (path.empty()) throw_io_error(action, path, ENOENT);
    Place place{nullptr, "", store_->root};
    for (std::string& name : path_names(path)) {
      if (!place.node) throw_io_error(action, path, ENOENT);
      if (!place.node->is_directory) throw_io_error(action, path, ENOTDIR);
      place.directory = place.node;
      place.name = std::move(name);
      const auto found = place.directory->names.find(place.name);
      place.node = found == place.directory->names.end() ? nullptr : found->second;
    }
    return place;
  }

  NodePtr find(const std::string& path) const {
    NodePtr node = path.empty() ? nullptr : store_->root;
    for (const std::string& name : path_names(path)) {
      if (!node || !node->is_directory) return nullptr;
      const auto found = node->names.find(name);
      node = found == node->names.end() ? nullptr : found->second;
    }
    return node;
  }

  Place file_at(const char* action, const std::string& path) const {
    Place place = place_of(action, path);
    if (!place.node) throw_io_error(action, path, ENOENT);
    if (place.is_directory()) throw_io_error(action, path, EISDIR);
    return place;
  }

  /// Whether a sync of `directory` needs the unsynced change at `position`: one that concerns
  /// it, or that a later one of the same node builds on.
  bool must_last(std::size_t position, const NodePtr& directory) const {
    const auto& changes = store_->unsynced;
    return std::any_of(
        changes.begin() + static_cast<std::ptrdiff_t>(position), changes.end(),
        [&](const NameChange& later) { return later.node == changes[position].node && later.concerns(directory); });
  }

  NodePtr directory_at(const char* action, const std::string& path) const {
    const Place place = place_of(action, path);
    if (!place.node) throw_io_error(action, path, ENOENT);
    if (!place.is_directory()) throw_io_error(action, path, ENOTDIR);
    return place.node;
  }

  void make_directories(const std::string& path, const std::string& whole, std::vector<std::string>& changed) {
    const std::string parent = parent_path(path);
    if (parent != path) make_directories(parent, whole, changed);
    const Place place = place_of("create directory", path);
    if (place.is_directory()) return;
    if (place.node) {
      throw_io_error(c10::str("create directory \"", whole, "\": cannot use"), path, path == whole ? EEXIST : ENOTDIR);
    }
    change({.node = make_directory(), .new_directory = place.directory, .new_name = place.name});
    changed.push_back(parent);
  }

  void change(NameChange change) {
    change.apply([](const NodePtr& directory) -> Names& { return directory->names; });
    store_->unsynced.push_back(std::move(change));
  }

  std::shared_ptr<Store> store_ = std::make_shared<Store>();
};

}  // namespace

std::shared_ptr<CrashingFileSystem> make_crashing_file_system() { return std::make_shared<CrashingFileSystemImpl>(); }

}  // namespace dcp::test
