#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/storage/file_layout_internal.h"
#include "torch_dcp/storage/filesystem_reader.h"

namespace dcp {

bool is_complete(const std::string& path, std::shared_ptr<FileSystem> file_system) {
  const std::shared_ptr<FileSystem> files = file_system ? std::move(file_system) : local_file_system();
  if (files->file_type(path) != FileType::kDirectory) return false;
  FileSystemReader reader(path, {.file_system = files});
  const auto has_all_files = [&](const Metadata& metadata) {
    std::unordered_map<std::string, std::int64_t> ends;
    for (const auto& [index, info] : metadata.storage_data) {
      std::int64_t& end = ends[info.relative_path];
      end = std::max(end, info.offset + info.length);
    }
    return std::all_of(ends.begin(), ends.end(), [&](const auto& entry) {
      const auto size = files->file_size(join_path(path, entry.first), Links::kRefuse);
      return size && *size >= static_cast<std::uint64_t>(entry.second);
    });
  };
  try {
    if (const std::optional<Metadata> metadata = reader.read_metadata()) return has_all_files(*metadata);
    for (const std::string& name : files->list_directory(path)) {
      const std::optional<int> rank = file_layout::rank_of_metadata(name);
      if (rank && !has_all_files(reader.read_rank_metadata(*rank))) return false;
    }
    return true;
  } catch (const Error& error) {
    // "No" is the answer for these, not a failure of the question.
    if (error.kind() == ErrorKind::kIo) throw;
    return false;
  }
}

}  // namespace dcp
