#include "torch_dcp/transform/stateful_internal.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/stateful.h"
#include "torch_dcp/state_dict/walk.h"

namespace dcp {
namespace {

class Replacing {
 public:
  Value replace(const Value& value) {
    std::map<std::string, std::shared_ptr<Stateful>> found;
    visit_all(value, [&](const Path& path, const Value& leaf) {
      if (leaf.kind() == ValueKind::kStateful) found.emplace(describe(path), leaf.as_stateful());
    });
    if (found.empty()) return value;
    for (const auto& [path, stateful] : found) ask(path, stateful);
    return replace_leaves(value, [&](const Path&, const Value& leaf) {
      return leaf.kind() == ValueKind::kStateful ? *states_.at(leaf.as_stateful().get()).state : leaf;
    });
  }

 private:
  struct Asked {
    std::shared_ptr<Stateful>
        object;                  ///< kept, since an object made by `state_dict()` might leave its address to another
    std::optional<Value> state;  ///< nothing while it is being asked
  };

  void ask(const std::string& path, const std::shared_ptr<Stateful>& stateful) {
    DCP_CHECK(stateful, kInvalidArgument, path, " holds a null Stateful");
    const auto [place, is_new] = states_.try_emplace(stateful.get(), Asked{stateful, std::nullopt});
    std::optional<Value>& state = place->second.state;
    DCP_CHECK(is_new || state, kInvalidArgument, path, " is a Stateful whose own state holds it");
    if (!is_new) return;
    DCP_CHECK(depth_ < ParseLimits().max_depth, kInvalidArgument, path,
              ": the states of Stateful objects hold others, ", depth_, " deep");
    ++depth_;
    state = call_object(path, "state_dict()", [&] { return replace(stateful->state_dict()); });
    --depth_;
  }

  std::map<const Stateful*, Asked> states_;
  std::size_t depth_ = 0;
};

}  // namespace

Value replace_all_stateful(const Value& value) { return Replacing().replace(value); }

}  // namespace dcp
