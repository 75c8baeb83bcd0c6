#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <mutex>
#include <string>

#include "tools/dcp/source.h"
#include "torch_dcp/plan/default_save_planner.h"

namespace dcp::tool {

/// Saves a source as DCP. A tensor is read chunk by chunk when the writer asks for it; one of more than
/// `max_chunk_bytes` is stored in several chunks, so that no more than one of them for each writer thread is in memory.
class StreamSavePlanner : public DefaultSavePlanner {
 public:
  /// \param source   Must outlive the planner.
  /// \param on_read  Told of the bytes of each chunk.
  StreamSavePlanner(Source& source, std::int64_t max_chunk_bytes, std::function<void(std::int64_t)> on_read);

  void set_up(const StateDict& state, const SavePlannerContext& context) override;
  SavePlan create_local_plan() override;
  at::Tensor resolve_tensor(const WriteItem& item) const override;
  const Value& resolve_object(const WriteItem& item) const override;

 private:
  Source& source_;
  std::int64_t max_chunk_bytes_;
  std::function<void(std::int64_t)> on_read_;
  mutable std::mutex mutex_;  ///< of source and callback
};

}  // namespace dcp::tool
