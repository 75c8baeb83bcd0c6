#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/comm/codec.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/walk.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/transform/gather_plan_internal.h"
#include "torch_dcp/transform/local_parts_internal.h"
#include "torch_dcp/transform/rank_filter_internal.h"

namespace dcp {
namespace {

std::string spell(const DTensor& tensor) {
  std::string text = "mesh " + to_string(tensor.mesh().shape()) + " of ranks " +
                     to_string(c10::IntArrayRef(tensor.mesh().ranks())) + ", placements";
  for (const Placement& placement : tensor.placements()) text += " " + to_string(placement);
  return text;
}

bool is_partial(const Placement& placement) { return placement.kind == PlacementKind::kPartial; }

/// Which summand a rank of the mesh holds: its place among the mesh dimensions with Partial placements.
Reduction reduction_of(const DTensor& tensor) {
  Reduction reduction;
  for (std::size_t d = 0; d < tensor.placements().size(); ++d) {
    const Placement& placement = tensor.placements()[d];
    if (!is_partial(placement)) continue;
    reduction.op = placement.reduce_op;
    const std::int64_t size = tensor.mesh().shape()[d];
    reduction.summands *= size;
    const auto& coordinate = tensor.mesh().my_coordinate();
    reduction.summand = reduction.summand * size + (coordinate ? (*coordinate)[d] : 0);
  }
  return reduction;
}

/// Its summands' boxes are those of a replicated tensor.
DTensor without_partial(const DTensor& tensor) {
  Placements placements = tensor.placements();
  std::replace_if(placements.begin(), placements.end(), is_partial, Placement::replicate());
  return DTensor(tensor.local(), tensor.mesh_ptr(), std::move(placements), tensor.global_sizes());
}

/// Of a DTensor or ShardedTensor; empty if it can be gathered as far as this rank knows.
std::string why_not_gathered(const Value& value) {
  for (const at::Tensor& part : local_parts(value)) {
    if (!part.defined()) continue;
    std::string why = why_without_elements(part);
    if (why.empty()) why = why_without_tensor_quantizer(part);
    if (!why.empty()) return why + " cannot be gathered";
  }
  if (value.kind() != ValueKind::kDTensor) return "";
  std::string op;
  for (const Placement& placement : value.as_dtensor().placements()) {
    if (!is_partial(placement)) continue;
    if (!op.empty() && op != placement.reduce_op) {
      return "a DTensor with Partial placements of two reductions, " + op + " and " + placement.reduce_op;
    }
    op = placement.reduce_op;
  }
  return "";
}

void describe_tensor(const Value& value, GatherRow& row) {
  const TensorLike tensor = value.as_tensor_like();
  row.sizes = global_sizes(tensor);
  const bool is_dtensor = value.kind() == ValueKind::kDTensor;
  if (is_dtensor) {
    row.layout = spell(value.as_dtensor());
    row.reduction = reduction_of(value.as_dtensor());
  }
  if (is_dtensor && !value.as_dtensor().is_in_mesh()) return;
  row.dtype = dtype_of(tensor);
  for (const LocalChunk& chunk : gather_chunks(value)) {
    row.quantizer = tensor_quantizer_of(chunk.view);
    if (!chunk.box.empty()) row.boxes.push_back(chunk.box);
  }
}

/// Finds values that are one: the same tensors at the same places of the same whole.
class TieFinder {
 public:
  /// \param row  Its number.
  void add(const Value& value, const GatherRow& described, std::size_t row) {
    const std::string identity = identity_of(value, described);
    if (!identity.empty()) rows_of_[identity].push_back(row);
  }

  void mark(std::vector<GatherRow>& rows) const {
    for (const auto& [identity, same] : rows_of_) {
      const std::int64_t number = static_cast<std::int64_t>(same.front()) + 1;
      for (std::size_t row : same) rows[row].tie = same.size() > 1 ? number : GatherRow::kStandsAlone;
    }
  }

 private:
  /// Empty without parts.
  static std::string identity_of(const Value& value, const GatherRow& row) {
    const bool is_dtensor = value.kind() == ValueKind::kDTensor;
    if (is_dtensor && !value.as_dtensor().is_in_mesh()) return "";
    std::string parts;
    for (const at::Tensor& part : local_parts(value)) {
      if (part.defined()) parts += c10::str(" ", static_cast<const void*>(part.unsafeGetTensorImpl()));
    }
    if (parts.empty()) return "";
    if (!is_dtensor) {
      for (const Shard& shard : value.as_sharded_tensor().local_shards()) parts += " " + to_string(shard.offsets);
    }
    return row.kind + " " + to_string(*row.sizes) + " " + row.layout + parts;
  }

