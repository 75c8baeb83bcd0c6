#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <set>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/object_item.h"
#include "torch_dcp/peer_memory/transport_incoming_internal.h"
#include "torch_dcp/state_dict/tensor_fit.h"
#include "torch_dcp/tensor/device_mesh.h"

namespace dcp {
namespace {

constexpr std::size_t kMaxNameBytes = 200;  // of a key that a head names, in errors

at::Tensor tensor_on(const c10::Storage& storage, at::ScalarType dtype, std::int64_t offset, c10::IntArrayRef sizes,
                     c10::IntArrayRef strides) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions(dtype).device(storage.device()));
  tensor.set_(storage, offset, sizes, strides);
  return tensor;
}

at::Tensor bytes_on(const c10::Storage& storage, std::int64_t offset, std::int64_t count) {
  const std::int64_t one = 1;
  return tensor_on(storage, at::kByte, offset, count, one);
}

// The elements as numbers that can be copied, whatever their dtype; what is expanded once.
at::Tensor plain_elements(const at::Tensor& tensor) {
  at::ScalarType dtype = at::kByte;
  if (tensor.itemsize() == 2) dtype = at::kShort;
  if (tensor.itemsize() == 4) dtype = at::kInt;
  if (tensor.itemsize() == 8) dtype = at::kLong;
  if (tensor.itemsize() == 16) dtype = at::kComplexDouble;
  Sizes sizes(tensor.sizes().begin(), tensor.sizes().end());
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (tensor.stride(static_cast<std::int64_t>(d)) == 0) sizes[d] = std::min<std::int64_t>(sizes[d], 1);
  }
  return tensor_on(tensor.storage(), dtype, tensor.storage_offset(), sizes, tensor.strides());
}

// Why `given` cannot take what is sent; empty if it can.
std::string why_not_in_place(const SentTensor& sent, const at::Tensor* given) {
  if (given == nullptr || !given->defined()) return "the given state has no tensor there";
  const c10::TensorImpl& impl = *given->unsafeGetTensorImpl();
  if (impl.is_python_dispatch() || given->is_nested() || given->layout() != at::kStrided || !given->has_storage() ||
      given->is_meta()) {
    return "the given tensor has no memory of its own";
  }
  if (given->scalar_type() != sent.dtype.dtype) {
    return c10::str("the given tensor has the dtype ", dtype_name(given->scalar_type()), ", what is sent ",
                    dtype_name(sent.dtype));
  }
  if (given->sizes() != c10::IntArrayRef(sent.sizes)) {
    return c10::str("the given tensor has the sizes ", given->sizes(), ", what is sent ", c10::IntArrayRef(sent.sizes));
  }
  if (given->strides() != c10::IntArrayRef(sent.strides)) {
    return c10::str("the given tensor has the strides ", given->strides(), ", what is sent ",
                    c10::IntArrayRef(sent.strides));
  }
  if (given->is_conj() != sent.is_conj || given->is_neg() != sent.is_neg) return "one is a lazy conjugate";
  return why_not_writable(plain_elements(*given));
}

std::uintptr_t address_of(const at::Tensor& given) { return reinterpret_cast<std::uintptr_t>(given.storage().data()); }

bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

}  // namespace

struct IncomingState::Use {
  std::uint64_t tensor;
  std::size_t storage;
  at::Tensor given;
  std::string key;     // for errors
  std::int64_t begin;  // bytes in the given storage
  std::int64_t end;
  std::int64_t shift;  // from the sent storage's bytes to the given one's
  bool is_rejected = false;

  bool agrees_with(const Use& other) const {
    return storage == other.storage && shift == other.shift &&
           given.storage().unsafeGetStorageImpl() == other.given.storage().unsafeGetStorageImpl();
  }
};

