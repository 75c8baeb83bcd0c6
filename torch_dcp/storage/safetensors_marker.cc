#include <string_view>
#include <unordered_set>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/storage/safetensors_marker_internal.h"
#include "torch_dcp/storage/safetensors_names_internal.h"
#include "torch_dcp/storage/save_id_internal.h"

namespace dcp {
namespace {

/// Read as a length, the first 8 bytes are far beyond every file.
constexpr std::string_view kFirstLine = "unfinished: a save into this folder has not come to its end";
constexpr std::string_view kSavePrefix = "save ";

std::string last_line(std::size_t count) { return c10::str("the ", count, " files above are complete"); }

/// The text's next line, which must have an end.
std::optional<std::string_view> take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return line;
}

}  // namespace

Bytes encode_safetensors_marker(const SafetensorsMarker& marker) {
  std::string text = c10::str(kFirstLine, '\n', kSavePrefix, marker.save_id, '\n');
  for (const std::string& name : marker.files) text += name + '\n';
  text += last_line(marker.files.size()) + '\n';
  return Bytes(text.begin(), text.end());
}

std::optional<SafetensorsMarker> decode_safetensors_marker(ByteSpan bytes) {
  std::string_view text = as_text(bytes);
  if (take_line(text) != kFirstLine) return std::nullopt;
  const std::optional<std::string_view> save = take_line(text);
  if (!save || !save->starts_with(kSavePrefix)) return std::nullopt;
  SafetensorsMarker marker;
  marker.save_id = save->substr(kSavePrefix.size());
  if (!is_plain_id(marker.save_id)) return std::nullopt;
  std::unordered_set<std::string_view> names;
  std::optional<std::string_view> line = take_line(text);
  for (; line && safetensors_names::is_data_file(*line); line = take_line(text)) {
    if (!names.insert(*line).second) return std::nullopt;
    marker.files.emplace_back(*line);
  }
  if (line != last_line(names.size()) || !text.empty()) return std::nullopt;
  return marker;
}

FoundMarker find_safetensors_marker(FileSystem& files, const std::string& directory, const ParseLimits& limits) {
  const std::string path = join_path(directory, safetensors_names::kUnfinished);
  const FileType type = files.file_type(path);
  if (type == FileType::kNone) return {};
  const std::optional<std::uint64_t> size = files.file_size(path);
  if (type != FileType::kFile || (size && *size > limits.max_header_bytes)) return {MarkerState::kNoList};
  try {
    std::optional<SafetensorsMarker> marker =
        decode_safetensors_marker(read_whole_file(files, path, limits.max_header_bytes));
    if (!marker) return {MarkerState::kNoList};
    return {MarkerState::kComplete, *std::move(marker)};
  } catch (const Error& error) {
    // The save has come to its end in between.
    if (error.kind() == ErrorKind::kNotFound) return {};
    throw;
  }
}

}  // namespace dcp
