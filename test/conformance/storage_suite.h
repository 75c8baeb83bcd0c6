#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "test/conformance/storage_steps.h"
#include "test/support/expect_error.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/plan/read_items.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/tensor/dtensor.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/tensor/local_chunks.h"
#include "torch_dcp/tensor/sharded_tensor.h"

/// What every pair of a StorageWriter and a StorageReader must do. A test includes this file once and instantiates
/// `StorageSuite` with the pairs it has:
///
///     INSTANTIATE_TEST_SUITE_P(All, StorageSuite, ::testing::Values(...), case_name);
namespace dcp::test {

struct StorageCase {
  std::string name;
  std::function<StoragePlace()> make_place;
  int max_ranks = 3;             ///< that can save one checkpoint, each with parts of tensors
  bool holds_objects = true;     ///< off: they are refused
  bool holds_many_parts = true;  ///< off: several parts of a tensor from one rank are refused
  /// Those that it does not hold are refused.
  std::function<bool(c10::ScalarType)> holds_dtype = [](c10::ScalarType) { return true; };
  /// Off: the old checkpoint is gone before the new one is there.
  bool replaces = true;
  bool saves_alone = true;  ///< without collectives each rank has a part of its own
  /// A reader says what a save beside it has done: it gives the old checkpoint once it has checked, and kState before.
  bool tells_replacement = true;
  bool keeps_last = false;  ///< The checkpoint before lies beside the new one until the next save.
};

inline std::string case_name(const ::testing::TestParamInfo<StorageCase>& info) { return info.param.name; }

inline void PrintTo(const StorageCase& storage, std::ostream* out) { *out << storage.name; }

/// Reads boxes of one tensor into the middle of larger tensors.
class BoxPlanner final : public LoadPlanner {
 public:
  BoxPlanner(std::string key, std::vector<Box> boxes) : key_(std::move(key)), boxes_(std::move(boxes)) {}

  void set_up(StateDict&, const Metadata& metadata, const LoadPlannerContext&) override {
    stored_ = std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find(key_));
    for (std::size_t number = 0; number < boxes_.size(); ++number) {
      Sizes sizes = boxes_[number].sizes;
      // Around every other one there is room in the first dimension only, which leaves it contiguous.
      for (std::size_t d = 0; d < (number % 2 == 0 ? std::min<std::size_t>(1, sizes.size()) : sizes.size()); ++d) {
        sizes[d] += 2;
      }
      outer_.push_back(at::empty(sizes, stored_.properties.dtype));
      std::memset(outer_.back().mutable_data_ptr(), kBlank, outer_.back().nbytes());
    }
  }

  LoadPlan create_local_plan() override {
    LoadPlan plan;
    for (std::size_t number = 0; number < boxes_.size(); ++number) {
      for (ReadItem& item : create_read_items(key_, stored_, {boxes_[number]})) {
        item.dest_index.index = static_cast<std::int64_t>(number);
        plan.items.push_back(std::move(item));
      }
    }
    item_count_ = plan.items.size();
    return plan;
  }
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> plans) override { return plans; }
  LoadPlan finish_plan(LoadPlan plan) override { return plan; }

  at::Tensor resolve_tensor(const ReadItem& item) override {
    at::Tensor tensor = inner(static_cast<std::size_t>(*item.dest_index.index));
    for (std::size_t d = 0; d < item.lengths.size(); ++d) {
      tensor = tensor.narrow(static_cast<std::int64_t>(d), item.dest_offsets[d], item.lengths[d]);
    }
    return tensor;
  }
  void commit_tensor(const ReadItem&, const at::Tensor&) override { ++commit_count_; }
  void load_object(const ReadItem&, Value) override { ADD_FAILURE() << "no object was asked for"; }

  /// Compares all with the whole tensor.
  void commit_objects() override {
    EXPECT_EQ(commit_count_, item_count_) << "items were not committed once each";
    for (std::size_t number = 0; number < boxes_.size(); ++number) {
      at::Tensor wanted = whole;
      for (std::size_t d = 0; d < boxes_[number].ndim(); ++d) {
        wanted = wanted.narrow(static_cast<std::int64_t>(d), boxes_[number].offsets[d], boxes_[number].sizes[d]);
      }
      EXPECT_EQ(first_difference(inner(number), wanted), "") << key_ << " " << to_string(boxes_[number]);
      const at::Tensor blank = at::empty_like(outer_[number]);
      std::memset(blank.mutable_data_ptr(), kBlank, blank.nbytes());
      at::Tensor around = outer_[number].clone();
      inner_of(around, boxes_[number]).copy_(inner_of(blank, boxes_[number]));
      EXPECT_TRUE(bit_equal(around, blank)) << key_ << ": bytes around " << to_string(boxes_[number]) << " changed";
    }
  }

  at::Tensor whole;
  static constexpr int kBlank = 0xAB;

 private:
  at::Tensor inner(std::size_t number) const { return inner_of(outer_[number], boxes_[number]); }

  static at::Tensor inner_of(at::Tensor outer, const Box& box) {
    for (std::size_t d = 0; d < box.ndim(); ++d) {
      const auto dim = static_cast<std::int64_t>(d);
      if (outer.size(dim) != box.sizes[d]) outer = outer.narrow(dim, 1, box.sizes[d]);
    }
    return outer;
  }

  std::string key_;
  std::vector<Box> boxes_;
  TensorStorageMetadata stored_;
  std::vector<at::Tensor> outer_;
  std::size_t item_count_ = 0;
  std::atomic<std::size_t> commit_count_ = 0;
};

