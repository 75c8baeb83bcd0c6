#pragma once

#include <charconv>
#include <optional>
#include <string_view>

// What names of a checkpoint's files say here. They are part of the format: see format/FORMAT.md.

namespace dcp::peer {

inline constexpr std::string_view kMetadataName = ".metadata";

/// The rank that wrote a data file, `__<rank>_...`; nothing for other files, which are the coordinator's.
inline std::optional<int> owner_of(std::string_view name) {
  if (!name.starts_with("__")) return std::nullopt;
  name.remove_prefix(2);
  int rank = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), rank);
  const bool is_rank = error == std::errc() && rank >= 0 && end != name.data() + name.size() && *end == '_';
  return is_rank ? std::optional(rank) : std::nullopt;
}

}  // namespace dcp::peer
