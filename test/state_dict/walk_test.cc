#include "torch_dcp/state_dict/walk.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <string>

#include "test/support/expect_error.h"
#include "torch_dcp/state_dict/dtype_policy.h"
#include "torch_dcp/state_dict/equal.h"

namespace dcp {
namespace {

using test::expect_error;

Dict example() {
  return {{"d", Dict{{"x", 1}, {std::int64_t{7}, at::ones({2})}}},
          {"l", List{Value(2), Value(Tuple{Value("a"), Value(List())})}},
          {"t", Tuple{Value(Dict{{"y", None()}})}},
          {"e", Dict()},
          {"n", Tuple()}};
}

TEST(VisitAll, OpensEveryContainerAndVisitsEmptyOnes) {
  std::string seen;
  visit_all(example(), [&](const Path& path, const Value& value) {
    seen += describe(path) + " " + value_kind_name(value.kind()) + "\n";
  });
  EXPECT_EQ(seen,
            "['d']['x'] int\n['d'][7] tensor\n['l'][0] int\n['l'][1][0] string\n['l'][1][1] list\n['t'][0]['y'] None\n"
            "['e'] dict\n['n'] tuple\n");
}

TEST(VisitAll, VisitsALeafByItself) {
  int count = 0;
  visit_all(5, [&](const Path& path, const Value& value) {
    EXPECT_TRUE(path.empty());
    EXPECT_EQ(value.as_int(), 5);
    ++count;
  });
  EXPECT_EQ(count, 1);
}

TEST(ReplaceLeaves, WithTheIdentityGivesTheSame) {
  const auto same = replace_leaves(example(), [](const Path&, const Value& value) { return value; });
  EXPECT_EQ(first_difference(same, example()), "");
}

TEST(ReplaceLeaves, KeepsContainersKeysAndOrder) {
  const auto paths = replace_leaves(example(), [](const Path& path, const Value&) { return describe(path); });
  const Dict expected = {{"d", Dict{{"x", "['d']['x']"}, {std::int64_t{7}, "['d'][7]"}}},
                         {"l", List{Value("['l'][0]"), Value(Tuple{Value("['l'][1][0]"), Value(List())})}},
                         {"t", Tuple{Value(Dict{{"y", "['t'][0]['y']"}})}},
                         {"e", Dict()},
                         {"n", Tuple()}};
  EXPECT_EQ(first_difference(paths, expected), "");
}

TEST(ReplaceLeaves, BoundsTheDepth) {
  Value deep = 1;
  for (int i = 0; i < 500; ++i) deep = Dict{{"k", std::move(deep)}};
  int count = 0;
  visit_all(deep, [&](const Path& path, const Value&) { count += static_cast<int>(path.size()); });
  EXPECT_EQ(count, 500);
  const Value deeper = List{Value(Dict{{"k", deep}})};
  expect_error(ErrorKind::kInvalidArgument, "nested more than 500 deep below [0]['k']['k']",
               [&] { visit_all(deeper, [](const Path&, const Value&) {}); });
  expect_error(ErrorKind::kInvalidArgument, "nested more than 500 deep",
               [&] { replace_leaves(deeper, [](const Path&, const Value& value) { return value; }); });
}

TEST(DtypePolicy, SaysWhatMayBeConverted) {
  using enum DtypePolicy;
  EXPECT_FALSE(may_convert(at::kHalf, at::kFloat, kExact));
  EXPECT_TRUE(may_convert(at::kHalf, at::kFloat, kLossless));
  EXPECT_FALSE(may_convert(at::kFloat, at::kHalf, kLossless));
  EXPECT_TRUE(may_convert(at::kFloat, at::kHalf, kAny));
  expect_error(ErrorKind::kInvalidArgument, "no such dtype policy",
               [] { may_convert(at::kFloat, at::kHalf, static_cast<DtypePolicy>(9)); });
}

}  // namespace
}  // namespace dcp
