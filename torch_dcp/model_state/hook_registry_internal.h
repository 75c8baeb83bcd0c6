#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "torch_dcp/model_state/hooks.h"
#include "torch_dcp/model_state/optimizer_state_dict.h"

// What is attached to modules, optimizers and tensors: LibTorch has no slot for it. This table is the library's one
// global; it is empty when no handle lives.

namespace dcp {

// Each kind of attachment is a type of its own. Those of a module have it bound: it was given as mutable when it was
// registered, which a state that is asked of a const module could not give.
struct ModuleSavePre {
  std::function<void(const std::string& prefix)> call;
};
struct ModuleSavePost {
  std::function<void(Dict& state, const std::string& prefix)> call;
};
struct ModuleLoadPre {
  ModuleLoadPreHook call;
  bool is_spread = false;  ///< that of `shard_parameters`, which finds no fault with the module's own tensors
};
struct ModuleLoadPost {
  std::function<void(LoadReport& report)> call;
};
struct OptimizerSavePre {
  std::function<void()> call;
};
struct OptimizerSavePost {
  std::function<void(Dict& state)> call;
};
struct OptimizerLoadPre {
  std::function<void(Dict& state)> call;
};
struct OptimizerLoadPost {
  std::function<void()> call;
};

struct ExtraStateCalls {
  std::function<Value()> get;
  std::function<void(const Value&)> set;
};

struct NonPersistentNames {
  std::set<std::string> names;  ///< of the module's own buffers
};

/// Takes the place of `state_dict` and `load_state_dict` of one module; their arguments are ignored then.
struct ModulePatch {
  std::function<Dict(const torch::nn::Module&)> get;
  std::function<LoadReport(torch::nn::Module&, const Dict&)> set;
};

/// The same for an optimizer.
struct OptimizerPatch {
  std::function<Dict(const torch::optim::Optimizer&)> get;
  std::function<LoadReport(torch::optim::Optimizer&, const Dict&)> set;
};

/// How a parameter is spread.
struct TensorSpread {
  DTensorLayout layout;
};

using HookPayload = std::variant<ModuleSavePre, ModuleSavePost, ModuleLoadPre, ModuleLoadPost, OptimizerSavePre,
                                 OptimizerSavePost, OptimizerLoadPre, OptimizerLoadPost, ExtraStateCalls,
                                 NonPersistentNames, ModulePatch, OptimizerPatch, TensorSpread>;

/// Tells whether the object that something was attached to is the one that now has its address.
class SubjectGuard {
 public:
  /// Only the address is known.
  SubjectGuard() = default;
  explicit SubjectGuard(const torch::nn::Module& module);
  explicit SubjectGuard(const at::Tensor& tensor);

  bool is_alive() const;

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  std::optional<std::weak_ptr<const void>> module_;
  std::optional<WeakTensor> tensor_;
};

struct Attachment {
  std::uint64_t id = 0;
  SubjectGuard guard;
  std::shared_ptr<const HookPayload> payload;
};

/// All attachments at one moment. What `of` returns lives as long as the table.
class HookTable {
 public:
  using BySubject = std::unordered_map<const void*, std::vector<Attachment>>;

  HookTable() = default;
  explicit HookTable(BySubject attachments) : attachments_(std::move(attachments)) {}

  /// Attachments of one kind, in the order of their registration.
  /// \param subject  Address of a `torch::nn::Module`, a `torch::optim::Optimizer` or a `c10::TensorImpl`, as such.
  template <typename Kind>
  std::vector<const Kind*> of(const void* subject) const {
    std::vector<const Kind*> found;
    const auto it = attachments_.find(subject);
    if (it == attachments_.end()) return found;
    for (const Attachment& attachment : it->second) {
      const Kind* kind = std::get_if<Kind>(attachment.payload.get());
      if (kind != nullptr && attachment.guard.is_alive()) found.push_back(kind);
    }
    return found;
  }

  /// The first of them, or null.
  template <typename Kind>
  const Kind* first_of(const void* subject) const {
    const std::vector<const Kind*> found = of<Kind>(subject);
    return found.empty() ? nullptr : found.front();
  }

  /// How a parameter is spread, if it is.
  std::optional<DTensorLayout> layout_of(const at::Tensor& tensor) const;

 private:
  BySubject attachments_;
};

/// A copy of the table as it is now.
HookTable current_hooks();

/// Attaches something until the handle dies.
/// \param doubled  Where only one of a kind may be attached: what an error says if there is one already.
/// \throws dcp::Error kKey with this text.
HookHandle attach(const torch::nn::Module& module, HookPayload payload, const char* doubled = nullptr);
HookHandle attach(const torch::optim::Optimizer& optimizer, HookPayload payload, const char* doubled = nullptr);
HookHandle attach(const at::Tensor& tensor, HookPayload payload, const char* doubled = nullptr);

/// Attachments whose handle lives.
std::size_t attachment_count();

}  // namespace dcp
