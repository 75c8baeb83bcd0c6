#include "torch_dcp/transform/cpu_twin.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/walk.h"
#include "torch_dcp/tensor/quantized.h"
#include "torch_dcp/transform/cpu_twin_internal.h"
#include "torch_dcp/transform/local_parts_internal.h"
#include "torch_dcp/transform/stateful_internal.h"

namespace dcp {
namespace {

constexpr std::int64_t kAlignment = 64;

/// A block of shared memory, page-locked or not.
class Block {
 public:
  Block(std::size_t byte_count, PageLock page_lock) : memory_(byte_count), page_lock_(std::move(page_lock)) {
    if (!page_lock_.lock) return;
    page_lock_.lock(memory_.data(), memory_.size());
    is_locked_ = true;
  }
  ~Block() {
    if (is_locked_) page_lock_.unlock(memory_.data());
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  const SharedMemory& memory() const { return memory_; }

 private:
  SharedMemory memory_;
  PageLock page_lock_;
  bool is_locked_ = false;
};

using BlockOwner = std::shared_ptr<const Block>;

/// Of a storage in a block; by its address such storages are known.
void drop_owner(void* owner) { delete static_cast<BlockOwner*>(owner); }

enum class Rule : std::uint8_t { kZeroScalar, kZeros, kUninitialized };

struct Twin {
  at::Tensor original;
  Rule rule = Rule::kUninitialized;
  std::int64_t offset = 0;  ///< in the block, if it lies there
  at::Tensor made;
};

std::string why_without_twin(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_python_dispatch()) return "a tensor whose operators are Python's";
  if (tensor.is_nested()) return "a nested tensor";
  if (tensor.layout() != at::kStrided) return c10::str("a tensor of layout ", tensor.layout());
  if (c10::isQIntType(tensor.scalar_type())) return "a quantized tensor";
  return "";
}

Rule rule_of(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return Rule::kZeroScalar;
  if (tensor.numel() == 0 || tensor.is_meta() || tensor.storage().data() == nullptr) return Rule::kZeros;
  return Rule::kUninitialized;
}

class TwinMaker {
 public:
  explicit TwinMaker(const CpuTwinOptions& options) : options_(options) {}

  void add(const at::Tensor& original) {
    const auto [place, is_new] = twins_.try_emplace(original.unsafeGetTensorImpl());
    if (!is_new) return;
    Twin& twin = place->second;
    twin = {original, rule_of(original), 0, {}};
    if (!options_.share_memory || twin.rule == Rule::kZeroScalar) return;
    twin.offset = block_bytes_;
    // A storage without bytes would have no place that is its own.
    const std::int64_t bytes = std::max<std::int64_t>(1, original.numel() * original.element_size());
    const auto end = checked_add(block_bytes_, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    DCP_CHECK(end, kInvalidArgument, "the tensors' bytes do not fit 64 bits");
    block_bytes_ = *end;
  }

  void allocate_block(const std::function<PageLock()>& make_page_lock) {
    if (options_.pin_memory && !options_.share_memory) check_can_pin();
    PageLock page_lock = options_.pin_memory && options_.share_memory ? make_page_lock() : PageLock();
    if (block_bytes_ == 0) return;
    block_ = std::make_shared<const Block>(static_cast<std::size_t>(block_bytes_), std::move(page_lock));
  }

  const at::Tensor& of(const at::Tensor& original) {
    Twin& twin = twins_.at(original.unsafeGetTensorImpl());
    if (!twin.made.defined()) twin.made = make(twin);
    return twin.made;
  }

 private:
  at::Tensor make(const Twin& twin) const {
    const at::TensorOptions options(twin.original.scalar_type());
    if (twin.rule == Rule::kZeroScalar) return at::zeros({}, options);
    // Tells sizes and strides, without memory.
    const at::Tensor form = at::empty_like(twin.original, at::TensorOptions(at::kMeta));
    if (options_.share_memory) return in_block(twin, form, options);  // Which is zeros from the start.
    if (twin.rule == Rule::kZeros) return at::zeros(form.sizes(), options);
    if (!options_.pin_memory) return at::empty_strided(form.sizes(), form.strides(), options);
    return pinned(form, options);
  }

  static at::Tensor pinned(const at::Tensor& form, const at::TensorOptions& options) {
    try {
      return at::empty_strided(form.sizes(), form.strides(), options.pinned_memory(true));
    } catch (const c10::Error& error) {
      DCP_THROW(kState, "memory of ", form.numel(),
                " elements cannot be page-locked: ", error.what_without_backtrace());
    }
  }

  at::Tensor in_block(const Twin& twin, const at::Tensor& form, const at::TensorOptions& options) const {
    auto owner = std::make_unique<BlockOwner>(block_);
    void* const data = block_->memory().data() + twin.offset;
    return at::for_blob(data, form.sizes())
        .strides(form.strides())
        .context(owner.release(), &drop_owner)
        .options(options)
        .make_tensor();
  }

  CpuTwinOptions options_;
  std::unordered_map<const c10::TensorImpl*, Twin> twins_;
  std::int64_t block_bytes_ = 0;
  BlockOwner block_;
};

void add_all(const Value& value, TwinMaker& maker) {
  FaultList faults;
  visit_all(value, [&](const Path& path, const Value& leaf) {
    for (const at::Tensor& part : local_parts(leaf)) {
      if (!part.defined()) continue;
      const std::string why = why_without_twin(part);
      if (why.empty()) {
        maker.add(part);
      } else {
        faults.add(ErrorKind::kUnsupported, flat_key(path), why + " has no twin");
      }
    }
  });
  faults.throw_if_any("make a twin on the CPU", DCP_WHERE);
}

}  // namespace

Dict make_cpu_twin_with(const Dict& state, const CpuTwinOptions& options,
                        const std::function<PageLock()>& make_page_lock) {
  const c10::NoGradGuard no_grad;
  const Value value = replace_all_stateful(state);
  TwinMaker maker(options);
  add_all(value, maker);
  maker.allocate_block(make_page_lock);
  const Value twin = replace_leaves(value, [&](const Path&, const Value& leaf) {
    return with_local_parts(leaf, [&](const at::Tensor& part) { return part.defined() ? maker.of(part) : part; });
  });
  return twin.as_dict();
}

Dict make_cpu_twin(const Dict& state, const CpuTwinOptions& options) {
  return make_cpu_twin_with(state, options, device_page_lock);
}

const SharedMemory* shared_memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  if (data.get_deleter() != &drop_owner) return nullptr;
  return &(*static_cast<const BlockOwner*>(data.get_context()))->memory();
}

}  // namespace dcp
