#include "torch_dcp/state_dict/stateful.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/expect_error.h"
#include "torch_dcp/transform/clone.h"

namespace dcp::test {
namespace {

/// Notes who is asked for what, in order.
class Noted final : public Stateful {
 public:
  Noted(std::string name, std::vector<std::string>& calls) : name_(std::move(name)), calls_(calls) {}

  Dict state_dict() override {
    calls_.push_back("save " + name_);
    if (fails) throw std::runtime_error("it is broken");
    return {{"t", tensor}, {"n", number}, {"name", name_}};
  }
  void load_state_dict(const Dict& state) override {
    calls_.push_back("load " + name_);
    if (fails_to_load) DCP_THROW(kState, "it refuses");
    number = state.at("n").as_int();
    loaded_name = state.at("name").as_string();
  }

  at::Tensor tensor = pattern({2});
  std::int64_t number = 0;
  std::string loaded_name;
  bool fails = false;
  bool fails_to_load = false;

 private:
  std::string name_;
  std::vector<std::string>& calls_;
};

class StatefulTest : public ::testing::Test {
 protected:
  std::shared_ptr<Noted> make(const std::string& name) { return std::make_shared<Noted>(name, calls_); }

  Place place_;
  std::vector<std::string> calls_;
};

TEST_F(StatefulTest, AskedInSortedOrderWhateverTheDictsOrder) {
  const auto b = make("b");
  const auto a = make("a");
  const auto c = make("c");
  b->tensor.fill_(2);
  b->number = 22;
  const StateDict state = {{"c", c}, {"x", 1}, {"a", a}, {"b", b}};
  place_.save(state, "c");
  EXPECT_EQ(calls_, (std::vector<std::string>{"save a", "save b", "save c"}));
  calls_.clear();

  const auto fresh = make("fresh");
  const void* address = fresh->tensor.data_ptr();
  StateDict destination = {{"c", c}, {"x", 0}, {"b", fresh}, {"a", a}};
  place_.load(destination, "c");
  EXPECT_EQ(calls_, (std::vector<std::string>{"save a", "save fresh", "save c", "load a", "load fresh", "load c"}));
  EXPECT_EQ(fresh->number, 22);
  EXPECT_EQ(fresh->loaded_name, "b");
  EXPECT_EQ(fresh->tensor.data_ptr(), address);
  EXPECT_TRUE(bit_equal(fresh->tensor, at::full({2}, 2.0)));
  EXPECT_EQ(destination.at("x").as_int(), 1);
  EXPECT_EQ(destination.at("b").as_stateful(), fresh);
  std::vector<std::string> keys;
  for (const auto& [key, value] : destination) keys.push_back(to_string(key));
  EXPECT_EQ(keys, (std::vector<std::string>{"c", "x", "b", "a"})) << "the dict keeps its order";
}

TEST_F(StatefulTest, ItsStateIsADictLikeAnother) {
  const auto a = make("a");
  a->number = 5;
  place_.save({{"a", a}}, "c");
  StateDict plain = {{"a", Dict{{"t", pattern({2})}, {"n", 0}, {"name", ""}}}};
  place_.load(plain, "c");
  EXPECT_EQ(plain.at("a").as_dict().at("n").as_int(), 5);
  EXPECT_EQ(first_difference(place_.rebuild("c"), plain), "");
}

TEST_F(StatefulTest, ErrorsNameTheKey) {
  const auto a = make("a");
  a->fails = true;
  std::string text = error_of([&] { place_.save({{"app", a}}, "c"); });
  for (const char* part : {"it is broken", "state_dict()", "'app'"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_TRUE(contents_of(*place_.files, "c").empty());
  a->fails = false;
  place_.save({{"app", a}}, "c");
  a->fails_to_load = true;
  StateDict state = {{"app", a}};
  text = error_of([&] { place_.load(state, "c"); });
  for (const char* part : {"it refuses", "load_state_dict()", "'app'"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  text = error_of([&] { place_.save({{"app", std::shared_ptr<Stateful>()}}, "c"); });
  EXPECT_NE(text.find("'app' holds a null Stateful"), std::string::npos) << text;
}

TEST_F(StatefulTest, BelowTheTopLevelItIsRefusedWithItsPath) {
  const auto a = make("a");
  const std::vector<std::pair<StateDict, std::string>> states = {
      {{{"app", Dict{{"inner", a}}}}, "['app']['inner']"},
      {{{"app", Dict{{"l", List{1, Dict{{"x", a}}}}}}}, "['app']['l'][1]['x']"},
      {{{"pair", Tuple{1, a}}}, "['pair'][1]"},
  };
  for (const auto& [state, path] : states) {
    const std::string text = error_of([&, &state = state] { place_.save(state, "c"); });
    EXPECT_NE(text.find(path), std::string::npos) << text;
    EXPECT_TRUE(contents_of(*place_.files, "c").empty());
    place_.save({{"x", 1}}, "d");
    StateDict destination = state;
    const std::string load_text = error_of([&] { place_.load(destination, "d"); });
    EXPECT_NE(load_text.find(path), std::string::npos) << load_text;
  }
}

/// Gives away another one.
class Nesting final : public Stateful {
 public:
  explicit Nesting(std::shared_ptr<Stateful> inner) : inner_(std::move(inner)) {}
  Dict state_dict() override { return {{"deep", inner_}}; }
  void load_state_dict(const Dict&) override {}

 private:
  std::shared_ptr<Stateful> inner_;
};

TEST_F(StatefulTest, OneInTheStateOfAnotherIsRefusedToo) {
  const std::string text = error_of([&] { place_.save({{"app", std::make_shared<Nesting>(make("a"))}}, "c"); });
  EXPECT_NE(text.find("['app']['deep']"), std::string::npos) << text;
}

TEST_F(StatefulTest, AFailureOnOneRankIsThatOfAll) {
  ErrorsByRank errors(2);
  run_ranks(2, [&](RankContext& ranks) {
    const Place place = place_of(ranks, place_.files);
    std::vector<std::string> calls;
    const auto app = std::make_shared<Noted>("app", calls);
    app->fails = ranks.rank() == 1;
    errors.run(ranks.rank(), [&] { place.save({{"app", app}}, "c"); });
    app->fails = false;
    place.save({{"app", app}}, "c");
  });
  errors.expect({1}, {"it is broken", "'app'"});
}

class Throwing final : public Stateful {
 public:
  Dict state_dict() override { DCP_THROW(kType, "its state cannot be had"); }
  void load_state_dict(const Dict&) override {}
};

TEST(StatefulSnapshot, AnObjectThatThrowsIsItsError) {
  const StateDict state = {{"a", counted({2})}, {"app", std::make_shared<Throwing>()}};
  expect_error(ErrorKind::kType, "its state cannot be had", [&] { clone(state); });
}

}  // namespace
}  // namespace dcp::test
