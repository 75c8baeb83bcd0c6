#include "torch_dcp/tensor/local_chunks.h"

#include <algorithm>

#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

void check_can_be_saved(const at::Tensor& tensor) {
  DCP_CHECK(tensor.defined(), kInvalidArgument, "the tensor is undefined");
  // Its elements lie in other tensors, which only its class knows.
  DCP_CHECK(!tensor.unsafeGetTensorImpl()->is_python_dispatch(), kUnsupported,
            "tensors whose operators are Python's, such as Python's DTensor, cannot be saved or loaded here");
  DCP_CHECK(!tensor.is_nested(), kUnsupported, "nested tensors cannot be saved or loaded");
  DCP_CHECK(tensor.layout() == at::kStrided, kUnsupported, "tensors of layout ", tensor.layout(),
            " cannot be saved or loaded, only strided ones");
  DCP_CHECK(!tensor.is_meta(), kUnsupported, "tensors on the meta device have no elements to save or load");
}

std::vector<LocalChunk> chunks_of(const at::Tensor& tensor) {
  check_can_be_saved(tensor);
  std::vector<LocalChunk> chunks;
  // A handle of its own where one is needed only: for a small tensor it costs more than all else here. A quantizer
  // belongs to the handle.
  const bool needs_own = tensor.requires_grad() || tensor.is_quantized();
  chunks.push_back({whole_box(tensor.sizes()), needs_own ? tensor.detach() : tensor});
  return chunks;
}

std::vector<LocalChunk> chunks_of(const DTensor& tensor) {
  DCP_CHECK(!tensor.is_partial(), kUnsupported,
            "a DTensor with a Partial placement cannot be saved or loaded: reduce it before");
  if (!tensor.is_in_mesh()) return {};
  check_can_be_saved(tensor.local());
  const at::Tensor local = tensor.local().detach();
  std::vector<LocalChunk> chunks;
  for (LayoutPiece& piece : pieces_of(tensor.layout())) {
    at::Tensor view = local;
    for (std::size_t d = 0; d < piece.box.ndim(); ++d) {
      if (view.size(d) == piece.box.sizes[d]) continue;
      view = view.narrow(static_cast<std::int64_t>(d), piece.local_offsets[d], piece.box.sizes[d]);
    }
    chunks.push_back({std::move(piece.box), std::move(view)});
  }
  return chunks;
}

std::vector<LocalChunk> chunks_of(const ShardedTensor& tensor) {
  std::vector<LocalChunk> chunks;
  for (const Shard& shard : tensor.local_shards()) {
    check_can_be_saved(shard.tensor);
    chunks.push_back({{shard.offsets, Sizes(shard.tensor.sizes())}, shard.tensor.detach()});
  }
  std::stable_sort(chunks.begin(), chunks.end(), [](const LocalChunk& a, const LocalChunk& b) {
    return std::lexicographical_compare(a.box.offsets.begin(), a.box.offsets.end(), b.box.offsets.begin(),
                                        b.box.offsets.end());
  });
  return chunks;
}

struct GlobalSizes {
  Sizes operator()(const at::Tensor& tensor) const {
    DCP_CHECK(tensor.defined(), kInvalidArgument, "the tensor is undefined");
    DCP_CHECK(!tensor.is_nested(), kUnsupported, "nested tensors have no sizes");
    return Sizes(tensor.sizes());
  }
  Sizes operator()(const DTensor& tensor) const { return tensor.global_sizes(); }
  Sizes operator()(const ShardedTensor& tensor) const { return tensor.global_sizes(); }
};

struct DtypeOf {
  at::ScalarType operator()(const at::Tensor& tensor) const { return tensor.scalar_type(); }
  at::ScalarType operator()(const DTensor& tensor) const { return tensor.dtype(); }
  at::ScalarType operator()(const ShardedTensor& tensor) const { return tensor.dtype(); }
};

struct RequiresGrad {
  bool operator()(const at::Tensor& tensor) const { return tensor.defined() && tensor.requires_grad(); }
  bool operator()(const DTensor& tensor) const { return (*this)(tensor.local()); }
  bool operator()(const ShardedTensor& tensor) const {
    return std::any_of(tensor.local_shards().begin(), tensor.local_shards().end(),
                       [this](const Shard& shard) { return (*this)(shard.tensor); });
  }
};

}  // namespace

Sizes global_sizes(const TensorLike& tensor) { return std::visit(GlobalSizes(), tensor); }

at::ScalarType dtype_of(const TensorLike& tensor) { return std::visit(DtypeOf(), tensor); }

bool requires_grad(const TensorLike& tensor) { return std::visit(RequiresGrad(), tensor); }

bool is_distributed(const TensorLike& tensor) { return !std::holds_alternative<at::Tensor>(tensor); }

std::vector<LocalChunk> local_chunks(const TensorLike& tensor) {
  return std::visit([](const auto& t) { return chunks_of(t); }, tensor);
}

}  // namespace dcp
