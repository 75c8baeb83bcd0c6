#include "torch_dcp/transform/match_internal.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <unordered_map>
#include <variant>

#include "torch_dcp/base/error.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/tensor_fit.h"
#include "torch_dcp/state_dict/walk.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/transform/local_parts_internal.h"

namespace dcp {
namespace {

using Children = std::unordered_map<Key, const Skeleton*, KeyHash>;

/// \pre Of a dict.
Children children_of(const Skeleton& skeleton) {
  Children children;
  for (std::size_t i = 0; i < skeleton.keys.size(); ++i) children.emplace(skeleton.keys[i], &skeleton.children[i]);
  return children;
}

bool is_container(const Skeleton& skeleton) {
  return skeleton.kind == ValueKind::kDict || skeleton.kind == ValueKind::kList || skeleton.kind == ValueKind::kTuple;
}

std::vector<Value>& sequence_of(Value& value) {
  if (auto* const list = std::get_if<List>(&value.storage())) return *list;
  return std::get<Tuple>(value.storage());
}

class Matching {
 public:
  explicit Matching(bool strict) : strict_(strict) {}

  void dicts(const Skeleton& full, Dict& local) {
    for (std::size_t i = 0; i < full.keys.size(); ++i) {
      Value* const here = local.find(full.keys[i]);
      below(PathItem::dict_key(full.keys[i]), [&] {
        if (here) {
          values(full.children[i], *here);
        } else {
          drop(full.children[i]);
        }
      });
    }
    const Children children = children_of(full);
    for (const auto& [key, value] : local) {
      if (children.contains(key)) continue;
      below(PathItem::dict_key(key), [&] { note_unknown(value); });
    }
  }

  const FaultList& faults() const { return faults_; }
  Match take() { return std::move(match_); }

 private:
  void values(const Skeleton& full, Value& local) {
    if (is_container(full) || local.is_container()) {
      if (full.kind != local.kind()) return kinds(full, local);
      if (local.is_dict()) return dicts(full, local.as_dict());
      return sequences(full, sequence_of(local));
    }
    const bool is_tensor = full.kind == ValueKind::kTensor;
    if (is_tensor != local.is_tensor_like()) {
      kinds(full, local);
    } else if (is_tensor) {
      check_tensor(full.tensor, local);
      match_.transfers.push_back({flat_key(path_), full.tensor, full.quantizer, &local});
    } else {
      match_.plain.emplace_back(&local, &full.plain);
    }
  }

  void sequences(const Skeleton& full, std::vector<Value>& local) {
    if (full.children.size() != local.size()) {
      return fault(ErrorKind::kKey,
                   c10::str("the full state has ", full.children.size(), " elements, this rank has ", local.size()));
    }
    for (std::size_t i = 0; i < local.size(); ++i) {
      below(PathItem::list_index(static_cast<std::int64_t>(i)), [&] { values(full.children[i], local[i]); });
    }
  }

  /// All below it is unknown here.
  void drop(const Skeleton& full) {
    if (full.kind == ValueKind::kTensor) {
      match_.transfers.push_back({flat_key(path_), full.tensor, full.quantizer, nullptr});
    }
    if (full.children.empty()) match_.report.dropped.push_back(flat_key(path_));
    const bool is_dict = full.kind == ValueKind::kDict;
    for (std::size_t i = 0; i < full.children.size(); ++i) {
      PathItem item = is_dict ? PathItem::dict_key(full.keys[i]) : PathItem::list_index(static_cast<std::int64_t>(i));
      below(std::move(item), [&] { drop(full.children[i]); });
    }
  }

  void note_unknown(const Value& local) {
    auto& keys = strict_ ? match_.report.removed : match_.report.untouched;
    visit_all(local, [&](const Path& inner, const Value&) {
      Path path = path_;
      path.insert(path.end(), inner.begin(), inner.end());
      keys.push_back(flat_key(path));
    });
  }

  void check_tensor(const TensorInfo& full, const Value& local) {
    for (const at::Tensor& part : local_parts(local)) {
      // What has no memory yet gets some.
      if (!part.defined() || (part.layout() == at::kStrided && !part.is_nested() && part.is_meta())) continue;
      std::string why = why_without_elements(part);
      if (why.empty()) why = why_not_writable(part);
      if (!why.empty()) return fault(ErrorKind::kUnsupported, why + " cannot be written");
    }
    if (local.is_tensor() && !local.as_tensor().defined()) return;
    const bool is_dtensor = local.kind() == ValueKind::kDTensor;
    if (is_dtensor && local.as_dtensor().is_partial()) {
      return fault(ErrorKind::kUnsupported, "the parts of a Partial DTensor are no parts of a whole");
    }
    const TensorLike tensor = local.as_tensor_like();
    if (global_sizes(tensor) != full.sizes) {
      return fault(ErrorKind::kShape, c10::str("the full state has shape ", to_string(full.sizes), ", this rank has ",
                                               to_string(global_sizes(tensor))));
    }
    if (is_dtensor && !local.as_dtensor().is_in_mesh()) return;  // Its empty part may have any dtype.
    if (dtype_of(tensor) != full.dtype) {
      fault(ErrorKind::kType,
            c10::str("the full state has ", dtype_name(full.dtype), ", this rank has ", dtype_name(dtype_of(tensor))));
    }
  }

