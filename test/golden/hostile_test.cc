// Reads every case of test/golden/hostile (or of the folder in DCP_HOSTILE) and expects the answer that hostile.json
// asks for, or a stricter refusal: an Error of ours that names file, key and cause, or the right bits; never more than
// a stated amount of memory, which is counted, nor of time.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "test/support/memory_counter.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/state_dict/equal.h"

namespace dcp {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

/// What one load may take at a time, whatever a case says: its largest file has 200 KiB. (One that inflates to 64 MiB
/// and one that grows to 256 MiB are among them.)
constexpr std::int64_t kMaxBytes = std::int64_t{24} << 20;

/// For one load on a busy machine under a sanitizer.
constexpr std::chrono::seconds kMaxTime{10};

enum class Answer { kRefused, kLoaded };

/// What our reader does where both are right: with a flat load of all keys, and when it rebuilds the nested state.
struct Choice {
  Answer flat;
  Answer nested;
};

const std::map<std::string, Choice>& choices() {
  constexpr Choice kRefused{Answer::kRefused, Answer::kRefused};
  constexpr Choice kLoaded{Answer::kLoaded, Answer::kLoaded};
  static const std::map<std::string, Choice> kChoices = {
      {"item_zero_strides", kLoaded},  // what the file says: every element is the first one
      {"zip_twice", kRefused},
      {"zip_two_tops", kRefused},
      {"meta_trailing", kRefused},
      {"meta_extra_field", kLoaded},
      {"meta_version_99", kLoaded},
      {"path_subfolder", kRefused},
      {"object_offset", kRefused},
      {"size_list", kRefused},
      {"size_bool", kRefused},
      {"planner_huge_index", kRefused},
      {"planner_negative_index", kRefused},
      {"planner_conflict", {Answer::kLoaded, Answer::kRefused}},
      {"planner_prefix", {Answer::kLoaded, Answer::kRefused}},
      {"planner_same", {Answer::kLoaded, Answer::kRefused}},
      {"planner_empty_path", kRefused},
      {"planner_root_index", kRefused},
      {"planner_not_tuple", kRefused},
      {"planner_bad_item", kRefused},
  };
  return kChoices;
}

fs::path hostile_folder() {
  if (const char* folder = std::getenv("DCP_HOSTILE")) return folder;
  return "test/golden/hostile";
}

const Json& hostile() {
  static const Json kHostile = [] {
    std::ifstream in(hostile_folder() / "hostile.json");
    return Json::parse(in);
  }();
  return kHostile;
}

struct Case {
  friend std::ostream& operator<<(std::ostream& out, const Case& test_case) { return out << test_case.name; }

  std::string name;
  std::string group;
  std::string answer;
  std::set<std::string> bad_keys;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Json& json : hostile()["cases"]) {
    cases.push_back({json["name"], json["group"], json["answer"], json["bad_keys"].get<std::set<std::string>>()});
  }
  return cases;
}

/// One tensor or object of the sound checkpoint that the cases were made of.
Value good_value(const std::string& key) {
  const Json& good = hostile()["good"][key];
  if (key == "n") return std::stoll(good["v"].get<std::string>());
  if (key == "cfg.k") return good["v"].get<std::string>();
  const std::string hex = good;
  const at::Tensor tensor = key == "w" ? at::empty({4, 3}) : at::empty({6});
  auto* bytes = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  for (std::size_t i = 0; i < tensor.nbytes(); ++i) bytes[i] = std::stoi(hex.substr(2 * i, 2), nullptr, 16);
  return tensor;
}

/// Where a value is loaded to; holds what no case stores.
Value destination(const std::string& key) {
  if (key == "n") return -1;
  if (key == "cfg.k") return "nothing yet";
  const at::Tensor tensor = key == "w" ? at::empty({4, 3}) : at::empty({6});
  std::memset(tensor.mutable_data_ptr(), 0xab, tensor.nbytes());
  return tensor;
}