class StorageSuite : public ::testing::TestWithParam<StorageCase> {
 protected:
  using States = std::vector<StateDict>;

  void SetUp() override { place_ = GetParam().make_place(); }

  const StoragePlace& place() const { return place_; }
  /// Ranks of a save by several.
  static int several() { return std::min(3, GetParam().max_ranks); }

  static at::Tensor numbers(c10::IntArrayRef sizes, int version) {
    return at::arange(c10::multiply_integers(sizes), at::kFloat).view(sizes) + 1000 * version;
  }

  /// What a rank has: parts of tensors, tensors and values that all have, and, if wanted, a tensor of its own. No bit
  /// is alike in two versions, but for the empty tensor.
  static StateDict state(int version, int rank, int world_size, bool with_own = true) {
    const auto part = [&](const at::Tensor& whole, std::int64_t dim) -> Value {
      if (world_size == 1) return whole;
      return DTensor::distribute(whole, DeviceMesh::make({world_size}, rank), {Placement::shard(dim)});
    };
    StateDict state = {{"rows", part(numbers({7, 5}, version), 0)},
                       {"columns", part(numbers({6, 9}, version).to(at::kDouble), 1)},
                       {"large", part(numbers({300, 500}, version), 0)},
                       {"copied", numbers({3}, version).to(at::kLong)},
                       {"scalar", at::full({}, version + 0.5, at::kDouble)},
                       {"empty", at::empty({0, 4})}};
    if (with_own) state[c10::str("of rank ", rank)] = numbers({100 + rank}, version + rank);
    if (GetParam().holds_objects) {
      state["step"] = version;
      state["nested"] = Dict{{"text", c10::str("version ", version)}, {"pair", Tuple{version, 2.5 * version}}};
    }
    return state;
  }

  static States states(int version, int world_size, bool with_own = true) {
    States states;
    for (int rank = 0; rank < world_size; ++rank) states.push_back(state(version, rank, world_size, with_own));
    return states;
  }

  /// Destinations of the same form without anything of it.
  static States blanks(int world_size, bool with_own = true) {
    States blank = states(0, world_size, with_own);
    for (StateDict& own : blank) make_blank(own);
    return blank;
  }

  static void make_blank(StateDict& state) {
    for (auto& [key, value] : state) {
      if (value.is_dict()) {
        make_blank(value.as_dict());
      } else if (value.is_tensor_like()) {
        for (const LocalChunk& chunk : local_chunks(value.as_tensor_like())) {
          if (chunk.view.numel() > 0) {
            std::memset(chunk.view.mutable_data_ptr(), BoxPlanner::kBlank, chunk.view.nbytes());
          }
        }
      } else {
        value = None();
      }
    }
  }

  static std::string difference(const States& a, const States& b) {
    for (std::size_t rank = 0; rank < a.size(); ++rank) {
      const std::string text = first_difference(Value(a[rank]), Value(b.at(rank)));
      if (!text.empty()) return c10::str("rank ", rank, ": ", text);
    }
    return "";
  }

