#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "test/support/expect_error.h"
#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/error.h"

namespace dcp::test {

inline const std::string kGoldenFolder = "test/golden/fixtures/";

inline Bytes read_golden(const std::string& path) {
  std::ifstream stream(kGoldenFolder + path, std::ios::binary);
  Bytes bytes{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_TRUE(stream.is_open() && !stream.bad()) << path;
  return bytes;
}

inline nlohmann::ordered_json read_expected(const std::string& fixture) {
  const Bytes bytes = read_golden(fixture + "/expected.json");
  return nlohmann::ordered_json::parse(bytes.begin(), bytes.end());
}

/// Names of the golden checkpoints of PyTorch's own format that have one `.metadata`.
inline std::vector<std::string> golden_checkpoints() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kGoldenFolder)) {
    if (!std::filesystem::exists(entry.path() / "ckpt/.metadata")) continue;
    if (read_expected(entry.path().filename())["kind"] == "dcp") names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The shared `expect_error`, with a label for tables of cases.
inline void expect_error(ErrorKind kind, const std::string& text, const std::string& label,
                         const std::function<void()>& call) {
  SCOPED_TRACE(label);
  expect_error(kind, text, call);
}

}  // namespace dcp::test
