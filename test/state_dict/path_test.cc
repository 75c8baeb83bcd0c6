#include "torch_dcp/state_dict/path.h"

#include <gtest/gtest.h>

#include "test/support/expect_error.h"
#include "torch_dcp/state_dict/equal.h"

namespace dcp {
namespace {

using test::expect_error;

PathItem key(std::string text) { return PathItem::dict_key(std::move(text)); }
PathItem number_key(std::int64_t number) { return PathItem::dict_key(Key(number)); }
PathItem at_position(std::int64_t index) { return PathItem::list_index(index); }

TEST(Path, SpellsItsFlatKey) {
  EXPECT_EQ(flat_key({key("optim"), key("state"), key("0.weight"), at_position(3)}), "optim.state.0.weight.3");
  EXPECT_EQ(flat_key({number_key(-5), key("")}), "-5.");
  EXPECT_EQ(flat_key({}), "");
  EXPECT_EQ(to_string(number_key(12)), "12");
  EXPECT_EQ(PathItem::dict_key(Key(std::string("12"))), key("12"));
}

TEST(Path, DescribesItsStructure) {
  EXPECT_EQ(describe({key("optim"), key("state"), key("0.weight"), at_position(3)}),
            "['optim']['state']['0.weight'][3]");
  EXPECT_NE(describe({key("a.b")}), describe({key("a"), key("b")}));
  EXPECT_NE(describe({key("1")}), describe({number_key(1)}));
  EXPECT_EQ(describe({key("it's")}), "['it\\'s']");
  EXPECT_NE(describe({key("a']['b")}), describe({key("a"), key("b")}));
}

TEST(SetElement, MakesContainersOnTheWay) {
  Dict root;
  set_element(root, {key("a"), at_position(2), key("x")}, 1);
  set_element(root, {key("a"), at_position(0)}, 2);
  set_element(root, {key("a"), at_position(2), number_key(7)}, 3);
  set_element(root, {key("b"), at_position(0), at_position(1)}, 4);
  const Dict expected = {
      {"a", List{Value(2), Value(), Value(Dict{{"x", 1}, {std::int64_t{7}, 3}})}},
      {"b", List{Value(List{Value(), Value(4)}), Value()}},
  };
  root.at("b").as_list().emplace_back();
  EXPECT_EQ(first_difference(root, expected), "");
}

TEST(SetElement, ReplacesAValue) {
  Dict root = {{"a", Dict{{"x", 1}}}};
  set_element(root, {key("a"), key("x")}, 2);
  EXPECT_EQ(root.at("a").as_dict().at("x").as_int(), 2);
  set_element(root, {key("a")}, "flat");
  EXPECT_EQ(root.at("a").as_string(), "flat");
}

TEST(SetElement, RefusesAnotherKindOfContainerAndChangesNothing) {
  Dict root = {{"d", Dict{{"x", 1}}}, {"l", List{1}}, {"v", 5}, {"n", None()}};
  const Dict before = root;
  const auto set = [&](Path path) { return [&root, path] { set_element(root, path, 9); }; };
  const auto kind = ErrorKind::kType;
  expect_error(kind, "path ['d'][0] needs a list at ['d'], where a dict stands", set({key("d"), at_position(0)}));
  expect_error(kind, "path ['l']['x'] needs a dict at ['l'], where a list stands", set({key("l"), key("x")}));
  expect_error(kind, "['v'], where a int stands", set({key("v"), key("x"), key("y")}));
  expect_error(kind, "['d']['x'], where a int stands", set({key("d"), key("x"), at_position(4)}));
  expect_error(kind, "['l'][0], where a int stands", set({key("l"), at_position(0), key("x")}));
  expect_error(kind, "['n'], where a None stands", set({key("n"), key("x")}));
  EXPECT_EQ(first_difference(root, before), "");
}

TEST(SetElement, RefusesHostilePaths) {
  Dict root;
  const auto kind = ErrorKind::kCorruptData;
  expect_error(kind, "empty path", [&] { set_element(root, {}, 1); });
  expect_error(kind, "begins with a position", [&] { set_element(root, {at_position(0)}, 1); });
  expect_error(kind, "position -1", [&] { set_element(root, {key("x"), at_position(-1)}, 1); });
  expect_error(kind, "position 1000000000", [&] { set_element(root, {key("x"), at_position(1'000'000'000)}, 1); });
  expect_error(kind, "position 11", [&] { set_element(root, {key("x"), at_position(0), at_position(11)}, 1, 10); });
  EXPECT_TRUE(root.empty());
  set_element(root, {key("x"), at_position(10)}, 1, 10);
  EXPECT_EQ(root.at("x").as_list().size(), 11u);
}

TEST(GetElement, FindsAValueOrNothing) {
  Dict root = {{"a", List{Value(1), Value(Dict{{std::int64_t{7}, "x"}})}}, {"t", Tuple{1}}};
  EXPECT_EQ(get_element(root, {key("a"), at_position(1), number_key(7)})->as_string(), "x");
  *get_element(root, {key("a"), at_position(0)}) = 5;
  EXPECT_EQ(get_element(std::as_const(root), {key("a"), at_position(0)})->as_int(), 5);
  for (const Path& path : std::vector<Path>{
           {},
           {at_position(0)},
           {key("b")},
           {key("a"), at_position(2)},
           {key("a"), at_position(-1)},
           {key("a"), key("0")},
           {key("a"), at_position(1), key("7")},
           {key("a"), at_position(0), key("x")},
           {key("t"), at_position(0)},
       }) {
    EXPECT_EQ(get_element(root, path), nullptr) << describe(path);
  }
}

}  // namespace
}  // namespace dcp
