#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "torch_dcp/tensor/box.h"
#include "torch_dcp/tensor/placement.h"

// How data/layouts.json and data/strided_layouts.json spell sizes and placements.

namespace dcp::test {

inline Sizes sizes_of(const nlohmann::json& numbers) {
  Sizes sizes;
  for (const nlohmann::json& number : numbers) sizes.push_back(number.get<std::int64_t>());
  return sizes;
}

/// "R", "S<dim>" or "SS<dim>:<split factor>".
inline Placement placement_of(const std::string& spelled) {
  if (spelled == "R") return Placement::replicate();
  if (!spelled.starts_with("SS")) return Placement::shard(std::stoll(spelled.substr(1)));
  const std::size_t colon = spelled.find(':');
  return Placement::strided_shard(std::stoll(spelled.substr(2, colon - 2)), std::stoll(spelled.substr(colon + 1)));
}

}  // namespace dcp::test
