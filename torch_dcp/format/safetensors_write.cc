// Laying out and spelling the header of a safetensors file.

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/format/safetensors_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

using namespace safetensors_form;  // NOLINT: the names of one small header

constexpr std::size_t kHeaderAlignment = 8;

void check_tensor_to_write(const SafetensorsTensor& tensor, bool has_offsets) {
  DCP_CHECK(safetensors_dtype(tensor.dtype), kUnsupported, "safetensors have no dtype ", dtype_name(tensor.dtype));
  DCP_CHECK(tensor.name != kMetadataField, kInvalidArgument, "this name is taken by the form itself");
  json_string(tensor.name);
  DCP_CHECK(tensor.saved_offsets.has_value() == has_offsets, kInvalidArgument, "only some tensors have offsets");
  DCP_CHECK(!has_offsets || tensor.saved_offsets->size() == tensor.sizes.size(), kInvalidArgument,
            "its offsets are of another rank than its sizes");
  if (!tensor.global_size) return;
  DCP_CHECK(has_offsets, kInvalidArgument, "it has a global size and no offsets");
  const Box part{*tensor.saved_offsets, tensor.sizes};
  DCP_CHECK(whole_box(*tensor.global_size).contains(part), kInvalidArgument, "its part ", to_string(part),
            " does not lie in its global size ", to_string(*tensor.global_size));
}

}  // namespace

SafetensorsHeader lay_out_safetensors(std::vector<SafetensorsTensor> tensors) {
  SafetensorsHeader header;
  header.tensors = std::move(tensors);
  const bool has_offsets = !header.tensors.empty() && header.tensors.front().saved_offsets.has_value();
  FaultList faults;
  for (const SafetensorsTensor& tensor : header.tensors) {
    try {
      check_tensor_to_write(tensor, has_offsets);
    } catch (const Error& error) {
      faults.add(error.kind(), tensor.name, error.what_without_backtrace());
    }
  }
  faults.throw_if_any("cannot be written as safetensors", DCP_WHERE);
  std::sort(header.tensors.begin(), header.tensors.end(), [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
    return std::pair(-dtype_rank(a.dtype), std::string_view(a.name)) <
           std::pair(-dtype_rank(b.dtype), std::string_view(b.name));
  });
  std::unordered_set<std::string_view> names;
  std::int64_t end = 0;
  for (SafetensorsTensor& tensor : header.tensors) {
    DCP_CHECK(names.insert(tensor.name).second, kKey, "key '", tensor.name, "' is twice in one safetensors file");
    const auto numel = checked_numel(tensor.sizes);
    const auto bytes = numel ? checked_mul(*numel, element_bytes(tensor.dtype)) : std::nullopt;
    const auto next = bytes ? checked_add(end, *bytes) : std::nullopt;
    DCP_CHECK(next, kInvalidArgument, "key '", tensor.name, "': bytes of sizes ", to_string(tensor.sizes),
              " overflow 64 bits");
    tensor.position = end;
    tensor.byte_count = *bytes;
    end = *next;
  }
  return header;
}

Bytes encode_safetensors_header(const SafetensorsHeader& header) {
  OrderedMap<std::string, std::string> metadata = header.metadata;
  if (!header.tensors.empty() && header.tensors.front().saved_offsets) {
    metadata.insert_or_assign("DCP_VERSION", "1.0");
    metadata.insert_or_assign(std::string(kShardingField), sharding_text(header.tensors));
  }
  std::string json = "{";
  if (!metadata.empty()) {
    json += json_string(std::string(kMetadataField)) + ":{";
    for (const auto& [name, value] : metadata) {
      json += (json.back() == '{' ? "" : ",") + json_string(name) + ":" + json_string(value);
    }
    json += "}";
  }
  for (const SafetensorsTensor& tensor : header.tensors) {
    json += (json.size() == 1 ? "" : ",") + json_string(tensor.name) + ":{\"dtype\":\"" +
            std::string(safetensors_dtype(tensor.dtype).value()) + "\",\"shape\":" + number_list(tensor.sizes, ",") +
            ",\"data_offsets\":" + number_list({tensor.position, tensor.position + tensor.byte_count}, ",") + "}";
  }
  json += "}";
  json.resize((json.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  Bytes bytes;
  bytes.reserve(kLengthBytes + json.size());
  for (std::size_t i = 0; i < kLengthBytes; ++i) bytes.push_back(static_cast<std::uint8_t>(json.size() >> (8 * i)));
  bytes.insert(bytes.end(), json.begin(), json.end());
  return bytes;
}

}  // namespace dcp
