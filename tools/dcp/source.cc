#include "tools/dcp/source.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/plan/read_items.h"
#include "torch_dcp/storage/storage_factory.h"
#include "torch_dcp/storage/torch_save.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp::tool {
namespace {

at::Tensor without_elements(const Sizes& sizes, at::ScalarType dtype) {
  return at::empty(sizes, at::TensorOptions(dtype).device(c10::kMeta));
}

/// Tensors whose elements are no plain numbers: scale and zero point would have to go along, or the dtype is one that
/// this LibTorch lacks.
class KeysToRefuse {
 public:
  void look_at(const std::string& key, const NamedDtype& dtype) {
    if (c10::isQIntType(dtype.dtype)) faults_.add(ErrorKind::kUnsupported, key, "quantized tensors are not converted");
    if (dtype.newer == NewerDtype::kNone) return;
    faults_.add(ErrorKind::kUnsupported, key, "this LibTorch has no dtype " + dtype_name(dtype));
  }
  void refuse(const std::string& path) const { faults_.throw_if_any("cannot convert " + path, DCP_WHERE); }

 private:
  FaultList faults_;
};

/// Rebuilds the state dict without elements, and keeps what comes by flat keys.
class StructurePlanner : public RebuildLoadPlanner {
 public:
  StructurePlanner()
      : RebuildLoadPlanner({}, [this](const std::string& key, const TensorStorageMetadata& tensor) {
          const auto made = values_.insert_or_assign(key, without_elements(tensor.size, tensor.properties.dtype));
          return made.first->second;
        }) {}

  void load_object(const ReadItem& item, Value value) override {
    values_.insert_or_assign(item.dest_index.fqn, value);
    RebuildLoadPlanner::load_object(item, std::move(value));
  }

  const Value& value(const std::string& key) const { return values_.at(key); }

 private:
  std::unordered_map<std::string, Value> values_;
};

/// Reads into one tensor.
class PiecePlanner : public LoadPlanner {
 public:
  explicit PiecePlanner(at::Tensor piece) : piece_(std::move(piece)) {}

  void set_up(StateDict&, const Metadata&, const LoadPlannerContext&) override {}
  LoadPlan create_local_plan() override { return {}; }
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> plans) override { return plans; }
  LoadPlan finish_plan(LoadPlan plan) override { return plan; }
  at::Tensor resolve_tensor(const ReadItem& item) override {
    at::Tensor region = piece_;
    for (std::size_t d = 0; d < item.lengths.size(); ++d) {
      region = region.narrow(static_cast<std::int64_t>(d), item.dest_offsets[d], item.lengths[d]);
    }
    return region;
  }
  void commit_tensor(const ReadItem&, const at::Tensor&) override {}
  void load_object(const ReadItem& item, Value) override {
    DCP_THROW(kInternal, "an object of ", item.dest_index.fqn, " where a tensor was to be read");
  }
  void commit_objects() override {}

 private:
  at::Tensor piece_;
};

/// What storage readers read: DCP and safetensors.
class StorageSource : public Source {
 public:
  StorageSource(const std::string& path, CheckpointKind kind, const SourceOptions& options)
      : reader_(make_storage_reader(path, {.follow_links = options.follow_links})) {
    std::optional<Metadata> metadata = reader_->read_metadata();
    if (!metadata) metadata = reader_->read_merged_metadata();
    DCP_CHECK(metadata, kNotFound, "incomplete checkpoint: ", path, " has no metadata");
    metadata_ = *std::move(metadata);
    KeysToRefuse refused;
    for (const auto& [key, entry] : metadata_.state_dict_metadata) {
      const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
      if (tensor) refused.look_at(key, {tensor->properties.dtype, tensor->properties.newer_dtype});
    }
    refused.refuse(path);
    // Names of safetensors are keys of one flat state dict.
    has_paths_ = metadata_.planner_data.has_value() || kind == CheckpointKind::kSafetensors;
    reader_->set_up(metadata_, {});
    read_structure();
    check_unchanged();
  }

  at::Tensor read(const std::string& key, const Box& piece) override {
    const TensorStorageMetadata& tensor = tensor_of(key);
    const at::Tensor read = at::empty(piece.sizes, at::TensorOptions(tensor.properties.dtype));
    LoadPlan plan;
    plan.items = create_read_items(key, tensor, {piece});
    PiecePlanner planner(read);
    reader_->check(plan, planner);
    reader_->read_data(plan, planner);
    return read;
  }

  bool is_costly_in_parts(const std::string& key) const override {
    const ChunkList& chunks = tensor_of(key).chunks;
    return std::any_of(chunks.begin(), chunks.end(), [&](const Box& chunk) {
      const std::optional<StorageInfo> info = metadata_.storage_data.find({key, chunk.offsets, {}});
      return info && !info->transform_descriptors.empty();
    });
  }

  void check_unchanged() override {
    DCP_CHECK(reader_->is_still_there(), kState, reader_->place(),
              " was replaced or removed while it was being read: convert it again");
  }

