#include "tools/dcp/stream_save_planner.h"

#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/tensor/box_pieces.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp::tool {
namespace {

void add_tensor(const std::string& key, const at::Tensor& tensor, bool requires_grad, std::int64_t max_chunk_bytes,
                std::vector<WriteItem>& items) {
  WriteItem item;
  item.index.fqn = key;
  item.size = Sizes(tensor.sizes());
  item.properties.dtype = tensor.scalar_type();
  item.properties.requires_grad = requires_grad;
  const std::vector<Box> chunks = cut_into_pieces(item.size, element_bytes(tensor.scalar_type()), max_chunk_bytes);
  item.type = chunks.size() == 1 ? WriteItemType::kTensor : WriteItemType::kShard;
  for (const Box& chunk : chunks) {
    item.chunk = chunk;
    item.index.offset = chunk.offsets;
    items.push_back(item);
  }
}

}  // namespace

StreamSavePlanner::StreamSavePlanner(Source& source, std::int64_t max_chunk_bytes,
                                     std::function<void(std::int64_t)> on_read)
    : source_(source), max_chunk_bytes_(max_chunk_bytes), on_read_(std::move(on_read)) {}

void StreamSavePlanner::set_up(const StateDict& state, const SavePlannerContext& context) {
  DCP_CHECK(state.empty(), kInvalidArgument, "what is saved comes from the source alone");
  DefaultSavePlanner::set_up(state, context);
}

SavePlan StreamSavePlanner::create_local_plan() {
  SavePlan plan;
  if (source_.has_paths()) plan.planner_data.edit();
  for (const auto& [key, leaf] : source_.leaves()) {
    if (leaf.value.is_tensor()) {
      add_tensor(key, leaf.value.as_tensor(), source_.requiring_grad().contains(key), max_chunk_bytes_, plan.items);
    } else {
      WriteItem item;
      item.index.fqn = key;
      plan.items.push_back(std::move(item));
    }
    if (plan.planner_data) plan.planner_data.edit().insert(key, leaf.path);
  }
  return plan;
}

at::Tensor StreamSavePlanner::resolve_tensor(const WriteItem& item) const {
  const std::lock_guard lock(mutex_);
  const at::Tensor tensor = source_.read(item.index.fqn, item.chunk);
  on_read_(static_cast<std::int64_t>(tensor.nbytes()));
  return tensor;
}

const Value& StreamSavePlanner::resolve_object(const WriteItem& item) const {
  return source_.leaves().find(item.index.fqn)->value;
}

}  // namespace dcp::tool
