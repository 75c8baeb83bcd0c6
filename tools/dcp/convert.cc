#include "tools/dcp/convert.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "tools/dcp/source.h"
#include "tools/dcp/stream_save_planner.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/storage/safetensors_folder_writer.h"
#include "torch_dcp/storage/torch_save.h"
#include "torch_dcp/storage/verify.h"
#include "torch_dcp/tensor/box_pieces.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp::tool {
namespace {

/// Refuses what must not be overwritten, and removes what an error leaves of a directory that was made for it.
class DestinationGuard {
 public:
  DestinationGuard(std::string path, CheckpointKind kind, bool is_directory, bool overwrite) : path_(std::move(path)) {
    const auto files = local_file_system();
    const FileType type = files->file_type(path_);
    was_there_ = type != FileType::kNone;
    if (!was_there_) return;
    const FileType wanted = is_directory ? FileType::kDirectory : FileType::kFile;
    DCP_CHECK(type == wanted, kAlreadyExists, path_, " is there, and is no ", is_directory ? "directory" : "file");
    const bool is_empty = is_directory && files->list_directory(path_).empty();
    DCP_CHECK(overwrite || is_empty, kAlreadyExists, path_, " is there already (--overwrite would replace it)");
    // A save of the one kind removes no files of the other, and readers of those would go on finding them.
    const bool has_other = kind == CheckpointKind::kDcp && is_directory &&
                           find_checkpoint_kind(path_, *files) == CheckpointKind::kSafetensors;
    DCP_CHECK(!has_other, kAlreadyExists, path_, ": there are safetensors, which DCP would not replace");
  }
  DestinationGuard(const DestinationGuard&) = delete;
  DestinationGuard& operator=(const DestinationGuard&) = delete;
  ~DestinationGuard() {
    if (is_done_ || was_there_) return;
    // Fails if somebody else has put something into it; then it stays.
    std::error_code ignored;
    if (std::filesystem::is_directory(path_, ignored)) std::filesystem::remove(path_, ignored);
  }

  void done() { is_done_ = true; }

 private:
  std::string path_;
  bool was_there_ = false;
  bool is_done_ = false;
};

/// The place where a file is written would be the source itself.
void check_not_beside(const std::string& source, const std::string& destination) {
  std::error_code ignored;  // of files that are not there
  DCP_CHECK(!std::filesystem::equivalent(source, destination + ".tmp", ignored), kInvalidArgument, destination,
            " is first written as ", destination, ".tmp, which is the source");
}

/// A file that is written beside its name and gets it when it is complete.
class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {}
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    std::error_code ignored;
    if (!is_committed_) std::filesystem::remove(temporary_, ignored);
  }

  const std::string& temporary() const { return temporary_; }

  void commit() {
    const auto files = local_file_system();
    files->rename_file(temporary_, path_);
    is_committed_ = true;
    files->sync_directory(parent_path(path_));
  }

 private:
  std::string path_;
  std::string temporary_;
  bool is_committed_ = false;
};

void check_source(const std::string& path, const ConvertOptions& options) {
  VerifyOptions verify_options;
  verify_options.thread_count = options.threads;
  verify_options.on_progress = options.on_check;
  verify_options.follow_links = options.follow_links;
  const VerifyReport report = verify(path, verify_options);
  if (report.is_sound()) return;
  std::string lines;
  for (const VerifyFault& fault : report.faults) {
    lines += "\n  ";
    if (!fault.file.empty()) lines += fault.file + ": ";
    if (!fault.key.empty()) lines += fault.key + ": ";
    lines += fault.cause;
  }
  throw Error(report.faults.front().kind,
              c10::str("cannot convert ", path, ", ", report.faults.size(),
                       report.faults.size() == 1 ? " fault:" : " faults:", lines),
              DCP_WHERE);
}

class Conversion {
 public:
  Conversion(Source& source, std::string destination, const ConvertOptions& options, ConvertReport& report)
      : source_(source), destination_(std::move(destination)), options_(options), report_(report) {
    for (const auto& [key, leaf] : source_.leaves()) {
      if (!leaf.value.is_tensor()) {
        ++report_.object_count;
        continue;
      }
      ++report_.tensor_count;
      const at::Tensor& tensor = leaf.value.as_tensor();
      report_.byte_count += tensor.numel() * element_bytes(tensor.scalar_type());
    }
  }

  void to_dcp() {
    SaveOptions options;
    options.planner = std::make_shared<StreamSavePlanner>(source_, options_.max_chunk_bytes,
                                                          [this](std::int64_t bytes) { count_done(bytes); });
    save(StateDict(), destination_, options, FileSystemWriterOptions());
  }

  void to_safetensors() {
    drop_unless([](const Value& value) { return value.is_tensor(); }, "safetensors hold nothing but tensors");
    std::vector<SafetensorsSpec> specs;
    for (const auto& [key, leaf] : source_.leaves()) {
      if (!leaf.value.is_tensor()) continue;
      const at::Tensor& tensor = leaf.value.as_tensor();
      specs.push_back({key, tensor.scalar_type(), Sizes(tensor.sizes()), std::nullopt});
    }
    if (destination_.ends_with(".safetensors")) {
      const auto files = local_file_system();
      files->create_directories(parent_path(destination_));
      NewFile file(destination_);
      SafetensorsFileWriter writer(*files, file.temporary(), std::move(specs));
      write_elements(writer);
      file.commit();
      return;
    }
    SafetensorsFolderWriter folder(destination_, {.overwrite = options_.overwrite, .file_count = 1});
    const auto writer = folder.begin_file(safetensors_file_name(1, 1), std::move(specs));
    write_elements(*writer);
    folder.commit();
  }