  /// The place has exactly this version, saved by `saved` ranks.
  void expect_version(int version, int saved) {
    SCOPED_TRACE(c10::str("version ", version));
    EXPECT_EQ(difference(LoadingRanks(place_, saved).load(blanks(saved)), states(version, saved)), "");
    if (place_.is_complete) {
      EXPECT_TRUE(place_.is_complete());
    }
  }

  void expect_nothing() {
    expect_error(ErrorKind::kNotFound, "incomplete checkpoint", [&] { LoadingRanks(place_, 1).read_metadata(); });
    expect_error(ErrorKind::kNotFound, place_.name, [&] { LoadingRanks(place_, 1).read_metadata(); });
    if (place_.is_complete) {
      EXPECT_FALSE(place_.is_complete());
    }
  }

  /// While a save over this version has not been committed.
  void expect_before_commit(int version, int saved) {
    if (GetParam().replaces) {
      expect_version(version, saved);
    } else {
      expect_nothing();
    }
  }

  /// Where a reader finds the tensor's first chunk.
  StorageInfo first_chunk(const std::string& key, std::size_t ndim) {
    const Metadata metadata = *LoadingRanks(place_, 1).read_metadata();
    const std::optional<StorageInfo> info = metadata.storage_data.find({key, Sizes(ndim, 0), {}});
    DCP_CHECK(info, kInternal, key, " has no place in the metadata");
    return *info;
  }

  static std::multiset<std::string> names_of(const std::vector<WriteItem>& items) {
    std::multiset<std::string> names;
    for (const WriteItem& item : items) names.insert(to_string(item.index));
    return names;
  }

  StoragePlace place_;
};

/// Says when to stop.
class Stop {
 public:
  std::function<void()> asked() {
    return [this] {
      ++calls;
      DCP_CHECK(!is_set, kCancelled, "another rank has failed");
    };
  }
  std::atomic<bool> is_set = false;
  std::atomic<int> calls = 0;
};

TEST_P(StorageSuite, NothingIsThereBeforeTheFirstSave) {
  EXPECT_TRUE(place().contents().empty());
  expect_nothing();
  EXPECT_TRUE(place().contents().empty()) << "the question has left something";
}

TEST_P(StorageSuite, ASaveComesBack) {
  const Metadata metadata = SavingRanks(place(), 1).save(states(1, 1));
  EXPECT_FALSE(place().contents().empty());
  expect_version(1, 1);
  LoadingRanks ranks(place(), 1);
  EXPECT_NE(ranks.reader(0).place().find(place().name), std::string::npos);
  const Metadata found = *ranks.read_metadata();
  std::set<std::string> keys;
  for (const auto& [key, entry] : metadata.state_dict_metadata) keys.insert(key);
  for (const auto& [key, entry] : found.state_dict_metadata) {
    EXPECT_EQ(keys.erase(key), 1u) << key;
    const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
    if (!tensor) continue;
    const auto& saved = std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find(key));
    EXPECT_EQ(tensor->size, saved.size) << key;
    EXPECT_EQ(tensor->chunks, saved.chunks) << key;
    EXPECT_EQ(tensor->properties.dtype, saved.properties.dtype) << key;
  }
  EXPECT_TRUE(keys.empty()) << *keys.begin() << " was saved and is not found";
}

TEST_P(StorageSuite, SeveralRanksMakeOneCheckpoint) {
  const int saved = several();
  SavingRanks(place(), saved).save(states(1, saved));
  expect_version(1, saved);
  for (const int loaded : {1, 2, 4}) {
    EXPECT_EQ(difference(LoadingRanks(place(), loaded).load(blanks(loaded, /*with_own=*/false)),
                         states(1, loaded, /*with_own=*/false)),
              "")
        << loaded << " ranks";
  }
}

TEST_P(StorageSuite, ASaveOfNothingIsACheckpoint) {
  SavingRanks(place(), 1).save({StateDict()});
  const std::optional<Metadata> metadata = LoadingRanks(place(), 1).read_metadata();
  ASSERT_TRUE(metadata);
  EXPECT_TRUE(metadata->state_dict_metadata.empty());
  if (place().is_complete) {
    EXPECT_TRUE(place().is_complete());
  }
}

