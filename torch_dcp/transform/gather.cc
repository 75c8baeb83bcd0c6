#include "torch_dcp/transform/gather.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/comm/rank_step.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/walk.h"
#include "torch_dcp/tensor/box_pieces.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/transform/gather_plan_internal.h"
#include "torch_dcp/transform/local_parts_internal.h"
#include "torch_dcp/transform/rank_filter_internal.h"
#include "torch_dcp/transform/stateful_internal.h"
#include "torch_dcp/transform/tensor_elements_internal.h"

namespace dcp {
namespace {

/// A part of a whole as it travels in a bucket.
struct Piece {
  std::size_t tensor = 0;
  std::size_t part = 0;
  Box box;                  ///< in the whole
  std::int64_t bytes = 0;   ///< of one summand
  std::int64_t offset = 0;  ///< in what goes back to the ranks
};

struct Bucket {
  std::vector<Piece> pieces;
  std::int64_t bytes = 0;     ///< that go back to the ranks
  std::int64_t incoming = 0;  ///< that the ranks bring together
};

Box shifted(Box box, const Sizes& by) {
  for (std::size_t d = 0; d < box.ndim(); ++d) box.offsets[d] += by[d];
  return box;
}

/// The same on every rank, since it follows from the plan.
std::vector<Bucket> fill_buckets(const GatherPlan& plan, std::int64_t bucket_bytes) {
  std::vector<Bucket> buckets;
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
    const GatherTensor& tensor = plan.tensors[t];
    const std::int64_t element = element_bytes(tensor.info.dtype);
    for (std::size_t p = 0; p < tensor.parts.size(); ++p) {
      const GatherPart& part = tensor.parts[p];
      const auto summands = static_cast<std::int64_t>(part.ranks.size());
      for (const Box& box : cut_into_pieces(part.box.sizes, element, bucket_bytes / summands)) {
        const std::int64_t bytes = box.numel() * element;
        if (buckets.empty() || buckets.back().incoming + aligned(bytes) * summands > bucket_bytes)
          buckets.emplace_back();
        Bucket& bucket = buckets.back();
        bucket.pieces.push_back({t, p, shifted(box, part.box.offsets), bytes, bucket.bytes});
        bucket.bytes += aligned(bytes);
        bucket.incoming += aligned(bytes) * summands;
      }
    }
  }
  return buckets;
}

at::Tensor tensor_over(std::uint8_t* bytes, const Piece& piece, at::ScalarType dtype) {
  return at::from_blob(bytes, piece.box.sizes, at::TensorOptions(dtype));
}

void reduce_into(const at::Tensor& sum, const at::Tensor& next, const std::string& op) {
  if (op == "max") {
    at::maximum_out(const_cast<at::Tensor&>(sum), sum, next);
  } else if (op == "min") {
    at::minimum_out(const_cast<at::Tensor&>(sum), sum, next);
  } else if (op == "product") {
    sum.mul_(next);
  } else {
    sum.add_(next);
  }
}

/// A tensor in parts of this rank's state, and the whole that it becomes.
struct Leaf {
  const Value* value = nullptr;
  std::vector<LocalChunk> chunks;  ///< views of elements
  at::Tensor whole;
};

/// One rank's side of a gather.
class Gathering {
 public:
  Gathering(const Value& state, const GatherPlan& plan, Communicator& comm, const GatherOptions& options)
      : plan_(plan), comm_(comm), options_(options), leaves_(plan.tensors.size()) {
    keeps_ = passes(options.ranks, comm.rank());
    for (int rank = 0; rank < comm.size(); ++rank) {
      others_keep_ = others_keep_ || (rank != comm.coordinator() && passes(options.ranks, rank));
    }
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) numbers_.emplace(plan.tensors[i].name, i);
    visit_all(state, [&](const Path& path, const Value& leaf) {
      if (const auto found = numbers_.find(describe(path)); found != numbers_.end()) take(found->second, leaf);
    });
  }