  void kinds(const Skeleton& full, const Value& local) {
    fault(ErrorKind::kType, c10::str("the full state has a ", value_kind_name(full.kind), ", this rank has a ",
                                     value_kind_name(local.kind())));
  }

  void fault(ErrorKind kind, const std::string& what) { faults_.add(kind, flat_key(path_), what); }

  template <typename Call>
  void below(PathItem item, const Call& call) {
    path_.push_back(std::move(item));
    call();
    path_.pop_back();
  }

  bool strict_;
  Path path_;
  FaultList faults_;
  Match match_;
};

void remove_unknown(const Skeleton& full, Value& local);

void remove_unknown(const Skeleton& full, Dict& local) {
  const Children children = children_of(full);
  Dict kept;
  bool all_known = true;
  for (auto& [key, value] : local) {
    const auto known = children.find(key);
    all_known = all_known && known != children.end();
    if (known != children.end()) remove_unknown(*known->second, value);
  }
  if (all_known) return;
  for (auto& [key, value] : local) {
    if (children.contains(key)) kept.insert_or_assign(key, std::move(value));
  }
  local = std::move(kept);
}

void remove_unknown(const Skeleton& full, Value& local) {
  if (local.is_dict()) return remove_unknown(full, local.as_dict());
  if (!local.is_container()) return;
  std::vector<Value>& elements = sequence_of(local);
  for (std::size_t i = 0; i < elements.size(); ++i) remove_unknown(full.children[i], elements[i]);
}

bool needs_memory(const at::Tensor& part, const PlaceOptions& options) {
  return part.is_meta() || (options.cpu_offload && !part.is_cpu());
}

std::vector<LocalChunk> element_chunks(const Value& value) {
  std::vector<LocalChunk> chunks = local_chunks(value.as_tensor_like());
  for (LocalChunk& chunk : chunks) chunk.view = elements_of(chunk.view);
  return chunks;
}

c10::Device device_of(const PlaceOptions& options) {
  return options.cpu_offload ? c10::Device(at::kCPU) : options.device.value_or(at::kCPU);
}

}  // namespace

Match match_states(const Skeleton& full, Dict& local, bool strict, const char* what) {
  Matching matching(strict);
  matching.dicts(full, local);
  matching.faults().throw_if_any(what, DCP_WHERE);
  return matching.take();
}

void finish_match(const Skeleton& full, Dict& local, Match& match, bool strict) {
  for (const auto& [here, value] : match.plain) *here = *value;
  if (strict && !match.report.removed.empty()) remove_unknown(full, local);
}

std::vector<LocalChunk> chunks_in_place(const Transfer& transfer, const PlaceOptions& options) {
  if (transfer.target == nullptr) return {};
  const Value& target = *transfer.target;
  const auto gets_memory = [&](const at::Tensor& part) { return !part.defined() || needs_memory(part, options); };
  if (target.kind() == ValueKind::kShardedTensor) {
    const ShardedTensor& tensor = target.as_sharded_tensor();
    std::vector<Shard> shards = tensor.local_shards();
    std::erase_if(shards, [&](const Shard& shard) { return gets_memory(shard.tensor); });
    return element_chunks(ShardedTensor(tensor.global_sizes(), tensor.dtype(), std::move(shards)));
  }
  if (gets_memory(local_parts(target).front())) return {};
  return element_chunks(target);
}

OpenTarget Targets::open(const Transfer& transfer) {
  OpenTarget open;
  if (transfer.target->is_tensor() && !transfer.target->as_tensor().defined()) {
    open.value = at::empty(transfer.info.sizes, at::TensorOptions(transfer.info.dtype).device(device_of(options_)));
  } else {
    open.value = with_local_parts(*transfer.target, [&](const at::Tensor& part) { return with_memory(part); });
  }
  open.chunks = element_chunks(open.value);
  return open;
}

at::Tensor Targets::with_memory(const at::Tensor& part) {
  if (!part.defined() || !needs_memory(part, options_)) return part;
  const auto found = replaced_.find(part.unsafeGetTensorImpl());
  if (found != replaced_.end()) return found->second.made;
  at::Tensor made = at::empty_like(part.detach(), at::TensorOptions(device_of(options_)));
  if (part.requires_grad()) made.set_requires_grad(true);
  replaced_.emplace(part.unsafeGetTensorImpl(),
                    Replaced{c10::weak_intrusive_ptr<c10::TensorImpl>(part.getIntrusivePtr()), made});
  return made;
}

void Targets::close(const Transfer& transfer, OpenTarget target) {
  if (transfer.quantizer) {
    for (const at::Tensor& part : local_parts(target.value)) {
      if (part.defined()) set_tensor_quantizer(part, transfer.quantizer);
    }
  }
  *transfer.target = std::move(target.value);
}

}  // namespace dcp
