// Reads every DCP checkpoint of test/golden/fixtures (or of the folder in DCP_FIXTURES) and compares all that is in it
// with expected.json: once as `dcp dump` sees it, and the tensors again into DTensors on 1 and 3 ranks.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "test/support/expect_error.h"
#include "test/support/rank_runner.h"
#include "tools/dcp/dump.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/format/object_item.h"
#include "torch_dcp/format/object_json.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/state_dict/flatten.h"
#include "torch_dcp/storage/torch_save.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

/// A copy, since the data of a Bazel test are links, which are refused in a checkpoint.
fs::path fixtures_folder() {
  static const fs::path kCopy = [] {
    const char* given = std::getenv("DCP_FIXTURES");
    fs::path copy = fs::path(::testing::TempDir()) / "fixtures";
    fs::remove_all(copy);
    fs::copy(given ? given : "test/golden/fixtures", copy, fs::copy_options::recursive);
    return copy;
  }();
  return kCopy;
}

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fixtures_folder())) {
    const std::string name = entry.path().filename();
    if (fs::exists(entry.path() / "expected.json")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Json read_json(const fs::path& path) {
  std::ifstream in(path);
  return Json::parse(in);
}

void expect_same_entries(const Json& expected, const Json& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  for (const auto& [key, entry] : expected.items()) {
    ASSERT_TRUE(actual.contains(key)) << key;
    for (const auto& [field, value] : entry.items()) {
      ASSERT_TRUE(actual[key].contains(field))
          << key << ": no " << field << " in " << actual[key].dump().substr(0, 300);
      EXPECT_EQ(value, actual[key][field]) << key << ": " << field;
    }
  }
}

std::string hex_of(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.contiguous();
  const auto* bytes = static_cast<const unsigned char*>(plain.const_data_ptr());
  std::string hex;
  for (std::size_t i = 0; i < plain.nbytes(); ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
    hex += digits;
  }
  return hex;
}

/// A CPU tensor from an expected.json entry.
at::Tensor tensor_of(const Json& entry) {
  const ScalarType dtype = named_dtype(entry["dtype"].get<std::string>()).value().dtype;
  at::Tensor tensor = at::empty(entry["shape"].get<std::vector<std::int64_t>>(), dtype);
  const std::string hex = entry["hex"];
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  for (std::size_t i = 0; i < tensor.nbytes(); ++i) bytes[i] = std::stoi(hex.substr(2 * i, 2), nullptr, 16);
  return tensor;
}

class FixturesTest : public ::testing::TestWithParam<std::string> {
 protected:
  fs::path folder() const { return fixtures_folder() / GetParam(); }
  std::string checkpoint() const { return folder() / "ckpt"; }
  Json expected() const { return read_json(folder() / "expected.json"); }
};

/// All tensors of a folder of safetensors, whole.
void expect_safetensors(const std::string& folder, const Json& entries) {
  const Metadata metadata = read_metadata(folder);
  EXPECT_EQ(metadata.state_dict_metadata.size(), entries.size());
  const StateDict state = load_keys(folder);
  for (const auto& [key, entry] : entries.items()) {
    ASSERT_TRUE(state.contains(key)) << key;
    const at::Tensor& tensor = state.at(key).as_tensor();
    EXPECT_EQ(Json(dtype_name(tensor.scalar_type())), entry["dtype"]) << key;
    EXPECT_EQ(Json(tensor.sizes().vec()), entry["shape"]) << key;
    EXPECT_EQ(Json(hex_of(tensor)), entry["hex"]) << key;
  }
}

TEST_P(FixturesTest, DumpTellsWhatIsExpected) {
  const Json expected = this->expected();
  if (expected["kind"] == "hf") {
    // No metadata to dump: the tensors are read, and those that lie below in shards, too.
    expect_safetensors(checkpoint(), expected["entries"]);
    const std::string shards = checkpoint() + "/sharded";
    EXPECT_EQ(fs::exists(shards), GetParam() == "hf_consolidated_2ranks");
    if (fs::exists(shards)) expect_safetensors(shards, expected["entries"]);
    return;
  }
  const Json actual = tool::dump_checkpoint(checkpoint());
  EXPECT_EQ(expected["files"], actual["files"]);
  if (expected.contains("version")) {
    EXPECT_EQ(expected["version"], actual["version"]);
    EXPECT_EQ(expected["has_planner_data"], actual["has_planner_data"]);
  }
  if (expected.contains("entries")) {
    expect_same_entries(expected["entries"], actual["entries"]);
  } else {
    // Two ranks with tensors of different sizes under one key.
    EXPECT_NE(actual["no_entries"].get<std::string>().find("key 'w'"), std::string::npos) << actual["no_entries"];
  }
  if (!expected.contains("ranks")) return;
  for (const auto& [rank, part] : expected["ranks"].items()) {
    SCOPED_TRACE("rank " + rank);
    const Json& entries = actual["ranks"][rank]["entries"];
    if (part.contains("entries")) {
      expect_same_entries(part["entries"], entries);
      continue;
    }
    for (const auto& [key, stored] : part["stored"].items()) EXPECT_EQ(stored, entries[key]["stored"]) << key;
  }
}

/// Loads every tensor, cut along its first dimension over the ranks, and compares each rank's part.
TEST_P(FixturesTest, TensorsLoadIntoShards) {
  const Json expected = this->expected();
  if (!expected.contains("entries")) return;  // ranks that make no whole: read by the dump
  const Json entries = expected["entries"];
  for (const int world_size : {1, 3}) {
    testing::run_ranks(world_size, [&](testing::RankContext& context) {
      const auto mesh = DeviceMesh::make({world_size}, context.rank());
      StateDict state;
      for (const auto& [key, entry] : entries.items()) {
        if (entry["kind"] != "tensor") continue;
        const auto shape = entry["shape"].get<std::vector<std::int64_t>>();
        const ScalarType dtype = named_dtype(entry["dtype"].get<std::string>()).value().dtype;
        const Placement placement = shape.empty() ? Placement::replicate() : Placement::shard(0);
        state[key] = DTensor::empty(Sizes(shape.begin(), shape.end()), dtype, mesh, {placement});
        const at::Tensor local = state[key].as_dtensor().local();
        if (local.nbytes() > 0) std::memset(local.mutable_data_ptr(), 0xab, local.nbytes());
      }
      LoadOptions options;
      LoadPlannerOptions planner_options;
      planner_options.flatten = FlattenRule::kTopLevel;
      planner_options.missing_dtypes_as_bits = true;
      options.planner = std::make_shared<DefaultLoadPlanner>(planner_options);
      if (world_size > 1) options.communicator = std::make_shared<Communicator>(context.communicator());
      if (GetParam() == "dtypes_quantized" && world_size > 1) {
        // A slice would need a part of the quantizer.
        test::expect_error(ErrorKind::kUnsupported, "a slice of a quantized tensor",
                           [&] { load(state, checkpoint(), options); });
        return;
      }
      load(state, checkpoint(), options);
      for (const auto& [key, entry] : entries.items()) {
        if (entry["kind"] != "tensor") continue;
        const DTensor& loaded = state.at(key).as_dtensor();
        if (loaded.local().is_quantized()) {  // on one rank: the whole
          EXPECT_EQ(hex_of(loaded.local()), entry["hex"].get<std::string>()) << key;
          EXPECT_NO_THROW(loaded.local().dequantize()) << key;
          continue;
        }
        const DTensor wanted = DTensor::distribute(tensor_of(entry), mesh, loaded.placements());
        EXPECT_EQ(hex_of(loaded.local()), hex_of(wanted.local())) << key << " on rank " << context.rank();
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, FixturesTest, ::testing::ValuesIn(fixture_names()),
                         [](const auto& info) { return info.param; });

/// The files of torch.save that lie beside a checkpoint and hold the same values.
TEST(TorchSaveFilesTest, HoldWhatIsExpected) {
  std::size_t count = 0;
  for (const std::string& name : fixture_names()) {
    const Json expected = read_json(fixtures_folder() / name / "expected.json");
    if (!expected.contains("extra_files")) continue;
    for (const auto& [file, bytes] : expected["extra_files"].items()) {
      SCOPED_TRACE(name + "/" + file);
      ++count;
      const std::string path = fixtures_folder() / name / file;
      EXPECT_EQ(fs::file_size(path), bytes.get<std::uint64_t>());
      const FlatStateDict flat = flatten_state_dict(torch_load(path).as_dict());
      Json entries = Json::object();
      for (const auto& [key, leaf] : flat) {
        const auto* tensor = std::get_if<at::Tensor>(&leaf.value.storage());
        entries[key] = tensor ? Json{{"kind", "tensor"},
                                     {"dtype", dtype_name(tensor->scalar_type())},
                                     {"shape", tensor->sizes().vec()},
                                     {"hex", hex_of(*tensor)}}
                              : Json{{"kind", "bytes"}, {"value", object_item_to_json(encode_object_item(leaf.value))}};
      }
      Json wanted = expected["entries"];
      for (auto& [key, entry] : wanted.items()) {
        for (const char* field : {"values", "requires_grad", "path", "stored"}) entry.erase(field);
      }
      expect_same_entries(wanted, entries);
    }
  }
  EXPECT_TRUE(std::getenv("DCP_FIXTURES") || count == 3) << count;
}

}  // namespace
}  // namespace dcp
