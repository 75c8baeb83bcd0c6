#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "torch_dcp/model_state/hook_registry_internal.h"

namespace dcp {
namespace {

/// The live table.
class HookRegistry {
 public:
  HookRef add(const void* subject, SubjectGuard guard, HookPayload payload, const char* doubled) {
    const auto kind = payload.index();
    auto shared = std::make_shared<const HookPayload>(std::move(payload));
    const std::lock_guard lock(mutex_);
    std::vector<Attachment>& attachments = attachments_[subject];
    if (doubled != nullptr) {
      const bool is_there = std::any_of(attachments.begin(), attachments.end(), [&](const Attachment& attachment) {
        return attachment.payload->index() == kind && attachment.guard.is_alive();
      });
      DCP_CHECK(!is_there, kKey, doubled);
    }
    attachments.push_back({next_id_, std::move(guard), std::move(shared)});
    return {subject, next_id_++};
  }

  void remove(const std::vector<HookRef>& refs) {
    // Destroyed without the lock: a hook may own handles.
    std::vector<std::shared_ptr<const HookPayload>> removed;
    removed.reserve(refs.size());
    const std::lock_guard lock(mutex_);
    for (const HookRef& ref : refs) remove(ref, removed);
  }

  HookTable table() {
    const std::lock_guard lock(mutex_);
    return HookTable(attachments_);
  }

  std::size_t count() {
    const std::lock_guard lock(mutex_);
    std::size_t count = 0;
    for (const auto& [subject, attachments] : attachments_) count += attachments.size();
    return count;
  }

 private:
  void remove(const HookRef& ref, std::vector<std::shared_ptr<const HookPayload>>& removed) {
    const auto of_subject = attachments_.find(ref.subject);
    if (of_subject == attachments_.end()) return;
    std::vector<Attachment>& attachments = of_subject->second;
    const auto it = std::find_if(attachments.begin(), attachments.end(),
                                 [&](const Attachment& attachment) { return attachment.id == ref.id; });
    if (it == attachments.end()) return;
    removed.push_back(std::move(it->payload));
    attachments.erase(it);
    if (attachments.empty()) attachments_.erase(of_subject);
  }

  std::mutex mutex_;
  HookTable::BySubject attachments_;
  std::uint64_t next_id_ = 1;
};

/// Never destroyed: a handle may be static itself.
HookRegistry& registry() {
  static HookRegistry* const instance = new HookRegistry;
  return *instance;
}

HookHandle handle_of(HookRef ref) { return HookHandle(std::vector<HookRef>{ref}); }

template <typename Function>
void check_given(const Function& function) {
  DCP_CHECK(function, kInvalidArgument, "an empty function is given as a hook");
}

}  // namespace

SubjectGuard::SubjectGuard(const torch::nn::Module& module) {
  const std::weak_ptr<const torch::nn::Module> owned = module.weak_from_this();
  if (!owned.expired()) module_ = owned;
}

SubjectGuard::SubjectGuard(const at::Tensor& tensor) : tensor_(WeakTensor(tensor.getIntrusivePtr())) {}

bool SubjectGuard::is_alive() const {
  if (module_) return !module_->expired();
  return !tensor_ || !tensor_->expired();
}

std::optional<DTensorLayout> HookTable::layout_of(const at::Tensor& tensor) const {
  const TensorSpread* spread = first_of<TensorSpread>(tensor.unsafeGetTensorImpl());
  return spread == nullptr ? std::nullopt : std::optional(spread->layout);
}

HookTable current_hooks() { return registry().table(); }

HookHandle attach(const torch::nn::Module& module, HookPayload payload, const char* doubled) {
  return handle_of(registry().add(&module, SubjectGuard(module), std::move(payload), doubled));
}

HookHandle attach(const torch::optim::Optimizer& optimizer, HookPayload payload, const char* doubled) {
  return handle_of(registry().add(&optimizer, SubjectGuard(), std::move(payload), doubled));
}

HookHandle attach(const at::Tensor& tensor, HookPayload payload, const char* doubled) {
  return handle_of(registry().add(tensor.unsafeGetTensorImpl(), SubjectGuard(tensor), std::move(payload), doubled));
}

std::size_t attachment_count() { return registry().count(); }

// ---------------------------------------------------------------------------------------------------------------------

HookHandle::HookHandle(std::vector<HookRef> refs) : refs_(std::move(refs)) {}

HookHandle::HookHandle(HookHandle&& other) noexcept : refs_(std::exchange(other.refs_, {})) {}

HookHandle& HookHandle::operator=(HookHandle&& other) noexcept {
  if (this != &other) {
    remove();
    refs_ = std::exchange(other.refs_, {});
  }
  return *this;
}

HookHandle::~HookHandle() { remove(); }

void HookHandle::add(HookHandle other) {
  refs_.insert(refs_.end(), other.refs_.begin(), other.refs_.end());
  other.refs_.clear();
}

void HookHandle::remove() noexcept {
  if (!refs_.empty()) registry().remove(std::exchange(refs_, {}));
}

HookHandle register_state_dict_pre_hook(torch::nn::Module& module, ModuleStateDictPreHook hook) {
  check_given(hook);
  return attach(module,
                ModuleSavePre{[&module, hook = std::move(hook)](const std::string& prefix) { hook(module, prefix); }});
}

HookHandle register_state_dict_post_hook(torch::nn::Module& module, ModuleStateDictPostHook hook) {
  check_given(hook);
  return attach(module, ModuleSavePost{[&module, hook = std::move(hook)](Dict& state, const std::string& prefix) {
                  hook(module, state, prefix);
                }});
}

HookHandle register_load_state_dict_pre_hook(torch::nn::Module& module, ModuleLoadPreHook hook) {
  check_given(hook);
  return attach(module, ModuleLoadPre{.call = std::move(hook)});
}

HookHandle register_load_state_dict_post_hook(torch::nn::Module& module, ModuleLoadPostHook hook) {
  check_given(hook);
  return attach(module,
                ModuleLoadPost{[&module, hook = std::move(hook)](LoadReport& report) { hook(module, report); }});
}

HookHandle register_state_dict_pre_hook(torch::optim::Optimizer& optimizer, OptimizerStateDictPreHook hook) {
  check_given(hook);
  return attach(optimizer, OptimizerSavePre{[&optimizer, hook = std::move(hook)] { hook(optimizer); }});
}

HookHandle register_state_dict_post_hook(torch::optim::Optimizer& optimizer, OptimizerStateDictPostHook hook) {
  check_given(hook);
  return attach(optimizer,
                OptimizerSavePost{[&optimizer, hook = std::move(hook)](Dict& state) { hook(optimizer, state); }});
}

HookHandle register_load_state_dict_pre_hook(torch::optim::Optimizer& optimizer, OptimizerLoadPreHook hook) {
  check_given(hook);
  return attach(optimizer,
                OptimizerLoadPre{[&optimizer, hook = std::move(hook)](Dict& state) { hook(optimizer, state); }});
}

HookHandle register_load_state_dict_post_hook(torch::optim::Optimizer& optimizer, OptimizerLoadPostHook hook) {
  check_given(hook);
  return attach(optimizer, OptimizerLoadPost{[&optimizer, hook = std::move(hook)] { hook(optimizer); }});
}

}  // namespace dcp
