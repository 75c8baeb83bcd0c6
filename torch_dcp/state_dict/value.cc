#include "torch_dcp/state_dict/value.h"

#include <limits>

#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

template <typename T>
const T& get_as(const Value& value, const char* wanted) {
  const T* found = std::get_if<T>(&value.storage());
  DCP_CHECK(found, kType, "expected a value of kind ", wanted, ", got ", value_kind_name(value.kind()));
  return *found;
}

template <typename T>
T& get_as(Value& value, const char* wanted) {
  return const_cast<T&>(get_as<T>(std::as_const(value), wanted));
}

template <typename MapType>
auto& checked_at(MapType& map, const Key& key) {
  auto* value = map.find(key);
  DCP_CHECK(value, kKey, "the dict has no key '", to_string(key), "' among its ", map.size());
  return *value;
}

}  // namespace

std::string to_string(const Key& key) {
  if (const auto* index = std::get_if<std::int64_t>(&key)) return std::to_string(*index);
  return std::get<std::string>(key);
}

Dict::Dict() : map_(std::make_unique<Map>()) {}

Dict::Dict(std::initializer_list<std::pair<Key, Value>> entries) : map_(std::make_unique<Map>(entries)) {}

Dict::Dict(const Dict& other) : map_(std::make_unique<Map>(*other.map_)) {}

Dict::Dict(Dict&&) noexcept = default;

// Copies first: `other` may lie inside this dict.
Dict& Dict::operator=(const Dict& other) {
  map_ = std::make_unique<Map>(*other.map_);
  return *this;
}

Dict& Dict::operator=(Dict&&) noexcept = default;

Dict::~Dict() = default;

Value& Dict::operator[](const Key& key) { return (*map_)[key]; }

Value& Dict::at(const Key& key) { return checked_at(*map_, key); }

const Value& Dict::at(const Key& key) const { return checked_at(std::as_const(*map_), key); }

Value* Dict::find(const Key& key) { return map_->find(key); }

const Value* Dict::find(const Key& key) const { return std::as_const(*map_).find(key); }

void Dict::insert_or_assign(Key key, Value value) { map_->insert_or_assign(std::move(key), std::move(value)); }

bool Dict::erase(const Key& key) { return map_->erase(key); }

Dict::iterator Dict::begin() { return map_->begin(); }

Dict::iterator Dict::end() { return map_->end(); }

Dict::const_iterator Dict::begin() const { return std::as_const(*map_).begin(); }

Dict::const_iterator Dict::end() const { return std::as_const(*map_).end(); }

std::size_t Dict::size() const { return map_->size(); }

const char* value_kind_name(ValueKind kind) {
  switch (kind) {
    case ValueKind::kNone:
      return "None";
    case ValueKind::kBool:
      return "bool";
    case ValueKind::kInt:
      return "int";
    case ValueKind::kDouble:
      return "double";
    case ValueKind::kString:
      return "string";
    case ValueKind::kBytes:
      return "bytes";
    case ValueKind::kTensor:
      return "tensor";
    case ValueKind::kDTensor:
      return "DTensor";
    case ValueKind::kShardedTensor:
      return "ShardedTensor";
    case ValueKind::kDict:
      return "dict";
    case ValueKind::kList:
      return "list";
    case ValueKind::kTuple:
      return "tuple";
    case ValueKind::kStateful:
      return "stateful object";
    case ValueKind::kOpaque:
      return "opaque object";
  }
  return "unknown";
}

Value::Value(TensorLike value)
    : storage_(std::visit([](auto&& tensor) -> Storage { return std::move(tensor); }, std::move(value))) {}

bool Value::is_tensor_like() const {
  return kind() == ValueKind::kTensor || kind() == ValueKind::kDTensor || kind() == ValueKind::kShardedTensor;
}

bool Value::is_container() const {
  return kind() == ValueKind::kDict || kind() == ValueKind::kList || kind() == ValueKind::kTuple;
}

bool Value::as_bool() const { return get_as<bool>(*this, "bool"); }

std::int64_t Value::as_int() const { return get_as<std::int64_t>(*this, "int"); }

double Value::as_double() const {
  if (const auto* integer = std::get_if<std::int64_t>(&storage_)) return static_cast<double>(*integer);
  return get_as<double>(*this, "double");
}

const std::string& Value::as_string() const { return get_as<std::string>(*this, "string"); }

const Bytes& Value::as_bytes() const { return get_as<Bytes>(*this, "bytes"); }

const at::Tensor& Value::as_tensor() const { return get_as<at::Tensor>(*this, "tensor"); }

const DTensor& Value::as_dtensor() const { return get_as<DTensor>(*this, "DTensor"); }

const ShardedTensor& Value::as_sharded_tensor() const { return get_as<ShardedTensor>(*this, "ShardedTensor"); }

TensorLike Value::as_tensor_like() const {
  if (kind() == ValueKind::kDTensor) return as_dtensor();
  if (kind() == ValueKind::kShardedTensor) return as_sharded_tensor();
  return get_as<at::Tensor>(*this, "tensor of any kind");
}

Dict& Value::as_dict() { return get_as<Dict>(*this, "dict"); }

const Dict& Value::as_dict() const { return get_as<Dict>(*this, "dict"); }

List& Value::as_list() { return get_as<List>(*this, "list"); }

const List& Value::as_list() const { return get_as<List>(*this, "list"); }

const Tuple& Value::as_tuple() const { return get_as<Tuple>(*this, "tuple"); }

const std::shared_ptr<Stateful>& Value::as_stateful() const {
  return get_as<std::shared_ptr<Stateful>>(*this, "stateful object");
}

const Opaque& Value::as_opaque() const { return get_as<Opaque>(*this, "opaque object"); }

std::int64_t Value::from_unsigned(std::uint64_t value) {
  DCP_CHECK(value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()), kInvalidArgument, "integer ",
            value, " does not fit 64 bits signed");
  return static_cast<std::int64_t>(value);
}

}  // namespace dcp
