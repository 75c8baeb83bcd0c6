#include "torch_dcp/format/object_json.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/object_forms_internal.h"
#include "torch_dcp/format/object_reader_internal.h"
#include "torch_dcp/io/span_file.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/tensor/quantized.h"

namespace dcp {
namespace {

using Json = nlohmann::ordered_json;
using pickle::NodeKind;
using pickle::Ref;

/// A tensor of more elements is described by its bytes alone.
constexpr std::int64_t kMaxListedValues = 4096;

Json typed(std::string_view type) { return {{"t", type}}; }

Json typed(std::string_view type, Json value) { return {{"t", type}, {"v", std::move(value)}}; }

Json unknown(const object_forms::TypeName& type) { return {{"t", "other"}, {"type", type.qualified()}}; }

std::string hex_of(ByteSpan bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (std::uint8_t byte : bytes) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}

/// JSON has no infinities.
Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

Json describe_float(double value) {
  std::array<std::uint8_t, sizeof(double)> bytes;
  const std::uint64_t big_endian = __builtin_bswap64(std::bit_cast<std::uint64_t>(value));
  std::memcpy(bytes.data(), &big_endian, bytes.size());
  return {{"t", "float"}, {"v", number(value)}, {"hex", hex_of(bytes)}};
}

/// Lone surrogates, which JSON cannot hold, are the only thing in a pickle's text that is not UTF-8.
bool has_surrogate(std::string_view text) {
  for (std::size_t i = text.find('\xED'); i != std::string_view::npos; i = text.find('\xED', i + 1)) {
    if (static_cast<std::uint8_t>(text[i + 1]) >= 0xA0) return true;  // a lead byte is never the last one
  }
  return false;
}

Json describe_text(std::string_view text) {
  if (has_surrogate(text)) return {{"t", "str"}, {"utf8_surrogatepass_hex", hex_of(as_bytes(text))}};
  return typed("str", text);
}

// ---- tensors ----------------------------------------------------------------------------------------

template <typename T, typename Convert>
Json list_values(const at::Tensor& tensor, Convert convert) {
  Json values = Json::array();
  const auto* elements = static_cast<const T*>(tensor.const_data_ptr());
  for (std::int64_t i = 0; i < tensor.numel(); ++i) values.push_back(convert(elements[i]));
  return values;
}

template <typename T>
Json list_reals(const at::Tensor& tensor) {
  return list_values<T>(tensor, [](T value) { return number(static_cast<double>(static_cast<float>(value))); });
}

template <typename T>
Json list_integers(const at::Tensor& tensor) {
  return list_values<T>(tensor, [](T value) { return Json(value); });
}

template <typename T>
Json list_complex(const at::Tensor& tensor) {
  return list_values<c10::complex<T>>(tensor, [](c10::complex<T> value) {
    return Json::array({number(static_cast<double>(value.real())), number(static_cast<double>(value.imag()))});
  });
}

/// The elements as numbers; null for a dtype without a plain number form.
Json list_elements(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Double:
      return list_values<double>(tensor, number);
    case c10::ScalarType::Float:
      return list_reals<float>(tensor);
    case c10::ScalarType::Half:
      return list_reals<c10::Half>(tensor);
    case c10::ScalarType::BFloat16:
      return list_reals<c10::BFloat16>(tensor);
    case c10::ScalarType::Char:
      return list_integers<std::int8_t>(tensor);
    case c10::ScalarType::Short:
      return list_integers<std::int16_t>(tensor);
    case c10::ScalarType::Int:
      return list_integers<std::int32_t>(tensor);
    case c10::ScalarType::Long:
      return list_integers<std::int64_t>(tensor);
    case c10::ScalarType::Byte:
      return list_integers<std::uint8_t>(tensor);
    case c10::ScalarType::UInt16:
      return list_integers<std::uint16_t>(tensor);
    case c10::ScalarType::UInt32:
      return list_integers<std::uint32_t>(tensor);
    case c10::ScalarType::UInt64:
      return list_integers<std::uint64_t>(tensor);
    case c10::ScalarType::Bool:
      return list_integers<bool>(tensor);
    case c10::ScalarType::ComplexFloat:
      return list_complex<float>(tensor);
    case c10::ScalarType::ComplexDouble:
      return list_complex<double>(tensor);
    default:
      return nullptr;
  }
}

Json describe_tensor(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  Json described = typed("tensor");
  described["dtype"] = dtype_name(whole.scalar_type());
  described["shape"] = whole.sizes().vec();
  described["hex"] = hex_of({static_cast<const std::uint8_t*>(whole.const_data_ptr()), whole.nbytes()});
  if (whole.numel() <= kMaxListedValues) {
    Json values = list_elements(whole);
    if (!values.is_null()) described["values"] = std::move(values);
  }
  add_quantizer(described, tensor);
  return described;
}

// ---- objects ----------------------------------------------------------------------------------------

/// Describes nodes. A function for one form of call gives null for another form.
class ObjectDescriber {
 public:
  ObjectDescriber(ObjectReader& reader, const ParseLimits& limits) : reader_(reader), limits_(limits) {}

