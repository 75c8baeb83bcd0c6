#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "torch_dcp/base/error.h"
#include "torch_dcp/comm/group_factory.h"

namespace dcp {

GroupFactory gloo_group_factory(GlooFactoryOptions) {
  return [](const c10::intrusive_ptr<c10d::Store>&, int, int,
            std::chrono::milliseconds) -> c10::intrusive_ptr<c10d::ProcessGroup> {
    DCP_THROW(kUnsupported,
              "this LibTorch has no Gloo headers: set CommunicatorOptions::group_factory to a function that makes a "
              "group for CPU tensors");
  };
}

}  // namespace dcp