TEST_P(StorageSuite, EveryDtypeComesBackOrIsRefusedByName) {
  using enum c10::ScalarType;
  StateDict held;
  StateDict refused;
  std::vector<std::string> refused_keys;
  for (const c10::ScalarType dtype : {Bool,          Byte,          Char,        Short,           Int,
                                      Long,          Half,          BFloat16,    Float,           Double,
                                      UInt16,        UInt32,        UInt64,      ComplexHalf,     ComplexFloat,
                                      ComplexDouble, Float8_e4m3fn, Float8_e5m2, Float8_e4m3fnuz, Float8_e5m2fnuz}) {
    const at::Tensor tensor = at::empty({5, 3}, dtype);
    auto* bytes = static_cast<std::uint8_t*>(tensor.mutable_data_ptr());
    for (std::size_t i = 0; i < tensor.nbytes(); ++i) bytes[i] = dtype == Bool ? i % 2 : (i * 53 + 7) % 256;
    (GetParam().holds_dtype(dtype) ? held : refused)["of " + dtype_name(dtype)] = tensor;
    if (!GetParam().holds_dtype(dtype)) refused_keys.push_back("of " + dtype_name(dtype));
  }
  SavingRanks(place(), 1).save({held});
  StateDict destinations;
  for (const auto& [key, value] : held) {
    destinations[key] = at::empty_like(value.as_tensor());
    std::memset(destinations[key].as_tensor().mutable_data_ptr(), 1, value.as_tensor().nbytes());
  }
  EXPECT_EQ(difference(LoadingRanks(place(), 1).load({destinations}), {held}), "");

  const auto before = place().contents();
  SavingRanks ranks(place(), 1);
  for (const std::string& key : refused_keys) {
    expect_error(ErrorKind::kUnsupported, key, [&] { ranks.plan({refused}); });
  }
  EXPECT_EQ(place().contents(), before) << "something was written before the refusal";
}

TEST_P(StorageSuite, ObjectsComeBackOrAreRefusedByName) {
  const StateDict objects = {{"none", None()},
                             {"flag", true},
                             {"int", std::int64_t{1} << 40},
                             {"double", 0.1},
                             {"text", "gr\xC3\xBC\xC3\x9F"},
                             {"bytes", Bytes{0, 255, 10}},
                             {"pair", Tuple{1, "x"}}};
  SavingRanks ranks(place(), 1);
  if (GetParam().holds_objects) {
    ranks.save({objects});
    StateDict destinations = objects;
    for (auto& [key, value] : destinations) value = None();
    EXPECT_EQ(difference(LoadingRanks(place(), 1).load({destinations}), {objects}), "");
    return;
  }
  for (const auto& [key, value] : objects) {
    expect_error(ErrorKind::kUnsupported, std::get<std::string>(key), [&] { ranks.plan({objects}); });
  }
  EXPECT_TRUE(place().contents().empty()) << "something was written before the refusal";
}

TEST_P(StorageSuite, ReadsFillExactlyTheWantedBoxes) {
  const int saved = several();
  const at::Tensor cube = numbers({9, 14, 11}, 1);
  const at::Tensor tall = numbers({4000, 9}, 2);
  const at::Tensor scalar = numbers({}, 3);
  States all;
  for (int rank = 0; rank < saved; ++rank) {
    const auto mesh = DeviceMesh::make({saved}, rank);
    StateDict own = {{"scalar", scalar}};
    own["cube"] = saved == 1 ? Value(cube) : Value(DTensor::distribute(cube, mesh, {Placement::shard(1)}));
    own["tall"] = saved == 1 ? Value(tall) : Value(DTensor::distribute(tall, mesh, {Placement::shard(0)}));
    all.push_back(std::move(own));
  }
  SavingRanks(place(), saved).save(std::move(all));

  const auto expect_boxes = [&](const std::string& key, const at::Tensor& whole, std::vector<Box> boxes) {
    auto planner = std::make_unique<BoxPlanner>(key, std::move(boxes));
    planner->whole = whole;
    std::vector<std::unique_ptr<LoadPlanner>> planners;
    planners.push_back(std::move(planner));
    LoadingRanks ranks(place(), 1);
    ranks.plan_with(std::move(planners), {StateDict()});
    ranks.check();
    ranks.read();
    ranks.apply();
  };
  std::mt19937 random(11);
  std::vector<Box> boxes = {whole_box({9, 14, 11}), make_box({0, 3, 0}, {9, 1, 11}), make_box({0, 0, 5}, {9, 14, 1}),
                            make_box({8, 13, 10}, {1, 1, 1}), make_box({2, 2, 2}, {0, 3, 3})};
  for (int i = 0; i < 40; ++i) {
    Box box;
    for (const std::int64_t size : {9, 14, 11}) {
      const auto begin = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size));
      box.offsets.push_back(begin);
      box.sizes.push_back(1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size - begin)));
    }
    boxes.push_back(std::move(box));
  }
  expect_boxes("cube", cube, std::move(boxes));
  expect_boxes("tall", tall,
               {make_box({0, 4}, {4000, 1}), make_box({100, 0}, {3000, 9}), make_box({1, 2}, {3998, 3}),
                make_box({3999, 8}, {1, 1})});
  expect_boxes("scalar", scalar, {Box{}});
}