bool is_same(const Value& a, const Value& b) {
  return first_difference(StateDict{{"value", a}}, StateDict{{"value", b}}).empty();
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Runs `call` and holds it to the bounds. Returns what it threw, which must be an Error; nothing if it did not throw.
template <typename Call>
std::optional<std::string> error_within_bounds(const Call& call) {
  std::optional<std::string> error;
  const auto start = std::chrono::steady_clock::now();
  const testing::PeakMemory peak;
  try {
    call();
  } catch (const Error& caught) {
    error = caught.what_without_backtrace();
    EXPECT_NE(caught.kind(), ErrorKind::kInternal) << *error;
  } catch (const std::exception& caught) {
    error = caught.what();
    ADD_FAILURE() << "not an Error of ours: " << *error;
  }
  EXPECT_LE(peak.bytes(), kMaxBytes);
  EXPECT_LE(std::chrono::steady_clock::now() - start, kMaxTime);
  return error;
}

class HostileTest : public ::testing::TestWithParam<Case> {
 protected:
  /// The case is copied, so that its files are no links, as they may be where a test finds its data.
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("hostile_" + GetParam().name);
    fs::remove_all(folder_);
    fs::copy(hostile_folder() / GetParam().name, folder_, fs::copy_options::recursive);
    fs::create_directories(folder_ / "ckpt");
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string checkpoint() const { return folder_ / "ckpt"; }

  bool is_safetensors() const { return GetParam().group == "safetensors"; }

  /// What the case's checkpoint was made of.
  std::vector<std::string> keys() const {
    return is_safetensors() ? std::vector<std::string>{"w"} : std::vector<std::string>{"w", "v", "n", "cfg.k"};
  }

  StateDict destinations(const std::vector<std::string>& keys) const {
    StateDict state;
    for (const std::string& key : keys) state[key] = destination(key);
    return state;
  }

  /// Loads by flat key.
  std::optional<std::string> load_error(StateDict& state) const {
    LoadOptions options;
    LoadPlannerOptions planner;
    planner.flatten = FlattenRule::kTopLevel;
    options.planner = std::make_shared<DefaultLoadPlanner>(planner);
    return error_within_bounds([&] { load(state, checkpoint(), options); });
  }

  std::optional<std::string> metadata_error() const {
    return error_within_bounds([&] { read_metadata(checkpoint()); });
  }

  std::optional<std::string> nested_error(StateDict& state) const {
    return error_within_bounds([&] { state = load_keys(checkpoint()); });
  }

  /// After an error: each value must be the right one, untouched, or told in the error.
  void expect_no_wrong_values(const StateDict& state, const std::string& error) const {
    for (const auto& [name, value] : state) {
      const std::string& key = std::get<std::string>(name);
      if (is_same(value, destination(key)) || is_same(value, good_value(key))) continue;
      EXPECT_TRUE(contains(error, "changed already") && contains(error, key + " at [")) << key << ": " << error;
    }
  }

  /// All four values of a flat state.
  void expect_loads(const StateDict& state) const {
    for (const auto& [name, value] : state) {
      const std::string& key = std::get<std::string>(name);
      EXPECT_TRUE(is_same(value, wanted(key))) << key;
    }
  }

  /// The same, rebuilt at their paths (in whatever order).
  void expect_rebuilt(const StateDict& state) const {
    EXPECT_EQ(state.size(), 4u);
    for (const std::string key : {"w", "v", "n"}) EXPECT_TRUE(is_same(state.at(key), wanted(key))) << key;
    EXPECT_TRUE(is_same(state.at("cfg").as_dict().at("k"), wanted("cfg.k")));
  }

  Value wanted(const std::string& key) const {
    Value good = good_value(key);
    if (GetParam().name != "item_zero_strides" || key != "w") return good;
    return good.as_tensor().flatten()[0].expand({4, 3}).contiguous();
  }

  fs::path folder_;
};

TEST_P(HostileTest, IsAnsweredAsRequired) {
  const Case& test_case = GetParam();
  const std::optional<std::string> refused = metadata_error();
  if (refused) {
    EXPECT_TRUE(contains(*refused, checkpoint())) << *refused;
  }
  StateDict all = destinations(keys());
  const std::optional<std::string> all_error = load_error(all);
  if (all_error) expect_no_wrong_values(all, *all_error);
  StateDict nested;
  const std::optional<std::string> rebuild_error = nested_error(nested);

  if (test_case.answer == "metadata") {
    EXPECT_TRUE(refused);
    EXPECT_TRUE(all_error);
    EXPECT_TRUE(rebuild_error);
  } else if (test_case.answer == "accept") {
    EXPECT_FALSE(refused) << *refused;
    EXPECT_FALSE(all_error) << *all_error;
    EXPECT_FALSE(rebuild_error) << *rebuild_error;
    expect_loads(all);
    expect_rebuilt(nested);
  } else if (test_case.answer == "either") {
    const auto choice = choices().find(test_case.name);
    if (choice == choices().end()) {
      EXPECT_TRUE(std::getenv("DCP_HOSTILE")) << "what our reader does is not said";
    } else {
      EXPECT_EQ(all_error.has_value(), choice->second.flat == Answer::kRefused) << all_error.value_or("loads");
      EXPECT_EQ(rebuild_error.has_value(), choice->second.nested == Answer::kRefused)
          << rebuild_error.value_or("loads");
    }
    if (!all_error) expect_loads(all);
  } else {
    ASSERT_EQ(test_case.answer, "load");
    EXPECT_TRUE(all_error);
    EXPECT_TRUE(rebuild_error);
  }
}

TEST_P(HostileTest, BadKeysAreNamedAndOthersLoad) {
  const Case& test_case = GetParam();
  if (test_case.answer != "load") return;
  ASSERT_FALSE(test_case.bad_keys.empty());
  const bool is_refused_whole = metadata_error().has_value();
  for (const std::string& key : keys()) {
    SCOPED_TRACE(key);
    const bool is_bad = test_case.bad_keys.contains(key);
    StateDict state = destinations({key});
    const std::optional<std::string> error = load_error(state);
    if (!error) {
      EXPECT_FALSE(is_bad) << "loaded";
      expect_loads(state);
      continue;
    }
    expect_no_wrong_values(state, *error);
    EXPECT_TRUE(is_bad || is_refused_whole) << *error;
    EXPECT_TRUE(contains(*error, checkpoint())) << *error;
    if (is_bad && !is_refused_whole) {
      EXPECT_TRUE(contains(*error, "'" + key) || contains(*error, key + " at [")) << *error;
    }
  }
  if (is_refused_whole) {
    const std::string error = metadata_error().value();
    if (is_safetensors()) {
      EXPECT_TRUE(contains(error, ".safetensors")) << error;
      return;  // a header that cannot be read has no keys
    }
    EXPECT_TRUE(std::any_of(test_case.bad_keys.begin(), test_case.bad_keys.end(), [&](const std::string& key) {
      return contains(error, "'" + key);
    })) << error;
  }
}

INSTANTIATE_TEST_SUITE_P(All, HostileTest, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(HostileListTest, EveryChoiceIsOfACase) {
  if (std::getenv("DCP_HOSTILE")) return;  // another folder may lack some
  std::set<std::string> names;
  for (const Case& test_case : all_cases()) {
    if (test_case.answer == "either") names.insert(test_case.name);
  }
  for (const auto& [name, choice] : choices()) EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_EQ(names.size(), choices().size());
}

}  // namespace
}  // namespace dcp