  void run(const Bucket& bucket) {
    StepParts parts;
    parts.local = [&] {
      if (keeps_) make_wholes(bucket);
      return pack(bucket);
    };
    parts.global = [&](std::vector<Bytes> all) { return merge(bucket, std::move(all)); };
    parts.receive = [&](Bytes bytes) {
      if (keeps_ && others_keep_) unpack(bucket, bytes);
    };
    comm_.run_step("gather elements", parts);
  }

  Value result(const Value& state) {
    if (!keeps_) return filtered_out(state);
    std::unordered_map<const c10::TensorImpl*, at::Tensor> moved;  // One that is there twice stays one.
    return replace_leaves(state, [&](const Path& path, const Value& leaf) -> Value {
      const auto found = numbers_.find(describe(path));
      if (found != numbers_.end()) return finished_whole(found->second);
      if (!options_.cpu_offload || !leaf.is_tensor() || !leaf.as_tensor().defined()) return leaf;
      if (leaf.as_tensor().is_cpu()) return leaf;
      at::Tensor& here = moved[leaf.as_tensor().unsafeGetTensorImpl()];
      if (!here.defined()) here = leaf.as_tensor().detach().to(at::kCPU);
      return here;
    });
  }

 private:
  void take(std::size_t number, const Value& value) {
    Leaf& leaf = leaves_[number];
    leaf.value = &value;
    leaf.chunks = gather_chunks(value);
    for (LocalChunk& chunk : leaf.chunks) chunk.view = elements_of(chunk.view);
  }

  c10::Device device_of(const Leaf& leaf) const {
    if (options_.cpu_offload) return at::kCPU;
    for (const at::Tensor& part : local_parts(*leaf.value)) {
      if (part.defined()) return part.device();
    }
    return at::kCPU;
  }

  at::Tensor new_whole(std::size_t number) const {
    const GatherTensor& tensor = plan_.tensors[number];
    at::Tensor whole =
        at::empty(tensor.info.sizes, at::TensorOptions(tensor.info.dtype).device(device_of(leaves_[number])));
    set_tensor_quantizer(whole, tensor.quantizer);
    return whole;
  }

  void make_wholes(const Bucket& bucket) {
    for (const Piece& piece : bucket.pieces) {
      Leaf& leaf = leaves_[piece.tensor];
      if (!leaf.whole.defined()) leaf.whole = new_whole(piece.tensor);
    }
  }

  /// One that came, or one that did not have to.
  at::Tensor finished_whole(std::size_t number) {
    if (const auto& same = plan_.tensors[number].same_as) return finished_whole(static_cast<std::size_t>(*same));
    Leaf& leaf = leaves_[number];
    if (leaf.whole.defined()) return leaf.whole;
    leaf.whole = new_whole(number);
    if (plan_.tensors[number].is_everywhere) elements_of(leaf.whole).copy_(leaf.chunks.front().view);
    return leaf.whole;
  }

  const std::vector<std::int64_t>& ranks_of(const Piece& piece) const {
    return plan_.tensors[piece.tensor].parts[piece.part].ranks;
  }

  bool brings(std::int64_t rank, const Piece& piece) const {
    const auto& ranks = ranks_of(piece);
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  }

  /// This rank's pieces, one behind the other.
  Bytes pack(const Bucket& bucket) const {
    std::int64_t byte_count = 0;
    for (const Piece& piece : bucket.pieces) byte_count += brings(comm_.rank(), piece) ? aligned(piece.bytes) : 0;
    Bytes bytes(static_cast<std::size_t>(byte_count));
    std::int64_t offset = 0;
    for (const Piece& piece : bucket.pieces) {
      if (!brings(comm_.rank(), piece)) continue;
      write_elements(view_of(piece), bytes.data() + offset);
      offset += aligned(piece.bytes);
    }
    return bytes;
  }

  at::Tensor view_of(const Piece& piece) const {
    for (const LocalChunk& chunk : leaves_[piece.tensor].chunks) {
      if (!chunk.box.contains(piece.box)) continue;
      Sizes offsets = piece.box.offsets;
      for (std::size_t d = 0; d < offsets.size(); ++d) offsets[d] -= chunk.box.offsets[d];
      return part_of(chunk.view, offsets, piece.box.sizes);
    }
    DCP_THROW(kInternal, "this rank does not hold ", to_string(piece.box), " of ", plan_.tensors[piece.tensor].name);
  }