TEST_P(StorageSuite, PartsOfATensorFromOneRankComeBackOrAreRefusedByName) {
  const at::Tensor whole = numbers({6, 10}, 1);
  const auto part = [&](std::int64_t row, std::int64_t column, std::int64_t rows, std::int64_t columns) {
    return Shard{whole.narrow(0, row, rows).narrow(1, column, columns), Sizes{row, column}};
  };
  const ShardedTensor parts({6, 10}, at::kFloat,
                            {part(0, 0, 6, 3), part(0, 3, 2, 7), part(2, 3, 4, 1), part(2, 4, 4, 6)});
  SavingRanks ranks(place(), 1);
  if (!GetParam().holds_many_parts) {
    EXPECT_ANY_THROW(ranks.plan({{{"shards", parts}}}));
    try {
      ranks.plan({{{"shards", parts}}});
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what_without_backtrace()).find("shards"), std::string::npos);
    }
    EXPECT_TRUE(place().contents().empty()) << "something was written before the refusal";
    return;
  }
  ranks.save({{{"shards", parts}}});
  const at::Tensor destination = at::zeros({6, 10});
  LoadingRanks(place(), 1).load({{{"shards", destination}}});
  EXPECT_TRUE(bit_equal(destination, whole));
}

TEST_P(StorageSuite, EveryItemHasOneResult) {
  const int saved = several();
  SavingRanks ranks(place(), saved);
  ranks.plan(states(1, saved));
  ranks.write();
  const auto results = ranks.results();
  for (int rank = 0; rank < saved; ++rank) {
    std::multiset<std::string> names;
    for (const WriteResult& result : results[static_cast<std::size_t>(rank)]) names.insert(to_string(result.index));
    EXPECT_EQ(names, names_of(ranks.plan_of(rank).items)) << "rank " << rank;
  }
}

TEST_P(StorageSuite, FinishRefusesResultsThatDoNotFitThePlan) {
  const int saved = several();
  SavingRanks ranks(place(), saved);
  ranks.save(states(1, saved));
  const auto lose_one = [](std::vector<WriteResult>& results) { results.pop_back(); };
  const auto double_one = [](std::vector<WriteResult>& results) { results.push_back(results[0]); };
  const auto rename_one = [](std::vector<WriteResult>& results) { results[0].index.fqn = "other"; };
  for (const auto& change :
       std::vector<std::function<void(std::vector<WriteResult>&)>>{lose_one, double_one, rename_one}) {
    ranks.plan(states(2, saved));
    ranks.write();
    auto results = ranks.results();
    change(results.back());
    expect_error(ErrorKind::kInternal, "", [&] { ranks.finish(results); });
    expect_before_commit(1, saved);
    ranks.abort();
    expect_before_commit(1, saved);
    if (!GetParam().replaces) ranks.save(states(1, saved));
  }
}

TEST_P(StorageSuite, OnlyFinishCommits) {
  const int saved = several();
  SavingRanks ranks(place(), saved);
  ranks.plan(states(1, saved));
  expect_nothing();
  ranks.write();
  expect_nothing();
  ranks.finish();
  expect_version(1, saved);
  ranks.committed();
  expect_version(1, saved);
}

TEST_P(StorageSuite, OverwritingLeavesExactlyTheOldOrTheNew) {
  const int saved = several();
  SavingRanks(place(), saved).save(states(1, saved));
  SavingRanks ranks(place(), saved);
  ranks.plan(states(2, saved));
  expect_before_commit(1, saved);
  ranks.write();
  expect_before_commit(1, saved);
  ranks.finish();
  expect_version(2, saved);
  ranks.committed();
  expect_version(2, saved);
}

