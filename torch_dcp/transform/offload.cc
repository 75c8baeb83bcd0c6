#include "torch_dcp/transform/offload.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/walk.h"
#include "torch_dcp/transform/local_parts_internal.h"
#include "torch_dcp/transform/rank_filter_internal.h"
#include "torch_dcp/transform/stateful_internal.h"

namespace dcp {
namespace {

void check_no_meta(const Value& value) {
  FaultList faults;
  visit_all(value, [&](const Path& path, const Value& leaf) {
    for (const at::Tensor& part : local_parts(leaf)) {
      if (!part.defined() || !part.is_meta()) continue;
      faults.add(ErrorKind::kUnsupported, flat_key(path), "a tensor on the meta device has no elements to move");
      break;
    }
  });
  faults.throw_if_any("offload to the CPU", DCP_WHERE);
}

}  // namespace

Value offload_value(const Value& value, const OffloadOptions& options) {
  check_rank_filter(options.ranks);
  const Value state = replace_all_stateful(value);
  check_no_meta(state);
  if (!passes(options.ranks, options.my_rank)) return filtered_out(state);
  const c10::NoGradGuard no_grad;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> moved;
  return replace_leaves(state, [&](const Path&, const Value& leaf) {
    return with_local_parts(leaf, [&](const at::Tensor& part) {
      if (!part.defined() || part.is_cpu()) return part;
      at::Tensor& copy = moved[part.unsafeGetTensorImpl()];
      if (!copy.defined()) copy = part.detach().to(at::kCPU, options.non_blocking);
      return copy;
    });
  });
}

Dict offload(const Dict& state, const OffloadOptions& options) { return offload_value(state, options).as_dict(); }

}  // namespace dcp
