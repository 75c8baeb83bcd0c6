#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "torch_dcp/base/export.h"
#include "torch_dcp/fwd.h"

namespace dcp {

enum class ModuleTensorKind : std::uint8_t { kParameter, kBuffer };

/// A parameter or buffer of a module under one of its names.
struct ModuleTensor {
  std::string fqn;  ///< names of the modules on the way and its own, joined by dots
  at::Tensor tensor;
  ModuleTensorKind kind = ModuleTensorKind::kParameter;
};

/// Lists a module's parameters and buffers in the order of Python's `state_dict()`: those of the module itself,
/// parameters before buffers, then those of each child, depth first. A tensor or module that has several names is
/// listed under each. Undefined tensors are skipped.
///
/// \throws dcp::Error kKey for a name that several tensors have, naming every such name.
/// Collective: no.
/// Source: torch/nn/modules/module.py, Module.state_dict (2.14.1).
DCP_API std::vector<ModuleTensor> module_tensors(const torch::nn::Module& module);

/// The module's parameters, each once, under its first name.
DCP_API std::vector<ModuleTensor> unique_parameters(const torch::nn::Module& module);

}  // namespace dcp
