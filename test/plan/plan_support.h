#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/tensor/box.h"

namespace dcp::test {

/// Expects that `call` throws a `dcp::Error` of `kind` that has all of `texts` in its message.
inline void expect_error_with(ErrorKind kind, std::initializer_list<const char*> texts,
                              const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_STREQ(error_kind_name(error.kind()), error_kind_name(kind)) << message;
    for (const char* text : texts) {
      EXPECT_NE(message.find(text), std::string::npos) << "\"" << text << "\" is not in: " << message;
    }
    return;
  }
  ADD_FAILURE() << "no error, expected " << error_kind_name(kind);
}

/// Cuts `box` at random into at most `count` boxes that tile it, in random order.
inline std::vector<Box> random_tiling(const Box& box, std::size_t count, std::mt19937& random) {
  std::vector<Box> boxes = {box};
  for (std::size_t tries = 4 * count; tries > 0 && boxes.size() < count && box.ndim() > 0; --tries) {
    Box& cut = boxes[random() % boxes.size()];
    const std::size_t dim = random() % box.ndim();
    if (cut.sizes[dim] < 2) continue;
    const auto at = static_cast<std::int64_t>(1 + random() % static_cast<std::size_t>(cut.sizes[dim] - 1));
    Box rest = cut;
    rest.offsets[dim] += at;
    rest.sizes[dim] -= at;
    cut.sizes[dim] = at;
    boxes.push_back(rest);
  }
  std::shuffle(boxes.begin(), boxes.end(), random);
  return boxes;
}

}  // namespace dcp::test
