// torch.ops.torch_dcp: what a process that has LibTorch loaded already, such as Python, calls without headers.

#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/plan/metadata.h"
#include "torch_dcp/state_dict/value.h"
#include "torch_dcp/storage/verify.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

using Tensors = c10::Dict<std::string, at::Tensor>;
using Group = std::optional<c10::intrusive_ptr<c10d::ProcessGroup>>;
/// Flat key -> (dtype, sizes).
using Listing = c10::Dict<std::string, std::tuple<std::string, std::vector<std::int64_t>>>;
/// (file, key, kind, cause), as VerifyFault.
using Faults = c10::List<std::tuple<std::string, std::string, std::string, std::string>>;

/// What `list` gives as the dtype of a stored object.
constexpr const char* kObject = "object";

/// The same keys and the same tensors, not copies of them.
StateDict to_state_dict(const Tensors& tensors) {
  StateDict state;
  for (const auto& entry : tensors) state[entry.key()] = entry.value();
  return state;
}

GroupRef to_group(const Group& group) { return group ? GroupRef(*group) : GroupRef(); }

void save_tensors(const Tensors& tensors, const std::string& path, const Group& group) {
  save(to_state_dict(tensors), path, {.process_group = to_group(group)});
}

void load_tensors(const Tensors& tensors, const std::string& path, const Group& group) {
  StateDict state = to_state_dict(tensors);
  load(state, path, {.process_group = to_group(group)});
  // The elements were written past the operators: a graph that kept an old value for its backward pass must notice.
  for (const auto& entry : tensors) {
    if (!entry.value().is_inference()) entry.value().unsafeGetTensorImpl()->bump_version();
  }
}

Listing list_items(const std::string& path) {
  Listing listing;
  const Metadata metadata = read_metadata(path);
  for (const auto& [key, item] : metadata.state_dict_metadata) {
    std::tuple<std::string, std::vector<std::int64_t>> described{kObject, {}};
    if (const auto* tensor = std::get_if<TensorStorageMetadata>(&item)) {
      described = {dtype_name(tensor->properties), {tensor->size.begin(), tensor->size.end()}};
    }
    listing.insert(key, std::move(described));
  }
  return listing;
}

Faults verify_items(const std::string& path) {
  Faults faults;
  for (const VerifyFault& fault : verify(path).faults) {
    faults.push_back(std::tuple(fault.file, fault.key, std::string(error_kind_name(fault.kind)), fault.cause));
  }
  return faults;
}

}  // namespace
}  // namespace dcp

TORCH_LIBRARY(torch_dcp, library) {
  library.def("save(Dict(str, Tensor) state, str path, __torch__.torch.classes.c10d.ProcessGroup? group=None) -> ()",
              dcp::save_tensors);
  library.def("load(Dict(str, Tensor) state, str path, __torch__.torch.classes.c10d.ProcessGroup? group=None) -> ()",
              dcp::load_tensors);
  library.def("list(str path) -> Dict(str, (str, int[]))", dcp::list_items);
  library.def("verify(str path) -> ((str, str, str, str)[])", dcp::verify_items);
}