  Json value(Ref node);

 private:
  Json describe(Ref node);
  Json call(Ref node);
  Json builtin_call(Ref node);
  Json torch_call(Ref node);
  Json sequence(const pickle::List<Ref>& items);
  Json pairs(const pickle::List<std::pair<Ref, Ref>>& entries);
  Json set(std::string_view type, const pickle::List<Ref>& items);

  ObjectReader& reader_;
  const ParseLimits& limits_;
  std::size_t depth_ = 0;
};

Json ObjectDescriber::value(Ref node) {
  reader_.budget().charge_value(4 * node->text().size());
  DCP_CHECK(++depth_ <= limits_.max_depth, kUnsupported, "object: it is nested deeper than ", limits_.max_depth);
  Json described = describe(node);
  --depth_;
  return described;
}

Json ObjectDescriber::sequence(const pickle::List<Ref>& items) {
  Json values = Json::array();
  for (Ref item : items) values.push_back(value(item));
  return values;
}

Json ObjectDescriber::pairs(const pickle::List<std::pair<Ref, Ref>>& entries) {
  Json values = Json::array();
  for (const auto& [key, item] : entries) {
    Json pair = Json::array();
    pair.push_back(value(key));
    pair.push_back(value(item));
    values.push_back(std::move(pair));
  }
  return values;
}

/// A set has no order; the elements' texts give it one.
Json ObjectDescriber::set(std::string_view type, const pickle::List<Ref>& items) {
  std::vector<std::pair<std::string, Json>> sorted;
  for (Ref item : items) {
    Json described = value(item);
    std::string text = described.dump(-1, ' ', true);
    sorted.emplace_back(std::move(text), std::move(described));
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Json values = Json::array();
  for (auto& [text, described] : sorted) values.push_back(std::move(described));
  return typed(type, std::move(values));
}

Json ObjectDescriber::describe(Ref node) {
  switch (node->kind) {
    case NodeKind::kNone:
      return typed("none");
    case NodeKind::kBool:
      return typed("bool", node->integer() != 0);
    case NodeKind::kInt:
      return typed("int", std::to_string(node->integer()));
    case NodeKind::kBigInt:
      return typed("int", node->text());
    case NodeKind::kFloat:
      return describe_float(node->real());
    case NodeKind::kText:
      return describe_text(node->text());
    case NodeKind::kBytes:
      return {{"t", "bytes"}, {"hex", hex_of(as_bytes(node->text()))}};
    case NodeKind::kByteArray:
      return {{"t", "bytearray"}, {"hex", hex_of(as_bytes(node->text()))}};
    case NodeKind::kList:
      return typed("list", sequence(node->items()));
    case NodeKind::kTuple:
      return typed("tuple", sequence(node->items()));
    case NodeKind::kDict:
      return typed("dict", pairs(node->entries()));
    case NodeKind::kSet:
      return set("set", node->items());
    case NodeKind::kFrozenSet:
      return set("frozenset", node->items());
    case NodeKind::kCall:
      return call(node);
    case NodeKind::kGlobal:
    case NodeKind::kPersistentId:
      break;
  }
  const object_forms::TypeName type = object_forms::type_of(node);
  if (type.qualified() == "torch.dtype") return typed("dtype", node->text());
  return unknown(type);
}

Json ObjectDescriber::call(Ref node) {
  if (object_forms::is_readable_tensor(node)) {
    const at::Tensor& tensor = reader_.tensor(node);
    reader_.budget().charge(2 * tensor.nbytes());
    return describe_tensor(tensor);
  }
  if (object_forms::is_ordered_dict(node)) return typed("ordereddict", pairs(node->entries()));
  if (const auto bytes = object_forms::bytes_of(node)) return {{"t", "bytes"}, {"hex", hex_of(*bytes)}};
  // A subclass of dict counts as one.
  if (node->callee()->is_global("collections", "defaultdict")) return typed("dict", pairs(node->entries()));
  Json described = builtin_call(node);
  if (described.is_null()) described = torch_call(node);
  if (described.is_null()) described = unknown(object_forms::type_of(node));
  return described;
}

Json ObjectDescriber::builtin_call(Ref node) {
  const auto& items = node->items();
  for (std::string_view type : {"set", "frozenset"}) {
    if (!object_forms::is_plain_call(node, "builtins", type) || items.size() != 1) continue;
    const bool is_sequence = items[0]->kind == NodeKind::kList || items[0]->kind == NodeKind::kTuple;
    return is_sequence ? set(type, items[0]->items()) : Json();
  }
  if (object_forms::is_plain_call(node, "builtins", "bytearray")) {
    if (items.empty()) return {{"t", "bytearray"}, {"hex", ""}};
    const auto bytes = object_forms::bytes_of(items[0]);
    return bytes && items.size() == 1 ? Json{{"t", "bytearray"}, {"hex", hex_of(*bytes)}} : Json();
  }
  if (object_forms::is_plain_call(node, "builtins", "complex") && items.size() == 2 &&
      items[0]->kind == NodeKind::kFloat && items[1]->kind == NodeKind::kFloat) {
    return typed("complex", Json::array({number(items[0]->real()), number(items[1]->real())}));
  }
  return nullptr;
}

Json ObjectDescriber::torch_call(Ref node) {
  const auto& items = node->items();
  if (object_forms::is_plain_call(node, "torch", "Size") && items.size() == 1 && items[0]->kind == NodeKind::kTuple) {
    Json sizes = Json::array();
    for (Ref item : items[0]->items()) {
      if (item->kind != NodeKind::kInt) return nullptr;
      sizes.push_back(item->integer());
    }
    return typed("size", std::move(sizes));
  }
  if (!object_forms::is_plain_call(node, "torch", "device") || items.empty()) return nullptr;
  if (items[0]->kind != NodeKind::kText) return nullptr;
  std::string device(items[0]->text());
  if (items.size() == 2 && items[1]->kind == NodeKind::kInt) device += ":" + std::to_string(items[1]->integer());
  return typed("device", std::move(device));
}

}  // namespace

void add_quantizer(nlohmann::ordered_json& json, const at::Tensor& tensor) {
  if (!tensor.is_quantized()) return;
  const Quantizer quantizer = quantizer_of(tensor);
  if (!quantizer.is_per_channel()) {
    json["qscheme"] = "per_tensor_affine";
    json["scale"] = quantizer.scale;
    json["zero_point"] = quantizer.zero_point;
    return;
  }
  const bool has_integers = !c10::isFloatingType(quantizer.zero_points.scalar_type());
  json["qscheme"] = has_integers ? "per_channel_affine" : "per_channel_affine_float_qparams";
  json["scales"] = list_elements(quantizer.scales.contiguous());
  json["zero_points"] = list_elements(quantizer.zero_points.contiguous());
  json["axis"] = quantizer.axis;
}

nlohmann::ordered_json object_item_to_json(ByteSpan item, const ParseLimits& limits) {
  const SpanFile file(item);
  ObjectReader reader(file, limits);
  return ObjectDescriber(reader, limits).value(reader.root());
}

}  // namespace dcp