TEST_P(StorageSuite, CommittedClearsWhatWasReplaced) {
  const int saved = several();
  SavingRanks(place(), saved).save(states(0, saved));
  if (GetParam().keeps_last) SavingRanks(place(), saved).save(states(1, saved));
  const std::size_t count = place().contents().size();
  for (int version = 2; version < 4; ++version) {
    SavingRanks ranks(place(), saved);
    ranks.save(states(version, saved));
    EXPECT_EQ(place().contents().size(), count);
    ranks.committed();
    EXPECT_EQ(place().contents().size(), count) << "the second call has done something";
    for (int rank = 0; rank < saved; ++rank) EXPECT_TRUE(ranks.writer(rank).warnings().empty());
  }
  // Of fewer ranks and keys.
  SavingRanks(place(), 1).save({{{"w", numbers({3}, 1)}}});
  EXPECT_LE(place().contents().size(), count);
  const Metadata metadata = *LoadingRanks(place(), 1).read_metadata();
  EXPECT_EQ(metadata.state_dict_metadata.size(), 1u);
}

TEST_P(StorageSuite, AbortRemovesEveryTraceOfThisSaveAndIsHarmlessTwice) {
  const int saved = several();
  for (const bool is_written : {false, true}) {
    for (const bool has_old : {false, true}) {
      SCOPED_TRACE(c10::str("written: ", is_written, ", over another: ", has_old));
      place_ = GetParam().make_place();
      if (has_old) SavingRanks(place(), saved).save(states(1, saved));
      auto left = place().contents();
      if (!GetParam().replaces) left.clear();
      SavingRanks ranks(place(), saved);
      ranks.plan(states(2, saved));
      if (is_written) ranks.write();
      for (int time = 0; time < 2; ++time) {
        ranks.abort();
        if (has_old) {
          expect_before_commit(1, saved);
        } else {
          expect_nothing();
        }
        EXPECT_TRUE(place().contents() == left);
      }
      ranks.save(states(3, saved));
      expect_version(3, saved);
    }
  }
}

TEST_P(StorageSuite, NothingIsAbortedAfterTheCommit) {
  const int saved = several();
  SavingRanks ranks(place(), saved);
  ranks.plan(states(1, saved));
  ranks.write();
  ranks.finish();
  ranks.writer(0).abort();  // The coordinator knows of the commit; the others are told by `committed`.
  expect_version(1, saved);
  ranks.committed();
  const auto before = place().contents();
  ranks.abort();
  EXPECT_TRUE(place().contents() == before) << "abort has changed a committed checkpoint";
  expect_version(1, saved);
  ranks.save(states(2, saved));
  ranks.abort();
  expect_version(2, saved);
}

TEST_P(StorageSuite, AnAbortBeforeTheNextSaveBeganLeavesTheLastOne) {
  SavingRanks ranks(place(), 1);
  ranks.abort();
  EXPECT_TRUE(place().contents().empty());
  ranks.save(states(1, 1));
  SavingRanks(place(), 1).abort();
  expect_version(1, 1);
}

TEST_P(StorageSuite, AFailedWriteNamesKeyAndPlaceAndLeavesTheOld) {
  const int saved = several();
  SavingRanks ranks(place(), saved);
  ranks.save(states(1, saved));
  const auto before = place().contents();
  ranks.plan(states(2, saved));
  ranks.fail_at("large");
  std::string message;
  try {
    ranks.write();
    ADD_FAILURE() << "the writer has not told that it lacks a tensor";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    message = error.what_without_backtrace();
  }
  for (const std::string& part : {std::string("the tensor is gone"), std::string("large"), place().name}) {
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << message;
  }
  ranks.abort();
  expect_before_commit(1, saved);
  EXPECT_TRUE(!GetParam().replaces || place().contents() == before);
  ranks.fail_at("");
  ranks.save(states(3, saved));
  expect_version(3, saved);
}

