#include "torch_dcp/transform/distribute.h"

#include <utility>
#include <vector>

#include "torch_dcp/state_dict/tensor_copies.h"
#include "torch_dcp/transform/match_internal.h"
#include "torch_dcp/transform/skeleton_internal.h"
#include "torch_dcp/transform/tensor_elements_internal.h"

namespace dcp {

TransferReport distribute_state(const Dict& full, Dict& local, const DistributeOptions& options) {
  constexpr char kHeading[] = "distribution of a state";
  const FullState state = take_full_state(full, kHeading);
  Match match = match_states(state.skeleton, local, options.strict, kHeading);
  Targets targets({options.device, options.cpu_offload});
  std::vector<std::pair<const Transfer*, OpenTarget>> open;
  TensorCopies copies;
  for (std::size_t i = 0; i < match.transfers.size(); ++i) {
    const Transfer& transfer = match.transfers[i];
    if (!transfer.target) continue;
    const at::Tensor whole = elements_of(state.tensors[i]);
    const OpenTarget& target = open.emplace_back(&transfer, targets.open(transfer)).second;
    for (const LocalChunk& chunk : target.chunks) {
      copies.add(chunk.view, part_of(whole, chunk.box.offsets, chunk.box.sizes));
    }
  }
  copies.apply();
  for (auto& [transfer, target] : open) Targets::close(*transfer, std::move(target));
  finish_match(state.skeleton, local, match, options.strict);
  return std::move(match.report);
}

}  // namespace dcp
