#include <algorithm>
#include <cctype>
#include <cstdio>

#include "torch_dcp/storage/safetensors_names_internal.h"
#include "torch_dcp/storage/save_id_internal.h"

namespace dcp::safetensors_names {
namespace {

constexpr std::size_t kDigits = 5;
constexpr std::string_view kTemporarySuffix = ".tmp";

std::string padded(std::int64_t number) {
  const std::string text = std::to_string(number);
  return std::string(kDigits - std::min(kDigits, text.size()), '0') + text;
}

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool take_number(std::string_view& text) {
  std::size_t count = 0;
  while (count < text.size() && std::isdigit(static_cast<unsigned char>(text[count])) != 0) ++count;
  text.remove_prefix(count);
  return count >= kDigits;
}

}  // namespace

std::string data_file_name(std::int64_t number, std::int64_t largest, std::optional<std::int64_t> shard) {
  std::string name = shard ? "shard-" + padded(*shard) + "-" : std::string();
  name += "model-" + padded(number) + "-of-" + padded(largest);
  return name.append(kSuffix);
}

bool is_data_file(std::string_view name) {
  if (take_prefix(name, "shard-") && !(take_number(name) && take_prefix(name, "-"))) return false;
  return take_prefix(name, "model-") && take_number(name) && take_prefix(name, "-of-") && take_number(name) &&
         name == kSuffix;
}

bool is_safetensors_file(std::string_view name) { return name.size() > kSuffix.size() && name.ends_with(kSuffix); }

std::string temporary_name(std::string_view name, std::string_view save_id) {
  std::string temporary(name);
  return temporary.append(".").append(save_id).append(kTemporarySuffix);
}

std::optional<std::string> final_name(std::string_view temporary) {
  if (!temporary.ends_with(kTemporarySuffix)) return std::nullopt;
  temporary.remove_suffix(kTemporarySuffix.size());
  const std::size_t dot = temporary.rfind('.');
  if (dot == std::string_view::npos || !is_plain_id(temporary.substr(dot + 1))) return std::nullopt;
  temporary = temporary.substr(0, dot);
  return is_data_file(temporary) ? std::optional<std::string>(temporary) : std::nullopt;
}

bool is_temporary(std::string_view name) {
  if (final_name(name)) return true;
  if (!name.ends_with(kTemporarySuffix)) return false;
  name.remove_suffix(kTemporarySuffix.size());
  // Data files without an id are of earlier versions.
  return name == kIndex || name == kUnfinished || is_data_file(name);
}

}  // namespace dcp::safetensors_names