TEST_P(StorageSuite, AWriterServesOneSaveAfterAnother) {
  const int saved = several();
  SavingRanks ranks(place(), saved);
  std::set<std::string> ids;
  for (int version = 1; version <= 3; ++version) {
    const Metadata metadata = ranks.save(states(version, saved));
    expect_version(version, saved);
    ASSERT_TRUE(metadata.storage_meta && metadata.storage_meta->save_id);
    EXPECT_EQ(ranks.writer(0).storage_meta().save_id, metadata.storage_meta->save_id);
    EXPECT_TRUE(ids.insert(*metadata.storage_meta->save_id).second) << "two saves have one id";
    // One that is given up in between, without an abort.
    if (version == 2) ranks.plan(states(9, saved));
  }
}

TEST_P(StorageSuite, AWriterStopsWhenAnotherRankHasFailed) {
  const int saved = several();
  SavingRanks ranks(place(), saved);
  Stop stop;
  ranks.plan(states(1, saved), {.throw_if_cancelled = stop.asked()});
  stop.is_set = true;
  expect_error(ErrorKind::kCancelled, "another rank has failed", [&] { ranks.write(); });
  ranks.abort();
  expect_nothing();
  EXPECT_TRUE(place().contents().empty());
  stop.is_set = false;
  stop.calls = 0;
  ranks.save(states(2, saved), {.throw_if_cancelled = stop.asked()});
  EXPECT_GE(stop.calls, 3 * saved) << "asked too seldom to stop soon";
  expect_version(2, saved);
}

TEST_P(StorageSuite, AReaderStopsWhenAnotherRankHasFailed) {
  const int saved = several();
  SavingRanks(place(), saved).save(states(1, saved));
  LoadingRanks ranks(place(), saved);
  for (const bool is_checked : {false, true}) {
    Stop stop;
    const States destinations = blanks(saved);
    ranks.plan(destinations, {.throw_if_cancelled = stop.asked()});
    if (is_checked) ranks.check();
    stop.is_set = true;
    expect_error(ErrorKind::kCancelled, "another rank has failed", [&] { is_checked ? ranks.read() : ranks.check(); });
    EXPECT_EQ(difference(destinations, blanks(saved)), "") << "changed after the stop";
  }
  EXPECT_EQ(difference(ranks.load(blanks(saved)), states(1, saved)), "") << "the reader cannot start anew";
}

TEST_P(StorageSuite, CheckChangesNothing) {
  const int saved = several();
  SavingRanks(place(), saved).save(states(1, saved));
  const auto before = place().contents();
  LoadingRanks ranks(place(), saved);
  ranks.plan(blanks(saved));
  ranks.check();
  EXPECT_EQ(difference(ranks.states(), blanks(saved)), "");
  ranks.read();
  EXPECT_EQ(difference(ranks.apply(), states(1, saved)), "");
  EXPECT_TRUE(place().contents() == before) << "a load has changed the checkpoint";
}

TEST_P(StorageSuite, AReaderServesOneLoadAfterAnother) {
  SavingRanks saving(place(), 1);
  saving.save(states(1, 1));
  LoadingRanks ranks(place(), 1);
  EXPECT_EQ(difference(ranks.load(blanks(1)), states(1, 1)), "");
  EXPECT_EQ(difference(ranks.load(blanks(1)), states(1, 1)), "");
  ranks.plan(blanks(1));  // given up
  saving.save(states(2, 1));
  EXPECT_EQ(difference(ranks.load(blanks(1)), states(2, 1)), "");
}

TEST_P(StorageSuite, ALoadBesideASaveGivesOneOfTheTwoOrAnError) {
  const int saved = several();
  const bool tells = GetParam().tells_replacement;
  for (const bool is_checked : {false, true}) {
    SCOPED_TRACE(c10::str("checked: ", is_checked));
    SavingRanks saving(place(), saved);
    saving.save(states(1, saved));
    LoadingRanks ranks(place(), saved);
    const States destinations = blanks(saved);
    ranks.plan(destinations);
    if (is_checked) ranks.check();
    saving.save(states(2, saved));
    std::string message;
    ErrorKind kind{};
    try {
      if (!is_checked) ranks.check();
      ranks.read();
    } catch (const Error& error) {
      message = error.what_without_backtrace();
      kind = error.kind();
    }
    if (message.empty()) {
      const States loaded = ranks.apply();
      const bool is_old = difference(loaded, states(1, saved)).empty();
      EXPECT_TRUE(is_old || (!tells && difference(loaded, states(2, saved)).empty())) << "a mixture, or not told";
      continue;
    }
    EXPECT_EQ(kind, tells ? ErrorKind::kState : ErrorKind::kCorruptData) << message;
    EXPECT_NE(message.find(place().name), std::string::npos) << message;
    EXPECT_TRUE(!tells || message.find("replaced") != std::string::npos) << message;
    EXPECT_TRUE(!tells || message.find("load again") != std::string::npos) << message;
    EXPECT_FALSE(tells && is_checked) << "what has been checked can still be read: " << message;
    EXPECT_EQ(difference(destinations, blanks(saved)), "") << "changed before the check had passed";
  }
}

