#include "torch_dcp/format/object_item.h"

#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/object_forms_internal.h"
#include "torch_dcp/format/object_reader_internal.h"

namespace dcp {
namespace {

using pickle::NodeKind;
using pickle::Ref;

/// Makes values of an object's nodes. Every function returns nothing for what no value can hold.
class ObjectDecoder {
 public:
  ObjectDecoder(ObjectReader& reader, const ParseLimits& limits) : reader_(reader), limits_(limits) {}

  std::optional<Value> value(Ref node);

 private:
  std::optional<Value> container(Ref node);
  template <typename Sequence>
  std::optional<Value> sequence(Ref node);
  std::optional<Value> dict(Ref node);
  std::optional<Value> call(Ref node);

  ObjectReader& reader_;
  const ParseLimits& limits_;
  std::size_t depth_ = 0;
};

std::optional<Value> ObjectDecoder::value(Ref node) {
  reader_.budget().charge_value(node->text.size());
  switch (node->kind) {
    case NodeKind::kNone:
      return Value(None());
    case NodeKind::kBool:
      return Value(node->integer != 0);
    case NodeKind::kInt:
      return Value(node->integer);
    case NodeKind::kFloat:
      return Value(node->real);
    case NodeKind::kText:
      return Value(std::string(node->text));
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
  values.reserve(node->items.size());
  for (Ref item : node->items) {
    std::optional<Value> element = value(item);
    if (!element) return std::nullopt;
    values.push_back(std::move(*element));
  }
  return Value(std::move(values));
}

std::optional<Value> ObjectDecoder::dict(Ref node) {
  Dict values;
  for (const auto& [key, item] : node->entries) {
    if (key->kind != NodeKind::kText && key->kind != NodeKind::kInt) return std::nullopt;
    std::optional<Value> element = value(item);
    if (!element) return std::nullopt;
    reader_.budget().charge_value(2 * key->text.size());
    Key made = key->kind == NodeKind::kText ? Key(std::string(key->text)) : Key(key->integer);
    values.insert_or_assign(std::move(made), std::move(*element));
  }
  return Value(std::move(values));
}

std::optional<Value> ObjectDecoder::call(Ref node) {
  if (object_forms::is_readable_tensor(node)) return Value(reader_.tensor(node));
  if (object_forms::is_ordered_dict(node)) return container(node);
  if (auto bytes = object_forms::bytes_of(node)) {
    reader_.budget().charge(bytes->size());
    return Value(std::move(*bytes));
  }
  return std::nullopt;
}

}  // namespace

Value decode_object_item(Bytes item, const ParseLimits& limits) {
  std::string type_name;
  {
    ObjectReader reader(item, limits);
    if (auto value = ObjectDecoder(reader, limits).value(reader.root())) return std::move(*value);
    reader.check_all_members();
    type_name = object_forms::type_of(reader.root()).display();
  }
  return Opaque{std::make_shared<const Bytes>(std::move(item)), std::move(type_name)};
}

}  // namespace dcp