  /// On the coordinator: from what each rank brought to what all get.
  std::vector<Bytes> merge(const Bucket& bucket, std::vector<Bytes> all) {
    std::vector<Bytes> answer(1);
    if (others_keep_) answer.front().resize(static_cast<std::size_t>(bucket.bytes));
    std::vector<std::int64_t> offsets(all.size(), 0);
    for (const Piece& piece : bucket.pieces) {
      std::vector<std::uint8_t*> summands;
      for (std::int64_t rank : ranks_of(piece)) {
        const auto r = static_cast<std::size_t>(rank);
        DCP_CHECK(offsets[r] + piece.bytes <= static_cast<std::int64_t>(all[r].size()), kInternal, "rank ", rank,
                  " brought ", all[r].size(), " bytes, too few");
        summands.push_back(all[r].data() + offsets[r]);
        offsets[r] += aligned(piece.bytes);
      }
      reduce(piece, summands);
      if (others_keep_) {
        std::copy_n(summands.front(), piece.bytes, answer.front().data() + piece.offset);
      } else if (keeps_) {
        place(piece, summands.front());
      }
    }
    return answer;
  }

  /// In the order of ranks, into the first.
  void reduce(const Piece& piece, const std::vector<std::uint8_t*>& summands) const {
    const GatherTensor& tensor = plan_.tensors[piece.tensor];
    if (tensor.reduce_op.empty()) return;
    const at::Tensor sum = tensor_over(summands.front(), piece, tensor.info.dtype);
    for (std::size_t i = 1; i < summands.size(); ++i) {
      reduce_into(sum, tensor_over(summands[i], piece, tensor.info.dtype), tensor.reduce_op);
    }
    if (tensor.reduce_op == "avg") sum.div_(static_cast<std::int64_t>(summands.size()));
  }

  void unpack(const Bucket& bucket, const Bytes& bytes) {
    DCP_CHECK(bytes.size() == static_cast<std::size_t>(bucket.bytes), kInternal, "a bucket of ", bucket.bytes,
              " bytes came as ", bytes.size());
    for (const Piece& piece : bucket.pieces) place(piece, bytes.data() + piece.offset);
  }

  void place(const Piece& piece, const std::uint8_t* bytes) {
    const at::Tensor whole = elements_of(leaves_[piece.tensor].whole);
    copy_elements(bytes, piece.box.sizes, Sizes(piece.box.ndim(), 0),
                  part_of(whole, piece.box.offsets, piece.box.sizes));
  }

  const GatherPlan& plan_;
  Communicator& comm_;
  const GatherOptions& options_;
  std::vector<Leaf> leaves_;                              ///< by number of the plan's tensors
  std::unordered_map<std::string, std::size_t> numbers_;  ///< by name
  bool keeps_ = false;                                    ///< this rank gets the result
  bool others_keep_ = false;                              ///< some rank beside the coordinator does
};

}  // namespace

Value gather_value(const Value& value, Communicator& comm, const GatherOptions& options) {
  const c10::NoGradGuard no_grad;
  Value state;
  const GatherPlan plan = reduce_step(
      comm, "gather plan",
      [&] {
        check_rank_filter(options.ranks, comm.size());
        state = replace_all_stateful(value);
        return describe_for_gather(state, options, comm.rank());
      },
      plan_gather);
  std::optional<Gathering> gathering;
  std::vector<Bucket> buckets;
  status_step(comm, "gather start", [&] {
    gathering.emplace(state, plan, comm, options);
    buckets = fill_buckets(plan, options.bucket_bytes);
  });
  for (const Bucket& bucket : buckets) gathering->run(bucket);
  Value result;
  status_step(comm, "gather result", [&] { result = gathering->result(state); });
  return result;
}

Dict gather(const Dict& state, Communicator& comm, const GatherOptions& options) {
  return std::move(gather_value(state, comm, options).as_dict());
}

}  // namespace dcp
