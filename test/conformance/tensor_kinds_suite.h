#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "test/support/expect_error.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/value.h"
#include "torch_dcp/tensor/local_chunks.h"

/// What every kind of tensor must do. A test includes this file once and instantiates
/// `TensorKindsSuite` with the kinds it has:
///
///     INSTANTIATE_TEST_SUITE_P(All, TensorKindsSuite, ::testing::Values(...), case_name);
namespace dcp::test {

struct TensorKindCase {
  std::string name;
  std::int64_t world_size = 1;
  Sizes sizes;
  /// What `rank` has of the whole. Shares no memory with the whole, but for plain tensors.
  std::function<TensorLike(const at::Tensor& whole, std::int64_t rank)> make;
  /// The tensors that hold this rank's elements.
  std::function<std::vector<at::Tensor>(const TensorLike& tensor)> parts;
  bool is_distributed = true;
  std::int64_t copy_count = 1;  ///< how many ranks hold each element
};

inline std::string case_name(const ::testing::TestParamInfo<TensorKindCase>& info) { return info.param.name; }

class TensorKindsSuite : public ::testing::TestWithParam<TensorKindCase> {
 protected:
  at::Tensor whole(at::ScalarType dtype = at::kFloat) const {
    const Sizes& sizes = GetParam().sizes;
    return at::arange(1, c10::multiply_integers(sizes) + 1, at::kFloat).reshape(sizes).to(dtype);
  }

  TensorLike make(const at::Tensor& tensor, std::int64_t rank) const { return GetParam().make(tensor, rank); }

  static at::Tensor narrowed(at::Tensor tensor, const Box& box) {
    for (std::size_t d = 0; d < box.ndim(); ++d) {
      tensor = tensor.narrow(static_cast<std::int64_t>(d), box.offsets[d], box.sizes[d]);
    }
    return tensor;
  }
};

TEST_P(TensorKindsSuite, KnowsTheWhole) {
  for (std::int64_t rank = 0; rank < GetParam().world_size; ++rank) {
    const TensorLike tensor = make(whole(at::kHalf), rank);
    EXPECT_EQ(global_sizes(tensor), GetParam().sizes);
    EXPECT_EQ(dtype_of(tensor), at::kHalf);
    EXPECT_EQ(is_distributed(tensor), GetParam().is_distributed);
    EXPECT_FALSE(requires_grad(tensor));
  }
}

TEST_P(TensorKindsSuite, HasChunksInsideTheWholeInOrderWithItsElements) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kFloat8_e4m3fn, at::kComplexDouble, at::kBool}) {
    const at::Tensor all = whole(dtype);
    for (std::int64_t rank = 0; rank < GetParam().world_size; ++rank) {
      const auto chunks = local_chunks(make(all, rank));
      for (std::size_t i = 0; i < chunks.size(); ++i) {
        const Box& box = chunks[i].box;
        ASSERT_TRUE(whole_box(GetParam().sizes).contains(box)) << to_string(box);
        ASSERT_EQ(chunks[i].view.sizes(), c10::IntArrayRef(box.sizes));
        EXPECT_EQ(first_difference(chunks[i].view, narrowed(all, box)), "") << to_string(box);
        if (i == 0) continue;
        const Sizes& before = chunks[i - 1].box.offsets;
        EXPECT_TRUE(std::lexicographical_compare(before.begin(), before.end(), box.offsets.begin(), box.offsets.end()));
      }
    }
  }
}

TEST_P(TensorKindsSuite, CoversEveryElementAsOftenAsItIsHeld) {
  const at::Tensor count = at::zeros(GetParam().sizes, at::kLong);
  for (std::int64_t rank = 0; rank < GetParam().world_size; ++rank) {
    for (const LocalChunk& chunk : local_chunks(make(whole(), rank))) narrowed(count, chunk.box).add_(1);
  }
  EXPECT_TRUE(count.eq(GetParam().copy_count).all().item<bool>()) << count;
}

TEST_P(TensorKindsSuite, GivesViewsOfTheLiveTensor) {
  for (std::int64_t rank = 0; rank < GetParam().world_size; ++rank) {
    const TensorLike tensor = make(whole(), rank);
    for (const LocalChunk& chunk : local_chunks(tensor)) chunk.view.fill_(-7);
    std::int64_t seen = 0;
    for (const at::Tensor& part : GetParam().parts(tensor)) {
      EXPECT_TRUE(part.eq(-7).all().item<bool>()) << part;
      seen += part.numel();
    }
    std::int64_t held = 0;
    for (const LocalChunk& chunk : local_chunks(tensor)) held += chunk.box.numel();
    EXPECT_EQ(held, seen);
  }
}

TEST_P(TensorKindsSuite, GivesDetachedViewsAndChangesNothing) {
  for (std::int64_t rank = 0; rank < GetParam().world_size; ++rank) {
    const TensorLike tensor = make(whole(), rank);
    for (at::Tensor part : GetParam().parts(tensor)) part.set_requires_grad(true);
    EXPECT_EQ(requires_grad(tensor), !GetParam().parts(tensor).empty());
    for (const LocalChunk& chunk : local_chunks(tensor)) {
      EXPECT_FALSE(chunk.view.requires_grad());
      EXPECT_FALSE(chunk.view.grad_fn());
    }
    for (const at::Tensor& part : GetParam().parts(tensor)) EXPECT_TRUE(part.requires_grad() && part.is_leaf());
  }
}

TEST_P(TensorKindsSuite, KeepsItsKindAsAValue) {
  for (std::int64_t rank = 0; rank < GetParam().world_size; ++rank) {
    const TensorLike tensor = make(whole(), rank);
    const Value value = tensor;
    EXPECT_TRUE(value.is_tensor_like());
    EXPECT_EQ(value.as_tensor_like().index(), tensor.index());
    EXPECT_EQ(first_difference(value, Value(make(whole(), rank))), "");
    if (local_chunks(tensor).empty() || local_chunks(tensor)[0].box.empty()) continue;
    EXPECT_NE(first_difference(value, Value(make(whole() + 1, rank))), "");
  }
}

TEST_P(TensorKindsSuite, CopiesAreHandlesOfTheSameElements) {
  for (std::int64_t rank = 0; rank < GetParam().world_size; ++rank) {
    const TensorLike tensor = make(whole(), rank);
    const TensorLike copy = tensor;
    const auto chunks = local_chunks(tensor);
    const auto copied = local_chunks(copy);
    ASSERT_EQ(chunks.size(), copied.size());
    for (std::size_t i = 0; i < chunks.size(); ++i) EXPECT_EQ(chunks[i].view.data_ptr(), copied[i].view.data_ptr());
  }
}

}  // namespace dcp::test