IncomingState::IncomingState(Bytes head, const Dict* given, const IncomingOptions& options)
    : options_(options), head_(std::move(head)), in_(head_) {
  tables_ = decode_tables(in_, options_.limits, options_.max_state_bytes);
  targets_.resize(tables_.storages.size());
  needs_memory_.resize(tables_.storages.size());
  made_.resize(tables_.tensors.size());
  const ByteReader tree = in_;
  const Value given_value = given ? Value(*given) : Value();
  read(&given_value, 0);
  in_.expect_end();
  reject_conflicts();
  check_strict();
  place_storages();

  in_ = tree;
  pass_ = Pass::kMake;
  value_count_ = 0;
  Value made = read(&given_value, 0);
  DCP_CHECK(made.is_dict(), kCorruptData, "the state is a ", value_kind_name(made.kind()), ", not a Dict");
  result_ = std::move(made.as_dict());
}

IncomingState::~IncomingState() = default;

std::string IncomingState::here() const { return flat_key(path_).substr(0, kMaxNameBytes); }

// The tree.

Value IncomingState::read(const Value* given, std::size_t depth) {
  DCP_CHECK(depth <= options_.limits.max_depth, kCorruptData, "nested more than ", options_.limits.max_depth, " deep");
  DCP_CHECK(++value_count_ <= options_.limits.max_values, kCorruptData, "more than ", options_.limits.max_values,
            " values");
  const auto kind = static_cast<ValueKind>(in_.u8());
  if (given == nullptr || given->kind() != ValueKind::kStateful) return read_value(kind, given, depth);
  Value value = read_value(kind, state_of(*given), depth);
  if (pass_ == Pass::kLook || !value.is_dict()) return value;
  loads_.emplace_back(given->as_stateful(), std::move(value.as_dict()));
  return *given;
}

Value IncomingState::read_value(ValueKind kind, const Value* given, std::size_t depth) {
  switch (kind) {
    case ValueKind::kNone:
      return None();
    case ValueKind::kBool:
      return in_.boolean();
    case ValueKind::kInt:
      return in_.i64();
    case ValueKind::kDouble:
      return in_.f64();
    case ValueKind::kString:
      return in_.text();
    case ValueKind::kBytes:
      return in_.bytes();
    case ValueKind::kTensor:
      return take_tensor(given != nullptr && given->is_tensor() ? &given->as_tensor() : nullptr);
    case ValueKind::kDTensor:
      return read_dtensor(given);
    case ValueKind::kShardedTensor:
      return read_sharded_tensor(given);
    case ValueKind::kDict:
      return read_dict(given, depth);
    case ValueKind::kList:
      return read_sequence<List>(given, depth);
    case ValueKind::kTuple:
      return read_sequence<Tuple>(given, depth);
    case ValueKind::kOpaque:
      return read_opaque();
    case ValueKind::kStateful:
      break;
  }
  DCP_THROW(kCorruptData, "key '", here(), "': a value of kind ", static_cast<int>(kind));
}

Key IncomingState::read_key() {
  if (in_.boolean()) return in_.i64();
  return in_.text();
}

Value IncomingState::read_dict(const Value* given, std::size_t depth) {
  const Dict* const given_dict = given != nullptr && given->is_dict() ? &given->as_dict() : nullptr;
  Dict dict;
  std::vector<const Value*> found;
  for (std::uint64_t left = in_.count(2); left > 0; --left) {
    const Key key = read_key();
    path_.push_back(PathItem::dict_key(key));
    const Value* const child_given = given_dict ? given_dict->find(key) : nullptr;
    if (child_given) found.push_back(child_given);
    Value child = read(child_given, depth + 1);
    if (pass_ == Pass::kMake) {
      DCP_CHECK(!dict.contains(key), kCorruptData, "key '", here(), "' is there twice");
      dict.insert_or_assign(key, std::move(child));
    }
    path_.pop_back();
  }
  if (pass_ == Pass::kLook && given_dict) note_missing(*given_dict, found);
  return dict;
}

