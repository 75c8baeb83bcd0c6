#pragma once

#include <cstdint>

namespace dcp::examples {

/// Sizes of a CharTransformer.
struct TransformerSizes {
  std::int64_t layers = 2;
  std::int64_t width = 96;  ///< features of a character; a multiple of `heads`
  std::int64_t heads = 4;
  std::int64_t context = 64;  ///< characters
  double dropout = 0.1;
};

}  // namespace dcp::examples
