#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "test/model_state/optimizer_support.h"
#include "test/support/deep_copy.h"
#include "test/support/expect_error.h"
#include "torch_dcp/model_state/hook_registry_internal.h"
#include "torch_dcp/model_state/hooks.h"
#include "torch_dcp/model_state/module_state_dict.h"
#include "torch_dcp/state_dict/equal.h"

/// Modules to hang hooks on, and what their tests have in common.
namespace dcp::test {

using Strings = std::vector<std::string>;

/// A parameter `w` and a buffer `b`.
struct LeafImpl : nn::Module {
  explicit LeafImpl(double value = 1) {
    w = register_parameter("w", torch::full({2}, value));
    b = register_buffer("b", torch::full({3}, value + 0.5));
  }
  at::Tensor forward(const at::Tensor& input) { return input; }
  at::Tensor w, b;
};
TORCH_MODULE(Leaf);

/// w, b; c.w, c.b; c.d.w, c.d.b; e.w, e.b.
struct TreeImpl : LeafImpl {
  explicit TreeImpl(double value = 1) : LeafImpl(value), c(value + 10), d(value + 20), e(value + 30) {
    register_module("c", c);
    c->register_module("d", d);
    register_module("e", e);
  }
  Leaf c, d, e;
};
TORCH_MODULE(Tree);

inline const Strings& tree_names() {
  static const Strings kNames = {"w", "b", "c.w", "c.b", "c.d.w", "c.d.b", "e.w", "e.b"};
  return kNames;
}

/// All tensors of a module, by name, read past the functions under test; copies.
inline Dict tensors_of(const nn::Module& module, const std::string& prefix = "") {
  Dict all;
  for (const auto& item : module.named_parameters(false)) all[prefix + item.key()] = item.value().detach().clone();
  for (const auto& item : module.named_buffers(false)) all[prefix + item.key()] = item.value().detach().clone();
  for (const auto& child : module.named_children()) {
    for (auto& [key, value] : tensors_of(*child.value(), prefix + child.key() + ".")) all[key] = value;
  }
  return all;
}

/// What no library would throw by itself.
struct Thrown : std::runtime_error {
  Thrown() : std::runtime_error("thrown by the test") {}
};

}  // namespace dcp::test
