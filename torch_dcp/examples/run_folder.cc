#include "torch_dcp/examples/run_folder.h"

#include <charconv>
#include <cstdio>
#include <filesystem>

#include "torch_dcp/storage/filesystem_reader.h"

namespace dcp::examples {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::size_t kDigits = 6;  // at least: names sort as the steps do

/// The step of a checkpoint's folder; nothing for another name.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || stop != end) return std::nullopt;
  return step;
}

}  // namespace

std::string checkpoint_path(const std::string& folder, std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < kDigits) digits.insert(0, kDigits - digits.size(), '0');
  return folder + "/" + std::string(kPrefix) + digits;
}

std::optional<RunCheckpoint> newest_checkpoint(const std::string& folder) {
  std::optional<RunCheckpoint> newest;
  if (!std::filesystem::is_directory(folder)) return newest;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::optional<std::int64_t> step = step_of(entry.path().filename().string());
    if (!step || (newest && newest->step >= *step) || !is_complete(entry.path().string())) continue;
    newest = RunCheckpoint{*step, entry.path().string()};
  }
  return newest;
}

}  // namespace dcp::examples