TEST_P(StorageSuite, ACheckpointIsStillThereUntilAnotherIsCommitted) {
  const int saved = several();
  SavingRanks saving(place(), saved);
  saving.save(states(1, saved));
  LoadingRanks ranks(place(), saved);
  const auto expect_there = [&](bool is_there, const char* when) {
    for (int rank = 0; rank < saved; ++rank) {
      EXPECT_EQ(ranks.reader(rank).is_still_there(), is_there || !GetParam().tells_replacement) << when << ", " << rank;
    }
  };
  ranks.plan(blanks(saved));
  ranks.check();
  expect_there(true, "checked");
  saving.plan(states(2, saved));
  saving.write();
  expect_there(GetParam().replaces, "not committed");
  saving.finish();
  expect_there(false, "committed");
  saving.committed();
  expect_there(false, "cleared away");
  ranks.read();
  EXPECT_EQ(difference(ranks.load(blanks(saved)), states(2, saved)), "") << "of the new one";
  expect_there(true, "loaded anew");
}

TEST_P(StorageSuite, WhatIsLostIsSaidBeforeAnythingChanges) {
  if (!place().lose) return;
  SavingRanks(place(), 1).save(states(1, 1));
  place().lose(first_chunk("large", 2));
  if (place().is_complete) {
    EXPECT_FALSE(place().is_complete());
  }
  LoadingRanks ranks(place(), 1);
  const States destinations = blanks(1);
  try {
    ranks.plan(destinations);
    ranks.check();
    ADD_FAILURE() << "nothing was missed";
  } catch (const Error& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_TRUE(error.kind() == ErrorKind::kCorruptData || error.kind() == ErrorKind::kNotFound) << message;
    EXPECT_NE(message.find(place().name), std::string::npos) << message;
  }
  EXPECT_EQ(difference(destinations, blanks(1)), "");
  SavingRanks(place(), 1).save(states(2, 1));
  expect_version(2, 1);
}

TEST_P(StorageSuite, WhatIsDamagedIsNamed) {
  if (!place().damage) return;
  SavingRanks(place(), 1).save(states(1, 1));
  place().damage(first_chunk("large", 2));
  std::string message;
  try {
    LoadingRanks(place(), 1).load(blanks(1));
    ADD_FAILURE() << "a flipped bit was not noticed";
  } catch (const Error& error) {
    message = error.what_without_backtrace();
    EXPECT_EQ(error.kind(), ErrorKind::kCorruptData) << message;
  }
  for (const std::string& part : {std::string("large"), place().name}) {
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << message;
  }
}

TEST_P(StorageSuite, RanksThatSaveAloneHaveAPartEach) {
  if (!GetParam().saves_alone) return;
  const int saved = several();
  SavingRanks ranks(place(), saved);
  const StepOptions alone{.use_collectives = false};
  ranks.save(states(1, saved), alone);
  LoadingRanks loading(place(), 2);
  EXPECT_FALSE(loading.reader(0).read_metadata()) << "the ranks' parts are taken for one checkpoint";
  for (int rank = 0; rank < saved; ++rank) {
    const Metadata own = loading.reader(0).read_rank_metadata(rank);
    EXPECT_TRUE(own.state_dict_metadata.contains(c10::str("of rank ", rank)));
    EXPECT_FALSE(own.state_dict_metadata.contains(c10::str("of rank ", rank + 1)));
  }
  expect_error(ErrorKind::kNotFound, place().name, [&] { loading.reader(0).read_rank_metadata(saved); });
  EXPECT_EQ(difference(loading.load(blanks(2, false)), states(1, 2, false)), "");
  ranks.save(states(2, saved), alone);
  EXPECT_EQ(difference(loading.load(blanks(2, false)), states(2, 2, false)), "");
}

}  // namespace dcp::test