  std::unordered_map<std::string, std::vector<std::size_t>> rows_of_;
};

void put(ByteWriter& out, const Sizes& sizes) { encode(out, std::vector<std::int64_t>(sizes.begin(), sizes.end())); }

Sizes take_sizes(ByteReader& in) {
  std::vector<std::int64_t> sizes;
  decode(in, sizes);
  return Sizes(sizes.begin(), sizes.end());
}

void put(ByteWriter& out, const Box& box) {
  put(out, box.offsets);
  put(out, box.sizes);
}

Box take_box(ByteReader& in) {
  const Sizes offsets = take_sizes(in);
  return make_box(offsets, take_sizes(in));
}

void put(ByteWriter& out, at::ScalarType dtype) { out.text(dtype_name(dtype)); }

at::ScalarType take_dtype(ByteReader& in) {
  const auto dtype = dtype_from_name(in.text());
  DCP_CHECK(dtype, kCorruptData, "a message has an unknown dtype");
  return *dtype;
}

void put(ByteWriter& out, const std::optional<TensorQuantizer>& quantizer) {
  out.boolean(quantizer.has_value());
  if (!quantizer) return;
  out.f64(quantizer->scale);
  out.i64(quantizer->zero_point);
}

std::optional<TensorQuantizer> take_quantizer(ByteReader& in) {
  if (!in.boolean()) return std::nullopt;
  TensorQuantizer quantizer;
  quantizer.scale = in.f64();
  quantizer.zero_point = in.i64();
  return quantizer;
}

void put(ByteWriter& out, const GatherRow& row) {
  out.text(row.name);
  out.text(row.key);
  out.text(row.kind);
  out.text(row.layout);
  out.boolean(row.sizes.has_value());
  if (!row.sizes) return;
  put(out, *row.sizes);
  out.boolean(row.dtype.has_value());
  if (row.dtype) put(out, *row.dtype);
  put(out, row.quantizer);
  out.text(row.reduction.op);
  out.i64(row.reduction.summand);
  out.i64(row.reduction.summands);
  out.u64(row.boxes.size());
  for (const Box& box : row.boxes) put(out, box);
  out.i64(row.tie);
}

GatherRow take_row(ByteReader& in) {
  GatherRow row;
  row.name = in.text();
  row.key = in.text();
  row.kind = in.text();
  row.layout = in.text();
  if (!in.boolean()) return row;
  row.sizes = take_sizes(in);
  if (in.boolean()) row.dtype = take_dtype(in);
  row.quantizer = take_quantizer(in);
  row.reduction.op = in.text();
  row.reduction.summand = in.i64();
  row.reduction.summands = in.i64();
  const std::uint64_t count = in.count();
  for (std::uint64_t i = 0; i < count; ++i) row.boxes.push_back(take_box(in));
  row.tie = in.i64();
  return row;
}

void put(ByteWriter& out, const GatherTensor& tensor) {
  out.text(tensor.name);
  put(out, tensor.info.sizes);
  put(out, tensor.info.dtype);
  put(out, tensor.quantizer);
  out.text(tensor.reduce_op);
  out.boolean(tensor.is_everywhere);
  out.boolean(tensor.same_as.has_value());
  if (tensor.same_as) out.u64(*tensor.same_as);
  out.u64(tensor.parts.size());
  for (const GatherPart& part : tensor.parts) {
    put(out, part.box);
    encode(out, part.ranks);
  }
}

GatherTensor take_planned(ByteReader& in) {
  GatherTensor tensor;
  tensor.name = in.text();
  tensor.info.sizes = take_sizes(in);
  tensor.info.dtype = take_dtype(in);
  tensor.quantizer = take_quantizer(in);
  tensor.reduce_op = in.text();
  tensor.is_everywhere = in.boolean();
  if (in.boolean()) tensor.same_as = in.u64();
  const std::uint64_t count = in.count();
  for (std::uint64_t i = 0; i < count; ++i) {
    GatherPart& part = tensor.parts.emplace_back();
    part.box = take_box(in);
    decode(in, part.ranks);
  }
  return tensor;
}

}  // namespace

void encode(ByteWriter& out, const GatherRows& rows) {
  encode(out, rows.ranks);
  out.i64(rows.bucket_bytes);
  out.u64(rows.rows.size());
  for (const GatherRow& row : rows.rows) put(out, row);
}

void decode(ByteReader& in, GatherRows& rows) {
  decode(in, rows.ranks);
  rows.bucket_bytes = in.i64();
  const std::uint64_t count = in.count();
  for (std::uint64_t i = 0; i < count; ++i) rows.rows.push_back(take_row(in));
}

void encode(ByteWriter& out, const GatherPlan& plan) {
  out.u64(plan.tensors.size());
  for (const GatherTensor& tensor : plan.tensors) put(out, tensor);
}

void decode(ByteReader& in, GatherPlan& plan) {
  const std::uint64_t count = in.count();
  for (std::uint64_t i = 0; i < count; ++i) {
    plan.tensors.push_back(take_planned(in));
    const std::optional<std::uint64_t> same_as = plan.tensors.back().same_as;
    DCP_CHECK(!same_as || *same_as < i, kCorruptData, "message has tensor ", i, " for the same as ", *same_as,
              ", which does not come before it");
  }
}

std::vector<LocalChunk> gather_chunks(const Value& value) {
  if (value.kind() == ValueKind::kDTensor) return local_chunks(without_partial(value.as_dtensor()));
  return local_chunks(value.as_tensor_like());
}

GatherRows describe_for_gather(const Value& state, const GatherOptions& options, int my_rank) {
  const bool is_offloaded = options.cpu_offload && passes(options.ranks, my_rank);
  GatherRows rows{options.ranks, options.bucket_bytes, {}};
  FaultList faults;
  TieFinder ties;
  visit_all(state, [&](const Path& path, const Value& leaf) {
    GatherRow row;
    row.name = describe(path);
    row.key = flat_key(path);
    row.kind = value_kind_name(leaf.kind());
    if (leaf.is_tensor_like() && !leaf.is_tensor()) {
      const std::string why = why_not_gathered(leaf);
      if (!why.empty()) return faults.add(ErrorKind::kUnsupported, row.key, why);
      try {
        describe_tensor(leaf, row);
        ties.add(leaf, row, rows.rows.size());
      } catch (c10::Error& error) {
        error.add_context("key '" + row.key + "'");
        throw;
      }
    }
    if (is_offloaded && leaf.is_tensor() && leaf.as_tensor().defined() && leaf.as_tensor().is_meta()) {
      return faults.add(ErrorKind::kUnsupported, row.key, "a tensor on the meta device cannot be moved to the CPU");
    }
    rows.rows.push_back(std::move(row));
  });
  faults.throw_if_any("gather", DCP_WHERE);
  ties.mark(rows.rows);
  return rows;
}

}  // namespace dcp