 private:
  const TensorStorageMetadata& tensor_of(const std::string& key) const {
    return std::get<TensorStorageMetadata>(*metadata_.state_dict_metadata.find(key));
  }

  void read_structure() {
    StructurePlanner planner;
    planner.set_up(state_, metadata_, {});
    LoadPlan objects;
    for (const auto& [key, entry] : metadata_.state_dict_metadata) {
      if (std::holds_alternative<TensorStorageMetadata>(entry)) continue;
      ReadItem item;
      item.dest_index.fqn = key;
      item.storage_index.fqn = key;
      objects.items.push_back(std::move(item));
    }
    reader_->check(objects, planner);
    planner.commit_objects();
    for (const auto& [key, entry] : metadata_.state_dict_metadata) {
      const Path* path = metadata_.planner_data ? metadata_.planner_data->find(key) : nullptr;
      leaves_.insert(key, {path ? *path : Path{PathItem::dict_key(key)}, planner.value(key)});
      const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
      if (tensor && tensor->properties.requires_grad) requiring_grad_.insert(key);
    }
  }

  std::unique_ptr<StorageReader> reader_;
  Metadata metadata_;
};

/// A file of torch.save.
class TorchSaveSource : public Source {
 public:
  TorchSaveSource(const std::string& path, const SourceOptions& options)
      : reader_(path, {.skip_unknown = options.skip_unknown}) {
    DCP_CHECK(reader_.structure().is_dict(), kUnsupported, path, " holds a ",
              value_kind_name(reader_.structure().kind()), ", not a state dict");
    KeysToRefuse refused;
    for (const TorchFileTensor& tensor : reader_.tensors()) refused.look_at(flat_key(tensor.path), {tensor.dtype});
    refused.refuse(path);
    skipped_ = reader_.skipped();
    state_ = reader_.structure().as_dict();
    // Tensors in tuples are no leaves, but part of objects.
    visit_leaves(state_, [&](const Path& path, const Value& leaf) {
      if (!leaf.is_tensor()) objects_.push_back(path);
    });
    number_tensors();
    for (const Path& path : objects_) read_tensors(*get_element(state_, path));
    leaves_ = flatten_state_dict(state_);
    for (const auto& [key, leaf] : leaves_) {
      if (leaf.value.is_tensor() && reader_.tensors()[number_of(leaf.value.as_tensor())].requires_grad) {
        requiring_grad_.insert(key);
      }
    }
  }

  at::Tensor read(const std::string& key, const Box& piece) override {
    const std::size_t number = number_of(leaves_.find(key)->value.as_tensor());
    if (!held_.defined() || held_number_ != number) {
      held_.reset();  // before the next one is read
      held_ = reader_.read(number).detach();
      held_number_ = number;
    }
    at::Tensor part = held_;
    for (std::size_t d = 0; d < piece.ndim(); ++d) {
      part = part.narrow(static_cast<std::int64_t>(d), piece.offsets[d], piece.sizes[d]);
    }
    return part.contiguous();
  }

  bool is_costly_in_parts(const std::string&) const override { return false; }

  // Its one file is held open, and a file that takes its name is another one.
  void check_unchanged() override {}

 private:
  std::size_t number_of(const at::Tensor& tensor) const { return numbers_.at(tensor.unsafeGetTensorImpl()); }

  void number_tensors() {
    // The reader lists them in the order of the walk; where one is there twice either number will do.
    std::size_t number = 0;
    number_tensors(reader_.structure(), number);
  }

  void number_tensors(const Value& value, std::size_t& number) {
    const auto all = [&](const auto& values) {
      for (const Value& element : values) number_tensors(element, number);
    };
    if (value.is_tensor()) {
      numbers_.emplace(value.as_tensor().unsafeGetTensorImpl(), number++);
    } else if (value.is_list()) {
      all(value.as_list());
    } else if (value.kind() == ValueKind::kTuple) {
      all(value.as_tuple());
    } else if (value.is_dict()) {
      for (const auto& entry : value.as_dict()) number_tensors(entry.second, number);
    }
  }

  /// Puts tensors with their elements into an object.
  void read_tensors(Value& value) {
    if (value.is_tensor()) {
      value = Value(reader_.read(number_of(value.as_tensor())));
    } else if (value.is_list()) {
      for (Value& element : value.as_list()) read_tensors(element);
    } else if (auto* tuple = std::get_if<Tuple>(&value.storage())) {
      for (Value& element : *tuple) read_tensors(element);
    } else if (value.is_dict()) {
      for (auto& entry : value.as_dict()) read_tensors(entry.second);
    }
  }

  TorchFileReader reader_;
  std::vector<Path> objects_;
  std::unordered_map<const void*, std::size_t> numbers_;
  at::Tensor held_;
  std::size_t held_number_ = 0;
};

}  // namespace

Source::~Source() = default;

std::unique_ptr<Source> open_source(const std::string& path, CheckpointKind kind, const SourceOptions& options) {
  if (kind == CheckpointKind::kTorchSave) return std::make_unique<TorchSaveSource>(path, options);
  return std::make_unique<StorageSource>(path, kind, options);
}

}  // namespace dcp::tool