  void to_torch_save() {
    drop_unless([](const Value& value) { return value.kind() != ValueKind::kOpaque; },
                "objects of these types are not understood here and cannot be put among others");
    local_file_system()->create_directories(parent_path(destination_));
    StateDict state = source_.state();
    for (const Path& path : dropped_) drop_element(state, path);
    std::unordered_map<const void*, const std::string*> keys;
    for (const auto& [key, leaf] : source_.leaves()) {
      if (leaf.value.is_tensor()) keys.emplace(leaf.value.as_tensor().unsafeGetTensorImpl(), &key);
    }
    TorchFileWriter writer(Value(std::move(state)), destination_);
    while (const at::Tensor* awaited = writer.awaited()) {
      const std::string& key = *keys.at(awaited->unsafeGetTensorImpl());
      read_pieces(key, [&](ByteSpan bytes) { writer.write_part(bytes); });
    }
    writer.commit();
  }

 private:
  /// Drops what the destination cannot hold, or refuses to.
  template <typename Predicate>
  void drop_unless(const Predicate& can_hold, const std::string& why) {
    FaultList faults;
    for (const auto& [key, leaf] : source_.leaves()) {
      if (can_hold(leaf.value)) continue;
      faults.add(ErrorKind::kUnsupported, key, "a " + spell_kind(leaf.value));
      report_.dropped.push_back(key + ": " + spell_kind(leaf.value));
      dropped_.push_back(leaf.path);
    }
    if (!options_.drop_objects) faults.throw_if_any(why + " (--drop-objects leaves the others out)", DCP_WHERE);
    report_.object_count -= static_cast<std::int64_t>(dropped_.size());
  }

  static std::string spell_kind(const Value& value) {
    return value.kind() == ValueKind::kOpaque ? value.as_opaque().type_name : value_kind_name(value.kind());
  }

  static void drop_element(StateDict& state, const Path& path) {
    const Path above(path.begin(), path.end() - 1);
    Value* container = above.empty() ? nullptr : get_element(state, above);
    if (container != nullptr && container->is_list()) {
      container->as_list()[static_cast<std::size_t>(path.back().index)] = Value();  // the others keep their positions
      return;
    }
    Dict& dict = container != nullptr ? container->as_dict() : state;
    const bool is_int = path.back().step == PathStep::kDictIntKey;
    dict.erase(is_int ? Key(path.back().index) : Key(path.back().key));
  }

  void write_elements(SafetensorsFileWriter& writer) {
    const std::vector<SafetensorsSpec> order = writer.order();
    for (const SafetensorsSpec& spec : order) {
      read_pieces(spec.name, [&](ByteSpan bytes) { writer.append_bytes(bytes); });
    }
    writer.close();
  }

  template <typename Use>
  void read_pieces(const std::string& key, const Use& use) {
    const at::Tensor& tensor = source_.leaves().find(key)->value.as_tensor();
    const std::int64_t most = source_.is_costly_in_parts(key) ? INT64_MAX : options_.max_piece_bytes;
    for (const Box& box : cut_into_pieces(Sizes(tensor.sizes()), element_bytes(tensor.scalar_type()), most)) {
      const at::Tensor piece = source_.read(key, box);
      use({static_cast<const std::uint8_t*>(piece.const_data_ptr()), piece.nbytes()});
      count_done(static_cast<std::int64_t>(piece.nbytes()));
    }
  }

  void count_done(std::int64_t bytes) {
    done_bytes_ += bytes;
    if (done_bytes_ == report_.byte_count) source_.check_unchanged();  // all is read, and nothing committed
    if (options_.on_convert) options_.on_convert(done_bytes_, report_.byte_count);
  }

  Source& source_;
  std::string destination_;
  const ConvertOptions& options_;
  ConvertReport& report_;
  std::vector<Path> dropped_;
  std::int64_t done_bytes_ = 0;
};

}  // namespace

CheckpointKind kind_of_destination(const std::string& path) {
  constexpr std::array<const char*, 3> kTorchSuffixes = {".pt", ".pth", ".bin"};
  if (path.ends_with(".safetensors")) return CheckpointKind::kSafetensors;
  const bool is_torch = std::any_of(kTorchSuffixes.begin(), kTorchSuffixes.end(),
                                    [&](const char* suffix) { return path.ends_with(suffix); });
  return is_torch ? CheckpointKind::kTorchSave : CheckpointKind::kDcp;
}

ConvertReport convert_checkpoint(const std::string& source_path, const std::string& destination,
                                 const ConvertOptions& options) {
  ConvertReport report;
  const std::optional<CheckpointKind> from = find_checkpoint_kind(source_path, *local_file_system());
  DCP_CHECK(from, kNotFound, source_path, " is no checkpoint");
  report.from = *from;
  report.to = options.to ? *options.to : kind_of_destination(destination);
  const bool is_one_file = report.to == CheckpointKind::kTorchSave ||
                           (report.to == CheckpointKind::kSafetensors && destination.ends_with(".safetensors"));
  if (is_one_file) check_not_beside(source_path, destination);
  DestinationGuard guard(destination, report.to, !is_one_file, options.overwrite);
  check_source(source_path, options);
  const std::unique_ptr<Source> source =
      open_source(source_path, report.from, {options.follow_links, options.drop_objects});
  report.dropped = source->skipped();
  Conversion conversion(*source, destination, options, report);
  switch (report.to) {
    case CheckpointKind::kDcp:
      conversion.to_dcp();
      break;
    case CheckpointKind::kSafetensors:
      conversion.to_safetensors();
      break;
    case CheckpointKind::kTorchSave:
      conversion.to_torch_save();
      break;
  }
  guard.done();
  return report;
}

}  // namespace dcp::tool
