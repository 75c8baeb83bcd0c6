#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "torch_dcp/state_dict/stateful.h"
#include "torch_dcp/tensor/device_mesh.h"
#include "torch_dcp/tensor/dtensor.h"

/// What tests of transformations have in common.
namespace dcp::test {

/// This rank's part of `whole` on a mesh of ranks 0, 1, ...
inline DTensor placed(const at::Tensor& whole, Sizes mesh_shape, Placements placements, int rank) {
  return DTensor::distribute(whole, DeviceMesh::make(std::move(mesh_shape), rank), std::move(placements));
}

/// A DTensor without memory.
inline DTensor meta_of(const DTensor& tensor) {
  return DTensor(tensor.local().to(at::kMeta), tensor.mesh_ptr(), tensor.placements(), tensor.global_sizes());
}

/// An object whose state is what it was made with; counts how often it is asked.
class FixedState : public Stateful {
 public:
  explicit FixedState(Dict state) : state_(std::move(state)) {}
  Dict state_dict() override {
    ++asked;
    return state_;
  }
  void load_state_dict(const Dict& state) override { state_ = state; }

  int asked = 0;

 private:
  Dict state_;
};

inline void expect_same(const Value& value, const Value& expected) { EXPECT_EQ(first_difference(value, expected), ""); }

}  // namespace dcp::test