// With strict_in_place a given value that is not sent is a fault too.
void IncomingState::note_missing(const Dict& given, const std::vector<const Value*>& found) {
  if (!options_.strict_in_place || found.size() == given.size()) return;
  const std::set<const Value*> known(found.begin(), found.end());
  for (const auto& [key, value] : given) {
    if (known.contains(&value)) continue;
    path_.push_back(PathItem::dict_key(key));
    faults_.add(ErrorKind::kKey, here(), "the given state has it, what is sent does not");
    path_.pop_back();
  }
}

template <typename Sequence>
Value IncomingState::read_sequence(const Value* given, std::size_t depth) {
  const Sequence* const given_sequence = given != nullptr ? std::get_if<Sequence>(&given->storage()) : nullptr;
  Sequence sequence;
  const std::uint64_t count = in_.count();
  for (std::uint64_t i = 0; i < count; ++i) {
    path_.push_back(PathItem::list_index(static_cast<std::int64_t>(i)));
    Value child = read(given_sequence && i < given_sequence->size() ? &(*given_sequence)[i] : nullptr, depth + 1);
    if (pass_ == Pass::kMake) sequence.push_back(std::move(child));
    path_.pop_back();
  }
  if (options_.strict_in_place && pass_ == Pass::kLook && given_sequence && given_sequence->size() > count) {
    faults_.add(ErrorKind::kKey, here(),
                c10::str("the given state has ", given_sequence->size(), " values, what is sent ", count));
  }
  return sequence;
}

Value IncomingState::read_opaque() {
  Opaque opaque;
  opaque.type_name = in_.text();
  if (!in_.boolean()) return opaque;
  Bytes item = in_.bytes();
  if (pass_ == Pass::kLook) {
    // As from a file: its sums are checked, and what would run code in Python is refused.
    decode_object_item(std::move(item), options_.limits);
  } else {
    opaque.item = std::make_shared<const Bytes>(std::move(item));
  }
  return opaque;
}

Value IncomingState::read_dtensor(const Value* given) {
  const Sizes mesh_shape = decode_sizes(in_, options_.limits);
  std::vector<std::int64_t> ranks(in_.count(sizeof(std::int64_t)));
  for (std::int64_t& rank : ranks) rank = in_.i64();
  const std::int64_t my_rank = in_.i64();
  std::vector<std::string> dim_names(in_.count(sizeof(std::uint64_t)));
  for (std::string& name : dim_names) name = in_.text();
  Placements placements;
  for (std::uint64_t left = in_.count(1 + 3 * sizeof(std::uint64_t)); left > 0; --left) {
    const auto kind = static_cast<PlacementKind>(in_.u8());
    DCP_CHECK(kind <= PlacementKind::kPartial, kCorruptData, "a placement of kind ", static_cast<int>(kind));
    const std::int64_t dim = in_.i64();
    const std::int64_t split_factor = in_.i64();
    placements.push_back({kind, dim, split_factor, in_.text()});
  }
  Sizes global_sizes = decode_sizes(in_, options_.limits);

  // The receiver's own mesh stays: its ranks are others, but the part is the same.
  const DTensor* own = given != nullptr ? std::get_if<DTensor>(&given->storage()) : nullptr;
  if (own &&
      (own->placements() != placements || own->global_sizes() != global_sizes || own->mesh().shape() != mesh_shape)) {
    own = nullptr;
  }
  at::Tensor local = take_tensor(own ? &own->local() : nullptr);
  if (pass_ == Pass::kLook) return None();
  try {
    if (own && local.defined() && own->local().defined() && local.sizes() == own->local().sizes()) {
      return DTensor(std::move(local), own->mesh_ptr(), std::move(placements), std::move(global_sizes));
    }
    auto mesh = std::make_shared<const DeviceMesh>(mesh_shape, std::move(ranks), my_rank, std::move(dim_names));
    return DTensor(std::move(local), std::move(mesh), std::move(placements), std::move(global_sizes));
  } catch (const Error& error) {
    DCP_THROW(kCorruptData, "key '", here(), "': ", error.what_without_backtrace());
  }
}

