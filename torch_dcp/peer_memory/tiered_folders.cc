#include <algorithm>
#include <charconv>

#include "torch_dcp/base/error.h"
#include "torch_dcp/peer_memory/tiered_folders_internal.h"

namespace dcp::tiered {
namespace {

constexpr std::string_view kStep = "{step}";
constexpr std::size_t kDigits = 6;

}  // namespace

StepFolders::StepFolders(const std::string& pattern) {
  const std::size_t at = pattern.find(kStep);
  DCP_CHECK(at != std::string::npos && pattern.find(kStep, at + 1) == std::string::npos &&
                pattern.find('/') == std::string::npos,
            kInvalidArgument, "a folder's name '", pattern, "' needs {step} once, and no slash");
  before_ = pattern.substr(0, at);
  after_ = pattern.substr(at + kStep.size());
}

std::string StepFolders::name_of(std::int64_t step) const {
  std::string digits = std::to_string(step);
  if (digits.size() < kDigits) digits.insert(0, kDigits - digits.size(), '0');
  return before_ + digits + after_;
}

std::optional<std::int64_t> StepFolders::step_of(std::string_view name) const {
  if (name.size() <= before_.size() + after_.size() || !name.starts_with(before_) || !name.ends_with(after_)) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(before_.size(), name.size() - before_.size() - after_.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  // One folder for each step: not `step-7` beside `step-000007`.
  if (name_of(step) != name) return std::nullopt;
  return step;
}

std::vector<StepFolders::Found> StepFolders::list(FileSystem& files, const std::string& directory) const {
  std::vector<Found> found;
  if (files.file_type(directory) != FileType::kDirectory) return found;
  for (const std::string& name : files.list_directory(directory)) {
    if (const std::optional<std::int64_t> step = step_of(name)) found.push_back({*step, name});
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.step > b.step; });
  return found;
}

}  // namespace dcp::tiered
