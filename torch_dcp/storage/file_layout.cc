#include <algorithm>
#include <cctype>
#include <charconv>
#include <numeric>

#include "torch_dcp/base/error.h"
#include "torch_dcp/storage/file_layout_internal.h"

namespace dcp::file_layout {
namespace {

constexpr std::string_view kSideFilePrefix = ".torch_dcp-";
constexpr std::string_view kSideFileSuffix = ".json";
constexpr std::string_view kDataSuffix = ".distcp";
constexpr std::string_view kTemporarySuffix = ".tmp";

bool take_digits(std::string_view& text) {
  const auto end = std::find_if_not(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  const bool has_some = end != text.begin();
  text.remove_prefix(static_cast<std::size_t>(end - text.begin()));
  return has_some;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// The beginning of a save id: eight hexadecimal digits.
bool take_tag(std::string_view& text) {
  constexpr std::size_t kTagSize = 8;
  if (text.find_first_not_of("0123456789abcdef") != kTagSize) return false;
  text.remove_prefix(kTagSize);
  return true;
}

bool is_side_file(std::string_view name) {
  return name.starts_with(kSideFilePrefix) && name.ends_with(kSideFileSuffix);
}

/// `__<digits>`, then a side file's name.
bool is_rank_side_file(std::string_view name) {
  return take_prefix(name, "__") && take_digits(name) && is_side_file(name);
}

/// `__<digits>_<digits>` and perhaps `-<tag>`, then the suffix.
bool is_data_file(std::string_view name) {
  if (!take_prefix(name, "__") || !take_digits(name) || !take_prefix(name, "_") || !take_digits(name)) return false;
  return name == kDataSuffix || (take_prefix(name, "-") && take_tag(name) && name == kDataSuffix);
}

std::optional<int> to_rank(std::string_view digits) {
  int rank = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  const bool is_rank = error == std::errc() && end == digits.data() + digits.size() && rank >= 0;
  return is_rank ? std::optional(rank) : std::nullopt;
}

}  // namespace

std::string rank_metadata_name(int rank) { return c10::str("__", rank, kMetadataName); }

std::optional<int> rank_of_metadata(std::string_view name) {
  if (!take_prefix(name, "__") || !name.ends_with(kMetadataName)) return std::nullopt;
  name.remove_suffix(kMetadataName.size());
  return to_rank(name);
}

std::optional<int> rank_of_data_file(std::string_view name) {
  if (!is_data_file(name)) return std::nullopt;
  name.remove_prefix(2);
  return to_rank(name.substr(0, name.find('_')));
}

std::string side_file_name(std::string_view save_id, std::optional<int> rank) {
  return c10::str(rank ? c10::str("__", *rank) : "", kSideFilePrefix, save_id, kSideFileSuffix);
}

std::string data_file_name(int rank, std::size_t number, std::string_view tag) {
  return tag.empty() ? c10::str("__", rank, "_", number, kDataSuffix)
                     : c10::str("__", rank, "_", number, "-", tag, kDataSuffix);
}

bool is_checkpoint_file(std::string_view name) {
  if (name.ends_with(kTemporarySuffix)) name.remove_suffix(kTemporarySuffix.size());
  return name == kMetadataName || rank_of_metadata(name) || is_data_file(name) || is_side_file(name) ||
         is_rank_side_file(name);
}

std::vector<std::vector<std::size_t>> split_into_bins(const SavePlan& plan, std::size_t bin_count) {
  DCP_CHECK(bin_count > 0, kInvalidArgument, "a rank needs at least one file");
  std::vector<std::size_t> objects;
  std::vector<std::size_t> tensors;
  for (std::size_t i = 0; i < plan.items.size(); ++i) (plan.items[i].is_tensor() ? tensors : objects).push_back(i);

  std::vector<std::vector<std::size_t>> bins(bin_count);
  for (std::size_t i = 0; i < objects.size(); ++i) bins[i % bin_count].push_back(objects[i]);
  if (bin_count > 1) {
    std::stable_sort(tensors.begin(), tensors.end(), [&](std::size_t a, std::size_t b) {
      return plan.items[a].byte_size() > plan.items[b].byte_size();
    });
  }
  std::vector<std::int64_t> loads(bin_count, 0);
  for (const std::size_t tensor : tensors) {
    const auto lightest = static_cast<std::size_t>(std::min_element(loads.begin(), loads.end()) - loads.begin());
    bins[lightest].push_back(tensor);
    loads[lightest] += plan.items[tensor].byte_size();
  }
  return bins;
}

}  // namespace dcp::file_layout