Value IncomingState::read_sharded_tensor(const Value* given) {
  Sizes global_sizes = decode_sizes(in_, options_.limits);
  const NamedDtype dtype = decode_dtype(in_);
  const auto* const own = given != nullptr ? std::get_if<ShardedTensor>(&given->storage()) : nullptr;
  const bool is_like = own && own->global_sizes() == global_sizes;
  std::vector<Shard> shards;
  std::size_t position = 0;
  for (std::uint64_t left = in_.count(2 * sizeof(std::uint64_t)); left > 0; --left, ++position) {
    Sizes offsets = decode_sizes(in_, options_.limits);
    const bool has_own =
        is_like && position < own->local_shards().size() && own->local_shards()[position].offsets == offsets;
    at::Tensor part = take_tensor(has_own ? &own->local_shards()[position].tensor : nullptr);
    if (pass_ == Pass::kMake) shards.push_back({std::move(part), std::move(offsets)});
  }
  if (pass_ == Pass::kLook) return None();
  try {
    return ShardedTensor(std::move(global_sizes), dtype.dtype, std::move(shards));
  } catch (const Error& error) {
    DCP_THROW(kCorruptData, "key '", here(), "': ", error.what_without_backtrace());
  }
}

const Value* IncomingState::state_of(const Value& given) {
  const std::shared_ptr<Stateful>& object = given.as_stateful();
  if (!object) return nullptr;
  auto& state = states_[object.get()];
  if (!state) state = std::make_unique<Value>(object->state_dict());
  return state.get();
}

// Tensors.

at::Tensor IncomingState::take_tensor(const at::Tensor* given) {
  const std::uint64_t number = in_.u64();
  DCP_CHECK(number < tables_.tensors.size(), kCorruptData, "key '", here(), "': tensor ", number, " of ",
            tables_.tensors.size());
  if (!tables_.tensors[number].is_defined) return {};
  if (pass_ == Pass::kMake) return make(number, given);
  look(number, given);
  return {};
}

void IncomingState::look(std::uint64_t number, const at::Tensor* given) {
  const SentTensor& sent = tables_.tensors[number];
  Target& target = targets_[sent.storage];
  if (target.name.empty()) target.name = here();
  const std::string why = why_not_in_place(sent, given);
  if (!why.empty()) {
    needs_memory_[sent.storage] = true;
    if (options_.strict_in_place) faults_.add(ErrorKind::kShape, here(), why);
    return;
  }
  const std::int64_t width = element_bytes(sent.dtype.dtype);
  const auto extent = byte_extent(sent);
  const std::int64_t shift = (given->storage_offset() - sent.storage_offset) * width;
  in_place_[number].insert(given->unsafeGetTensorImpl());
  uses_.push_back({number, static_cast<std::size_t>(sent.storage), *given, here(), extent->first + shift,
                   extent->second + shift, shift});
}

// Given tensors that share memory where what is sent does not, or in another way, cannot all be filled: the first is.
void IncomingState::reject_conflicts() {
  struct Range {
    std::uintptr_t begin;
    std::uintptr_t end;
    Use* use;
  };
  std::vector<Range> ranges;
  for (Use& use : uses_) {
    const std::uintptr_t base = address_of(use.given);
    if (use.begin < use.end) {
      ranges.push_back(
          {base + static_cast<std::uintptr_t>(use.begin), base + static_cast<std::uintptr_t>(use.end), &use});
    }
  }
  std::stable_sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  const Range* furthest = nullptr;
  for (const Range& range : ranges) {
    if (furthest && range.begin < furthest->end && !range.use->agrees_with(*furthest->use)) {
      range.use->is_rejected = true;
      in_place_[range.use->tensor].erase(range.use->given.unsafeGetTensorImpl());
      needs_memory_[range.use->storage] = true;
      if (options_.strict_in_place) {
        faults_.add(ErrorKind::kShape, range.use->key,
                    "the given tensor lies in memory of '" + furthest->use->key + "', what is sent does not");
      }
    } else if (!furthest || range.end > furthest->end) {
      furthest = &range;
    }
  }
}

