#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/peer_memory/peer_store_internal.h"

namespace dcp::peer {
namespace {

/// A path's parts.
struct PeerPath {
  std::uint64_t generation = 0;
  std::string name;     ///< empty for the directory
  bool is_new = false;  ///< of `kNewDirectory`: what others have is not asked for
};

/// The memory of all ranks as files: a directory for each generation, and `kNewDirectory`.
class PeerFileSystem final : public FileSystem {
 public:
  explicit PeerFileSystem(std::shared_ptr<PeerStore> store) : store_(std::move(store)) {}

  std::unique_ptr<WritableFile> create_file(const std::string& path, bool exclusive) override {
    const PeerPath parts = parse_file(path);
    DCP_CHECK(parts.generation == store_->writing_generation(), kIo, path,
              ": only the generation that is being saved is written");
    DCP_CHECK(!exclusive || !store_->vault().open(parts.generation, parts.name), kAlreadyExists, path, " is there");
    // What has a name for a while only is copied when it gets its own.
    return store_->create(parts.name, !parts.name.ends_with(".tmp"));
  }

  std::unique_ptr<RandomAccessFile> open_file(const std::string& path, Links) override {
    const PeerPath parts = parse_file(path);
    auto file = open(parts);
    DCP_CHECK(file, kNotFound, path, ": no rank's memory has it");
    return std::make_unique<Opened>(store_, std::move(file));
  }

  FileType file_type(const std::string& path) override {
    const std::optional<PeerPath> parts = parse(path);
    if (!parts) return FileType::kNone;
    if (parts->name.empty()) return FileType::kDirectory;
    return open(*parts) ? FileType::kFile : FileType::kNone;
  }

  std::optional<std::uint64_t> file_size(const std::string& path, Links) override {
    const std::optional<PeerPath> parts = parse(path);
    if (!parts || parts->name.empty()) return std::nullopt;
    const auto file = open(*parts);
    return file ? std::optional(file->size()) : std::nullopt;
  }

  std::vector<std::string> list_directory(const std::string& path) override {
    const std::optional<PeerPath> parts = parse(path);
    DCP_CHECK(parts && parts->name.empty(), kNotFound, path, ": no generation in memory");
    std::set<std::string> names;
    for (const VaultGeneration& generation : store_->vault().list()) {
      if (generation.number != parts->generation) continue;
      for (const VaultFile& file : generation.files) names.insert(file.name);
    }
    const HeldGenerations held = store_->held();
    if (const auto files = held.find(parts->generation); files != held.end()) {
      for (const auto& [name, file] : files->second) names.insert(name);
    }
    return {names.begin(), names.end()};
  }

  std::vector<std::string> create_directories(const std::string&) override { return {}; }

  void remove_file(const std::string& path) override {
    const PeerPath parts = parse_file(path);
    DCP_CHECK(store_->vault().open(parts.generation, parts.name), kNotFound, path, ": not in this rank's memory");
    store_->vault().drop(parts.generation, parts.name);
  }

  void rename_file(const std::string& from, const std::string& to) override {
    const PeerPath source = parse_file(from);
    const auto file = store_->vault().open(source.generation, source.name);
    DCP_CHECK(file, kNotFound, from, ": not in this rank's memory");
    const auto renamed = create_file(to, false);
    constexpr std::uint64_t kPart = std::uint64_t{1} << 20;
    Bytes part;
    for (std::uint64_t at = 0; at < file->size(); at += part.size()) {
      part.resize(std::min(kPart, file->size() - at));
      file->read_at(at, part);
      renamed->append(part);
    }
    renamed->close();
    store_->vault().drop(source.generation, source.name);
  }

  void sync_directory(const std::string&) override {}

 private:
  /// Keeps what it reads from.
  class Opened final : public RandomAccessFile {
   public:
    Opened(std::shared_ptr<PeerStore> store, std::shared_ptr<const RandomAccessFile> file)
        : store_(std::move(store)), file_(std::move(file)) {}
    std::uint64_t size() const override { return file_->size(); }
    void read_at(std::uint64_t offset, MutableByteSpan out) const override { file_->read_at(offset, out); }

   private:
    std::shared_ptr<PeerStore> store_;
    std::shared_ptr<const RandomAccessFile> file_;
  };

  std::shared_ptr<const RandomAccessFile> open(const PeerPath& parts) {
    if (parts.is_new) return store_->vault().open(parts.generation, parts.name);
    return store_->open(parts.generation, parts.name);
  }

  std::optional<PeerPath> parse(std::string_view path) const {
    const std::size_t slash = path.find('/');
    const std::string_view directory = path.substr(0, slash);
    PeerPath parts;
    if (slash != std::string_view::npos) parts.name = path.substr(slash + 1);
    if (parts.name.find('/') != std::string::npos) return std::nullopt;
    if (directory == kNewDirectory) {
      parts.generation = store_->writing_generation();
      parts.is_new = true;
      return parts;
    }
    constexpr std::string_view kPrefix = "generation-";
    if (!directory.starts_with(kPrefix)) return std::nullopt;
    const std::string_view number = directory.substr(kPrefix.size());
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), parts.generation);
    if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
    return parts;
  }

  PeerPath parse_file(const std::string& path) const {
    std::optional<PeerPath> parts = parse(path);
    DCP_CHECK(parts && !parts->name.empty(), kNotFound, path, ": no file of a generation in memory");
    return *std::move(parts);
  }

  std::shared_ptr<PeerStore> store_;
};

}  // namespace

std::shared_ptr<FileSystem> make_peer_file_system(std::shared_ptr<PeerStore> store) {
  return std::make_shared<PeerFileSystem>(std::move(store));
}

}  // namespace dcp::peer
