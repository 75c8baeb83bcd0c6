#include "torch_dcp/state_dict/walk.h"

#include <algorithm>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/limits.h"

namespace dcp {
namespace {

/// Where a walk stands.
class Place {
 public:
  const Path& path() const { return path_; }

  template <typename Call>
  void below(PathItem item, const Call& call) {
    path_.push_back(std::move(item));
    DCP_CHECK(path_.size() <= ParseLimits().max_depth, kInvalidArgument, "the value is nested more than ",
              ParseLimits().max_depth, " deep below ", describe(Path(path_.begin(), path_.begin() + 3)));
    call();
    path_.pop_back();
  }

 private:
  Path path_;
};

class Visit {
 public:
  explicit Visit(const std::function<void(const Path&, const Value&)>& visit) : visit_(visit) {}

  void take(const Value& value) {
    switch (value.kind()) {
      case ValueKind::kDict:
        for (const auto& [key, child] : value.as_dict()) below(PathItem::dict_key(key), child);
        if (value.as_dict().empty()) visit_(place_.path(), value);
        return;
      case ValueKind::kList:
        return take_sequence(value, value.as_list());
      case ValueKind::kTuple:
        return take_sequence(value, value.as_tuple());
      default:
        visit_(place_.path(), value);
    }
  }

 private:
  void below(PathItem item, const Value& child) {
    place_.below(std::move(item), [&] { take(child); });
  }

  void take_sequence(const Value& value, const std::vector<Value>& children) {
    std::int64_t position = 0;
    for (const Value& child : children) below(PathItem::list_index(position++), child);
    if (children.empty()) visit_(place_.path(), value);
  }

  const std::function<void(const Path&, const Value&)>& visit_;
  Place place_;
};

class Replacement {
 public:
  explicit Replacement(const std::function<Value(const Path&, const Value&)>& replace) : replace_(replace) {}

  Value take(const Value& value) {
    switch (value.kind()) {
      case ValueKind::kDict: {
        Dict dict;
        for (const auto& [key, child] : value.as_dict()) {
          dict.insert_or_assign(key, below(PathItem::dict_key(key), child));
        }
        return dict;
      }
      case ValueKind::kList:
        return sequence(value.as_list());
      case ValueKind::kTuple:
        return sequence(value.as_tuple());
      default:
        return replace_(place_.path(), value);
    }
  }

 private:
  Value below(PathItem item, const Value& child) {
    Value made;
    place_.below(std::move(item), [&] { made = take(child); });
    return made;
  }

  template <typename Sequence>
  Value sequence(const Sequence& children) {
    Sequence made;
    made.reserve(children.size());
    std::int64_t position = 0;
    for (const Value& child : children) made.push_back(below(PathItem::list_index(position++), child));
    return made;
  }

  const std::function<Value(const Path&, const Value&)>& replace_;
  Place place_;
};

}  // namespace

void visit_all(const Value& root, const std::function<void(const Path&, const Value&)>& visit) {
  Visit(visit).take(root);
}

Value replace_leaves(const Value& root, const std::function<Value(const Path&, const Value&)>& replace) {
  return Replacement(replace).take(root);
}

}  // namespace dcp