void IncomingState::check_strict() { faults_.throw_if_any("the given state cannot be filled in place", DCP_WHERE); }

// Whether the given tensors cover the sent range without a gap that belongs to somebody else.
bool IncomingState::is_straight(std::size_t storage, const std::vector<const Use*>& uses) const {
  if (needs_memory_[storage] || uses.empty()) return false;
  const SentStorage& range = tables_.storages[storage];
  if (range.bytes() == 0) return true;
  std::vector<std::pair<std::int64_t, std::int64_t>> covered;
  for (const Use* use : uses) {
    if (!use->agrees_with(*uses.front())) return false;
    if (is_dense(use->given)) covered.emplace_back(use->begin, use->end);
  }
  std::sort(covered.begin(), covered.end());
  std::int64_t reached = range.begin + uses.front()->shift;
  for (const auto& [begin, end] : covered) {
    if (begin > reached) return false;
    reached = std::max(reached, end);
  }
  return reached >= range.end + uses.front()->shift;
}

void IncomingState::place_storages() {
  std::vector<std::vector<const Use*>> uses(tables_.storages.size());
  for (const Use& use : uses_) {
    if (!use.is_rejected) uses[use.storage].push_back(&use);
  }
  memory_.resize(tables_.storages.size());
  for (std::size_t i = 0; i < tables_.storages.size(); ++i) {
    const SentStorage& range = tables_.storages[i];
    if (is_straight(i, uses[i])) {
      writes_in_place_ = writes_in_place_ || range.bytes() > 0;
      targets_[i].bytes =
          bytes_on(uses[i].front()->given.storage(), range.begin + uses[i].front()->shift, range.bytes());
      continue;
    }
    const at::Tensor room = at::empty({range.end}, at::TensorOptions(at::kByte).device(options_.device));
    memory_[i] = room.storage();
    targets_[i].bytes = room.narrow(0, range.begin, range.bytes());
    for (const Use* use : uses[i]) copies_.emplace_back(use->given, use->tensor);
  }
}

at::Tensor IncomingState::make(std::uint64_t number, const at::Tensor* given) {
  if (given != nullptr) {
    const auto taken = in_place_.find(number);
    if (taken != in_place_.end() && taken->second.contains(given->unsafeGetTensorImpl())) return *given;
  }
  at::Tensor& made = made_[number];
  if (made.defined()) return made;
  const SentTensor& sent = tables_.tensors[number];
  made = tensor_on(memory_[sent.storage], sent.dtype.dtype, sent.storage_offset, sent.sizes, sent.strides);
  if (sent.quantizer) set_quantizer(made, *sent.quantizer);
  if (sent.is_conj) made.unsafeGetTensorImpl()->_set_conj(true);
  if (sent.is_neg) made.unsafeGetTensorImpl()->_set_neg(true);
  if (sent.requires_grad) made.set_requires_grad(true);
  return made;
}

Dict IncomingState::finish() {
  const c10::NoGradGuard no_grad;
  for (const auto& [into, number] : copies_) {
    const SentTensor& sent = tables_.tensors[number];
    const at::Tensor from =
        tensor_on(memory_[sent.storage], sent.dtype.dtype, sent.storage_offset, sent.sizes, sent.strides);
    if (from.numel() > 0) plain_elements(into).copy_(plain_elements(from));
  }
  for (const Use& use : uses_) {
    const SentTensor& sent = tables_.tensors[use.tensor];
    if (sent.quantizer && !use.is_rejected) set_quantizer(use.given, *sent.quantizer);
  }
  for (auto& [object, state] : loads_) object->load_state_dict(state);
  return std::move(result_);
}

}  // namespace dcp
