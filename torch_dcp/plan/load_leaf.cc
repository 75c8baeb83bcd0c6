#include <algorithm>
#include <cmath>

#include "torch_dcp/plan/load_leaf_internal.h"
#include "torch_dcp/plan/read_items.h"
#include "torch_dcp/plan/validate_internal.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/tensor/local_chunks.h"

namespace dcp {
namespace {

std::string spell(const Sizes& sizes) { return to_string(c10::IntArrayRef(sizes)); }

std::string kind_name(const Value& value) { return value_kind_name(value.kind()); }

const char* policy_name(DtypePolicy policy) {
  switch (policy) {
    case DtypePolicy::kExact:
      return "exact";
    case DtypePolicy::kLossless:
      return "lossless";
    case DtypePolicy::kAny:
      return "any";
  }
  return "unknown";
}

bool has_shared_elements(const at::Tensor& view) {
  if (view.numel() == 0) return false;
  for (std::int64_t dim = 0; dim < view.dim(); ++dim) {
    if (view.size(dim) > 1 && view.stride(dim) == 0) return true;
  }
  return false;
}

bool is_empty_dict(const Value& value) { return value.is_dict() && value.as_dict().empty(); }

}  // namespace

void LeafLoader::add_fault(ErrorKind kind, const std::string& key, const std::string& what) {
  faults_.add(kind, key, *stored_key_ == key ? what : what + " (it is to be loaded from '" + *stored_key_ + "')");
}

void LeafLoader::add(const std::string& key, const std::string& stored_key, const Value& destination) {
  stored_key_ = &stored_key;
  const StorageMetadata* stored = metadata_.state_dict_metadata.find(stored_key);
  if (stored == nullptr) {
    // Python drops empty dicts when it saves, so that there is nothing to find.
    if (!is_empty_dict(destination)) add_missing(key);
    return;
  }
  const auto* tensor = std::get_if<TensorStorageMetadata>(stored);
  if (tensor == nullptr) {
    add_object(key, destination);
  } else if (!destination.is_tensor_like()) {
    add_fault(ErrorKind::kType, key,
              "a tensor of size " + spell(tensor->size) + " is stored, the destination is a " + kind_name(destination));
  } else {
    try {
      add_tensor(key, destination, *tensor);
    } catch (const Error& error) {  // Such as a destination without memory; named together with all others.
      add_fault(error.kind(), key, error.what_without_backtrace());
    }
  }
}

void LeafLoader::add_missing(const std::string& key) {
  report_.missing.push_back(key);
  if (!options_.partial) add_fault(ErrorKind::kKey, key, "missing in the checkpoint" + hint_for_missing(*stored_key_));
}

std::string LeafLoader::hint_for_missing(const std::string& stored_key) {
  if (!sorted_keys_) {
    sorted_keys_.emplace();
    for (const auto& entry : metadata_.state_dict_metadata) sorted_keys_->push_back(entry.first);
    std::sort(sorted_keys_->begin(), sorted_keys_->end());
  }
  const std::string prefix = stored_key + ".";
  std::string children;
  std::size_t child_count = 0;
  for (auto it = std::lower_bound(sorted_keys_->begin(), sorted_keys_->end(), std::string_view(prefix));
       it != sorted_keys_->end() && it->starts_with(prefix); ++it) {
    if (++child_count <= 3) children += (child_count == 1 ? " '" : ", '") + std::string(*it) + "'";
  }
  if (child_count > 0) {
    return ", where it is stored as " + std::to_string(child_count) + (child_count == 1 ? " child:" : " children:") +
           children + (child_count > 3 ? ", ..." : "");
  }
  for (std::size_t dot = stored_key.rfind('.'); dot != std::string::npos && dot > 0;
       dot = stored_key.rfind('.', dot - 1)) {
    const StorageMetadata* parent = metadata_.state_dict_metadata.find(stored_key.substr(0, dot));
    if (parent == nullptr) continue;
    return ", where '" + stored_key.substr(0, dot) + "' is stored as one " +
           (std::holds_alternative<BytesStorageMetadata>(*parent) ? "object" : "tensor");
  }
  return "";
}

void LeafLoader::add_object(const std::string& key, const Value& destination) {
  if (destination.is_tensor_like() || destination.kind() == ValueKind::kStateful) {
    add_fault(ErrorKind::kType, key, "an object is stored, the destination is a " + kind_name(destination));
    return;
  }
  ReadItem item;
  item.dest_index.fqn = key;
  item.storage_index.fqn = *stored_key_;
  if (check_stored(key, item.storage_index)) plan_.items.push_back(std::move(item));
}

void LeafLoader::add_tensor(const std::string& key, const Value& destination, const TensorStorageMetadata& stored) {
  const TensorLike tensor = destination.as_tensor_like();
  const Sizes size = global_sizes(tensor);
  if (size != stored.size) {
    add_fault(ErrorKind::kShape, key, "stored size " + spell(stored.size) + ", size of the destination " + spell(size));
    return;
  }
  std::vector<LocalChunk> chunks = local_chunks(tensor);
  // A rank outside of the tensor's mesh has no dtype to compare.
  if (!chunks.empty() && !check_dtype(key, stored.properties, chunks[0].view.scalar_type())) return;
  std::vector<Box> wanted;
  for (const LocalChunk& chunk : chunks) {
    wanted.push_back(chunk.box);
    if (has_shared_elements(chunk.view)) {
      add_fault(ErrorKind::kInvalidArgument, key,
                "the destination is expanded: several of its elements are one in memory");
      return;
    }
  }
  const ChunkCheck check = check_chunks(stored);
  if (check.fault) {
    add_fault(ErrorKind::kCorruptData, key, *check.fault);
    return;
  }
  std::vector<ReadItem> items = create_read_items(key, stored, wanted);
  if (!check.covers_all() && !options_.allow_uncovered) check_coverage(key, stored, wanted, items);
  const bool is_renamed = *stored_key_ != key;
  for (ReadItem& item : items) {
    if (is_renamed) item.storage_index.fqn = *stored_key_;
    if (check_stored(key, item.storage_index)) plan_.items.push_back(std::move(item));
  }
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (wanted[i].empty()) continue;  // Read by nobody, and it may share its offset with a real one.
    views_.insert({key, wanted[i].offsets, static_cast<std::int64_t>(i)}, untied(key, std::move(chunks[i].view)));
  }
}

