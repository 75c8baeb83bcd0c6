#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/tensor/local_chunks.h"

namespace dcp {

class Stateful;
class Value;

/// A key of a Dict. Integer keys stay integers in this library's own round trip;
/// Python reads them as strings.
using Key = std::variant<std::string, std::int64_t>;

struct DCP_API KeyHash {
  std::size_t operator()(const Key& key) const {
    return std::visit([](const auto& k) { return std::hash<std::decay_t<decltype(k)>>()(k); }, key);
  }
};

/// Spells the key as Python's `str(key)`.
DCP_API std::string to_string(const Key& key);

/// Python's None.
struct None {
  friend bool operator==(None, None) { return true; }
};

/// An ordered sequence; Python's list. Use as a vector.
class List : public std::vector<Value> {
 public:
  using std::vector<Value>::vector;
};

/// Python's tuple: saved as one object, never opened.
class Tuple : public std::vector<Value> {
 public:
  using std::vector<Value>::vector;
};

/// A mapping that keeps the order of insertion; Python's dict.
///
/// `dict["key"]` adds a None under a new key, `at` throws kKey. A copy copies the
/// structure; tensors inside are handles and stay shared.
class DCP_API Dict {
 public:
  using Map = OrderedMap<Key, Value, KeyHash>;
  using iterator = std::vector<std::pair<Key, Value>>::iterator;
  using const_iterator = std::vector<std::pair<Key, Value>>::const_iterator;

  Dict();
  Dict(std::initializer_list<std::pair<Key, Value>> entries);
  Dict(const Dict&);
  Dict(Dict&&) noexcept;
  Dict& operator=(const Dict&);
  Dict& operator=(Dict&&) noexcept;
  ~Dict();

  Value& operator[](const Key& key);
  /// \throws dcp::Error kKey.
  Value& at(const Key& key);
  const Value& at(const Key& key) const;
  /// The value of `key`, or null.
  Value* find(const Key& key);
  const Value* find(const Key& key) const;
  bool contains(const Key& key) const { return find(key) != nullptr; }
  void insert_or_assign(Key key, Value value);
  bool erase(const Key& key);

  iterator begin();
  iterator end();
  const_iterator begin() const;
  const_iterator end() const;
  std::size_t size() const;
  bool empty() const { return size() == 0; }

 private:
  std::unique_ptr<Map> map_;  // never null but in a moved-from Dict, which may only be assigned or destroyed
};

using StateDict = Dict;

/// An object item that this side cannot interpret: kept as it is stored, and saved again
/// unchanged.
struct Opaque {
  std::shared_ptr<const Bytes> item;  ///< the item as torch.save wrote it
  std::string type_name;              ///< Python's name of its type, such as "collections.deque"
};

enum class ValueKind : std::uint8_t {
  kNone,
  kBool,
  kInt,
  kDouble,
  kString,
  kBytes,
  kTensor,
  kDTensor,
  kShardedTensor,
  kDict,
  kList,
  kTuple,
  kStateful,
  kOpaque,
};

DCP_API const char* value_kind_name(ValueKind kind);

/// One value of a state dict: a tensor of any kind, a plain value, or a container of values.
///
/// Copies are deep for containers and shallow for tensors, stateful objects and opaque items.
class DCP_API Value {
 public:
  using Storage = std::variant<None, bool, std::int64_t, double, std::string, Bytes, at::Tensor, DTensor, ShardedTensor,
                               Dict, List, Tuple, std::shared_ptr<Stateful>, Opaque>;

  Value() = default;
  Value(None) {}
  Value(std::nullptr_t) = delete;
  /// A pointer would become a bool.
  Value(const void*) = delete;
  Value(bool value) : storage_(value) {}
  /// Any integer; one beyond 64 bits signed is kInvalidArgument.
  template <typename T>
    requires(std::is_integral_v<T> && !std::is_same_v<T, bool>)
  Value(T value) : storage_(std::in_place_type<std::int64_t>, checked_int(value)) {}
  Value(float value) : storage_(static_cast<double>(value)) {}
  Value(double value) : storage_(value) {}
  Value(const char* value) : storage_(std::string(value)) {}
  Value(std::string value) : storage_(std::move(value)) {}
  Value(Bytes value) : storage_(std::move(value)) {}
  Value(at::Tensor value) : storage_(std::move(value)) {}
  Value(DTensor value) : storage_(std::move(value)) {}
  Value(ShardedTensor value) : storage_(std::move(value)) {}
  Value(TensorLike value);
  Value(Dict value) : storage_(std::move(value)) {}
  Value(List value) : storage_(std::move(value)) {}
  Value(Tuple value) : storage_(std::move(value)) {}
  Value(std::shared_ptr<Stateful> value) : storage_(std::move(value)) {}
  /// A pointer to a class that is derived from Stateful.
  template <typename T>
    requires std::is_convertible_v<T*, Stateful*>
  Value(std::shared_ptr<T> value) : storage_(std::shared_ptr<Stateful>(std::move(value))) {}
  Value(Opaque value) : storage_(std::move(value)) {}

  ValueKind kind() const { return static_cast<ValueKind>(storage_.index()); }
  const Storage& storage() const { return storage_; }
  Storage& storage() { return storage_; }

  bool is_none() const { return kind() == ValueKind::kNone; }
  bool is_dict() const { return kind() == ValueKind::kDict; }
  bool is_list() const { return kind() == ValueKind::kList; }
  bool is_tensor() const { return kind() == ValueKind::kTensor; }
  /// Whether it is a tensor of any kind.
  bool is_tensor_like() const;
  /// Whether it is a Dict, List or Tuple.
  bool is_container() const;

  // Checked access: kType, naming what it is and what was wanted.
  bool as_bool() const;
  std::int64_t as_int() const;
  /// A double, or an int (no bool), rounded to the nearest double.
  double as_double() const;
  const std::string& as_string() const;
  const Bytes& as_bytes() const;
  const at::Tensor& as_tensor() const;
  const DTensor& as_dtensor() const;
  const ShardedTensor& as_sharded_tensor() const;
  TensorLike as_tensor_like() const;
  Dict& as_dict();
  const Dict& as_dict() const;
  List& as_list();
  const List& as_list() const;
  const Tuple& as_tuple() const;
  const std::shared_ptr<Stateful>& as_stateful() const;
  const Opaque& as_opaque() const;

 private:
  template <typename T>
  static std::int64_t checked_int(T value) {
    if constexpr (std::is_unsigned_v<T> && sizeof(T) >= sizeof(std::int64_t)) {
      return from_unsigned(static_cast<std::uint64_t>(value));
    } else {
      return static_cast<std::int64_t>(value);
    }
  }
  static std::int64_t from_unsigned(std::uint64_t value);

  Storage storage_;
};

}  // namespace dcp
