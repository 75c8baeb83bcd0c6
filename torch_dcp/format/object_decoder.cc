#include <string>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/object_decoder_internal.h"
#include "torch_dcp/format/object_forms_internal.h"

namespace dcp {

using pickle::NodeKind;
using pickle::Ref;

std::optional<Value> ObjectDecoder::value(Ref node) {
  std::optional<Value> made = readable(node);
  if (made || unread_ == nullptr) return made;
  std::string type_name = object_forms::type_of(node).display();
  charge_mention(type_name.size());
  unread_->push_back({path_, std::move(type_name)});
  return Value(None());
}

/// Of a tensor or an unread part, which is told with its path however often the pickle refers to it.
void ObjectDecoder::charge_mention(std::size_t more_bytes) {
  constexpr std::size_t kCopies = 2;  // in the description of the file, and in what its user makes of that
  for (const PathItem& item : path_) more_bytes += sizeof(PathItem) + item.key.size();
  reader_.budget().charge_value(kCopies * more_bytes);
}

Value ObjectDecoder::describe(Ref node, std::vector<UnreadPart>& unread) {
  unread_ = &unread;
  Value described = *value(node);
  unread_ = nullptr;
  return described;
}

std::optional<Value> ObjectDecoder::readable(Ref node) {
  reader_.budget().charge_value(node->text().size());
  switch (node->kind) {
    case NodeKind::kNone:
      return Value(None());
    case NodeKind::kBool:
      return Value(node->integer() != 0);
    case NodeKind::kInt:
      return Value(node->integer());
    case NodeKind::kFloat:
      return Value(node->real());
    case NodeKind::kText:
      return Value(std::string(node->text()));
    case NodeKind::kBytes:
      return Value(*object_forms::bytes_of(node));
    case NodeKind::kCall:
      return call(node);
    case NodeKind::kList:
    case NodeKind::kTuple:
    case NodeKind::kDict:
      return container(node);
    default:
      return std::nullopt;
  }
}

std::optional<Value> ObjectDecoder::container(Ref node) {
  // Also what ends the walk around a list that holds itself.
  DCP_CHECK(++depth_ <= limits_.max_depth, kUnsupported, "object: it is nested deeper than ", limits_.max_depth);
  std::optional<Value> result;
  if (node->kind == NodeKind::kList) {
    result = sequence<List>(node);
  } else if (node->kind == NodeKind::kTuple) {
    result = sequence<Tuple>(node);
  } else {
    result = dict(node);
  }
  --depth_;
  return result;
}

template <typename Sequence>
std::optional<Value> ObjectDecoder::sequence(Ref node) {
  Sequence values;
  values.reserve(node->items().size());
  for (Ref item : node->items()) {
    if (unread_ != nullptr) path_.push_back(PathItem::list_index(static_cast<std::int64_t>(values.size())));
    std::optional<Value> element = value(item);
    if (unread_ != nullptr) path_.pop_back();
    if (!element) return std::nullopt;
    values.push_back(std::move(*element));
  }
  return Value(std::move(values));
}

std::optional<Value> ObjectDecoder::dict(Ref node) {
  Dict values;
  for (const auto& [key, item] : node->entries()) {
    if (key->kind != NodeKind::kText && key->kind != NodeKind::kInt) return std::nullopt;
    reader_.budget().charge_value(2 * key->text().size());
    Key made = key->kind == NodeKind::kText ? Key(std::string(key->text())) : Key(key->integer());
    if (unread_ != nullptr) path_.push_back(PathItem::dict_key(made));
    std::optional<Value> element = value(item);
    if (unread_ != nullptr) path_.pop_back();
    if (!element) return std::nullopt;
    values.insert_or_assign(std::move(made), std::move(*element));
  }
  return Value(std::move(values));
}

std::optional<Value> ObjectDecoder::call(Ref node) {
  const bool describes = unread_ != nullptr;
  if (object_forms::is_readable_tensor(node)) {
    if (!describes) return Value(reader_.tensor(node));
    const at::Tensor& tensor = reader_.describe(node);
    charge_mention(2 * sizeof(std::int64_t) * static_cast<std::size_t>(tensor.dim()));
    return Value(tensor);
  }
  if (object_forms::is_ordered_dict(node, /*may_have_metadata=*/describes)) return container(node);
  if (auto bytes = object_forms::bytes_of(node)) {
    reader_.budget().charge(bytes->size());
    return Value(std::move(*bytes));
  }
  return std::nullopt;
}

}  // namespace dcp
