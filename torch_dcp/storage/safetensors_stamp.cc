#include <charconv>
#include <optional>
#include <string_view>

#include "torch_dcp/base/error.h"
#include "torch_dcp/storage/safetensors_stamp_internal.h"
#include "torch_dcp/storage/save_id_internal.h"

namespace dcp {
namespace {

constexpr const char* kSaveId = "torch_dcp.save_id";
constexpr const char* kFileCount = "torch_dcp.file_count";

std::optional<std::int64_t> parse_count(std::string_view text) {
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool is_count = error == std::errc() && end == text.data() + text.size() && count > 0;
  return is_count ? std::optional(count) : std::nullopt;
}

}  // namespace

OrderedMap<std::string, std::string> stamp_metadata(const SafetensorsStamp& stamp) {
  OrderedMap<std::string, std::string> entries;
  if (!stamp.save_id.empty()) entries.insert(kSaveId, stamp.save_id);
  if (stamp.file_count > 0) entries.insert(kFileCount, std::to_string(stamp.file_count));
  return entries;
}

SafetensorsStamp stamp_of(const SafetensorsHeader& header) {
  SafetensorsStamp stamp;
  if (const std::string* id = header.metadata.find(kSaveId)) {
    DCP_CHECK(is_plain_id(*id), kCorruptData, "its ", kSaveId, " is no id of a save");
    stamp.save_id = *id;
  }
  if (const std::string* text = header.metadata.find(kFileCount)) {
    const std::optional<std::int64_t> count = parse_count(*text);
    DCP_CHECK(count, kCorruptData, "its ", kFileCount, " is no number of files");
    stamp.file_count = *count;
  }
  return stamp;
}

std::string encode_stamp(const SafetensorsStamp& stamp) { return c10::str(stamp.save_id, ' ', stamp.file_count); }

SafetensorsStamp decode_stamp(const std::string& text) {
  const std::size_t blank = text.find(' ');
  const auto count = blank == std::string::npos ? std::nullopt : parse_count(std::string_view(text).substr(blank + 1));
  DCP_CHECK(count, kState, "the plan has not gone through prepare_global_plan");
  return {text.substr(0, blank), *count};
}

std::string spell_save(const std::string& save_id) {
  return save_id.empty() ? "no save that says so" : "save " + save_id;
}

}  // namespace dcp
