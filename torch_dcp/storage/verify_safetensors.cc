#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_dcp/format/safetensors.h"
#include "torch_dcp/storage/safetensors_marker_internal.h"
#include "torch_dcp/storage/safetensors_names_internal.h"
#include "torch_dcp/storage/safetensors_reader.h"
#include "torch_dcp/storage/verify_internal.h"

namespace dcp {
namespace {

class SafetensorsVerifier {
 public:
  SafetensorsVerifier(const std::string& path, const VerifyOptions& options, std::shared_ptr<FileSystem> files)
      : path_(path), options_(options), files_(std::move(files)) {
    is_directory_ = files_->file_type(path_) == FileType::kDirectory;
  }

  VerifyReport run() {
    std::optional<Metadata> metadata;
    check_whole_file(report_, "", [&] {
      metadata = SafetensorsReader(path_, {.limits = options_.limits, .file_system = files_}).read_metadata();
    });
    if (metadata) {
      count(*metadata);
      Progress(options_, report_.byte_count).add(report_.byte_count);
    } else {
      name_bad_files();
    }
    return std::move(report_);
  }

 private:
  void count(const Metadata& metadata) {
    std::set<std::string> named;
    for (const auto& [key, entry] : metadata.state_dict_metadata) {
      ++report_.tensor_count;
      report_.chunk_count += static_cast<std::int64_t>(std::get<TensorStorageMetadata>(entry).chunks.size());
    }
    for (const auto& [index, info] : metadata.storage_data) {
      report_.byte_count += info.length;
      named.insert(info.relative_path);
    }
    if (is_directory_) {
      // Beside a marker, which says what the checkpoint is, an index is of another one.
      const FoundMarker found = find_safetensors_marker(*files_, path_, options_.limits);
      const bool is_marked = found.state == MarkerState::kComplete;
      const std::string_view record = is_marked ? safetensors_names::kUnfinished : safetensors_names::kIndex;
      const std::vector<std::string> names = files_->list_directory(path_);
      for (const std::string& name : found.marker.files) {
        // Also those that hold no tensor.
        const std::string temporary = safetensors_names::temporary_name(name, found.marker.save_id);
        named.insert(std::binary_search(names.begin(), names.end(), temporary) ? temporary : name);
      }
      for (const std::string& name : names) {
        if (name == record) {
          named.insert(name);
        } else if (!named.contains(name)) {
          report_.strays.push_back(name);
        }
      }
    }
    report_.file_count = static_cast<std::int64_t>(named.size());
  }

  /// The reader's error is of the first file whose header is wrong; each of them is a fault of its own.
  void name_bad_files() {
    // Beside a marker the files of these names are no part of a checkpoint, or the error says it all.
    const std::string marker = join_path(path_, safetensors_names::kUnfinished);
    if (is_directory_ && files_->file_type(marker) != FileType::kNone) return;
    if (!is_directory_) {
      report_.faults.front().file = path_.substr(path_.rfind('/') + 1);
      return;
    }
    const std::string told = report_.faults.front().cause;
    bool is_told_again = false;
    for (const std::string& name : files_->list_directory(path_)) {
      if (!safetensors_names::is_safetensors_file(name)) continue;
      const std::string path = join_path(path_, name);
      if (files_->file_type(path) != FileType::kFile) continue;
      const bool is_sound =
          check_whole_file(report_, name, [&] { read_safetensors_header(*files_->open_file(path), options_.limits); });
      // The reader adds which file it is.
      is_told_again |= !is_sound && told.starts_with(report_.faults.back().cause) && told.find(path) != told.npos;
    }
    if (is_told_again) report_.faults.erase(report_.faults.begin());
  }

  const std::string& path_;
  const VerifyOptions& options_;
  const std::shared_ptr<FileSystem> files_;
  bool is_directory_ = false;
  VerifyReport report_;
};

}  // namespace

VerifyReport verify_safetensors(const std::string& path, const VerifyOptions& options,
                                std::shared_ptr<FileSystem> files) {
  return SafetensorsVerifier(path, options, std::move(files)).run();
}

}  // namespace dcp
