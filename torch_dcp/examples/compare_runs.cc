#include "torch_dcp/examples/compare_runs.h"

#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp::examples {
namespace {

std::size_t count_tensors(const Value& value) {
  std::size_t count = value.is_tensor() ? 1 : 0;
  if (value.is_dict()) {
    for (const auto& [key, item] : value.as_dict()) count += count_tensors(item);
  }
  if (value.is_list()) {
    for (const Value& item : value.as_list()) count += count_tensors(item);
  }
  return count;
}

}  // namespace

RunComparison compare_checkpoints(const std::string& a, const std::string& b) {
  const StateDict state_a = load_keys(a);
  const StateDict state_b = load_keys(b);
  RunComparison result;
  result.losses = state_a.at("trainer").as_dict().at("losses").as_list().size();
  result.tensors = count_tensors(state_a);
  result.difference = first_difference(state_a, state_b);
  return result;
}

}  // namespace dcp::examples
