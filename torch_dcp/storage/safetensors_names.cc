#include <algorithm>
#include <cctype>
#include <cstdio>

#include "torch_dcp/storage/safetensors_names_internal.h"

namespace dcp::safetensors_names {
namespace {

constexpr std::size_t kDigits = 5;

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

}  // namespace dcp::safetensors_names