at::Tensor LeafLoader::untied(const std::string& key, at::Tensor view) {
  const auto is_same = [&](std::size_t number) {
    const at::Tensor& other = (views_.begin() + static_cast<std::ptrdiff_t>(number))->second;
    return other.const_data_ptr() == view.const_data_ptr() && other.sizes() == view.sizes() &&
           other.strides() == view.strides();
  };
  const std::size_t next = views_.size();
  const std::size_t* owner = owners_.find(view.const_data_ptr());
  if (owner == nullptr) {
    owners_.insert(view.const_data_ptr(), next);
    return view;
  }
  if (!is_same(*owner)) {
    const auto other = std::find_if(other_owners_.begin(), other_owners_.end(), is_same);
    if (other == other_owners_.end()) {
      other_owners_.push_back(next);
      return view;
    }
    owner = &*other;
  }
  const std::string& first_key = (views_.begin() + static_cast<std::ptrdiff_t>(*owner))->first.fqn;
  at::Tensor copy = view.clone();
  tied_.push_back({key, first_key, std::move(view), copy});
  return copy;
}

bool LeafLoader::check_newer_dtype(const std::string& key, const TensorProperties& stored, ScalarType wanted) {
  if (options_.missing_dtypes_as_bits && stored.dtype == wanted) {
    report_.converted.push_back({key, dtype_name(stored), dtype_name(wanted)});
    return true;
  }
  add_fault(ErrorKind::kUnsupported, key,
            "stored dtype " + dtype_name(stored) +
                ", which this LibTorch lacks; `missing_dtypes_as_bits` loads it into " + dtype_name(stored.dtype) +
                ", and the destination is of " + dtype_name(wanted));
  return false;
}

bool LeafLoader::check_dtype(const std::string& key, const TensorProperties& stored, ScalarType wanted) {
  if (stored.newer_dtype != NewerDtype::kNone) return check_newer_dtype(key, stored, wanted);
  if (stored.dtype == wanted) return true;
  // Numbers have no quantizer; and what a quantized destination has is to be the stored one's.
  if (!c10::isQIntType(wanted) && may_convert(stored.dtype, wanted, options_.dtype_policy)) {
    report_.converted.push_back({key, dtype_name(stored), dtype_name(wanted)});
    return true;
  }
  add_fault(ErrorKind::kType, key,
            "stored dtype " + dtype_name(stored) + ", dtype of the destination " + dtype_name(wanted) +
                ", which the policy '" + policy_name(options_.dtype_policy) + "' does not convert");
  return false;
}

void LeafLoader::check_coverage(const std::string& key, const TensorStorageMetadata& stored,
                                const std::vector<Box>& wanted, const std::vector<ReadItem>& items) {
  std::vector<std::int64_t> covered(wanted.size(), 0);
  for (const ReadItem& item : items) {
    covered[static_cast<std::size_t>(*item.dest_index.index)] += Box{item.storage_offsets, item.lengths}.numel();
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (covered[i] == wanted[i].numel()) continue;
    const auto hole = find_uncovered(wanted[i], stored.chunks.boxes());
    add_fault(ErrorKind::kCorruptData, key,
              "stored chunks hold " + std::to_string(covered[i]) + " of the " + std::to_string(wanted[i].numel()) +
                  " elements of " + to_string(wanted[i]) + " that this rank wants" +
                  (hole ? "; none holds " + to_string(*hole) : ""));
  }
}

bool LeafLoader::check_stored(const std::string& key, const MetadataIndex& index) {
  if (metadata_.storage_data.contains(index)) return true;
  add_fault(ErrorKind::kCorruptData, key, "the metadata does not say where '" + to_string(index) + "' is stored");
  return false;
}

Value accept_object(const std::string& key, const Value& destination, Value stored) {
  if (destination.is_none() || destination.kind() == stored.kind()) return stored;
  DCP_CHECK(destination.kind() == ValueKind::kDouble && stored.kind() == ValueKind::kInt, kType, "key '", key, "': a ",
            value_kind_name(stored.kind()), " is stored, the destination is a ", value_kind_name(destination.kind()));
  const std::int64_t number = stored.as_int();
  const auto converted = static_cast<double>(number);
  // 2^63 as a double is out of int64's range, and no int64 is that number.
  DCP_CHECK(converted < 0x1p63 && static_cast<std::int64_t>(converted) == number, kType, "key '", key,
            "': the stored int ", number, " is no double exactly, the destination is a Double");
  return Value(converted);
}

}  // namespace dcp
