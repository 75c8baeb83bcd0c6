#pragma once

#include "torch_dcp/io/shared_memory.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

struct CpuTwinOptions {
  /// Tensors lie in page-locked memory, into which devices copy fast and without blocking.
  bool pin_memory = false;
  /// Tensors lie in memory that other processes can map. With `pin_memory` that memory is page-locked.
  bool share_memory = false;
};

/// A state dict of the same structure whose tensors are new ones on the CPU: what elements are staged in.
///
/// Their contents are unspecified but where a tensor has no dimensions, no elements or no data (as on the meta device):
/// there they are zeros. A tensor without dimensions is neither pinned nor shared, one without elements or data never
/// pinned. Sizes and dtypes are those of `state`, and strides where its tensors are dense and have data; DTensors and
/// ShardedTensors keep their layouts. A tensor that is there twice has one twin. Other values are copied; a Stateful
/// becomes the twin of its state.
///
/// Shared tensors lie in one block, each at a multiple of 64 bytes; the block is unmapped, and no longer page-locked,
/// when the last of their storages dies.
///
/// \throws dcp::Error kState if memory cannot be page-locked: for want of an accelerator, or of a way to page-lock
///         shared memory in this program (only CUDA's run-time library has one); kIo if the system has no shared
///         memory left; kUnsupported that names tensors which are sparse, nested or quantized. Nothing is left behind.
/// Collective: no.
DCP_API Dict make_cpu_twin(const Dict& state, const CpuTwinOptions& options = {});

/// The block in which a tensor of a shared twin lies, or null: the tensor's bytes begin `data_ptr() - block.data()`
/// behind its start, in any process that maps it. The block lives as long as the tensor's storage.
DCP_API const SharedMemory* shared_memory_of(const at::Tensor& tensor);

}  // namespace dcp
