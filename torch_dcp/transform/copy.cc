#include "torch_dcp/transform/copy.h"

#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/state_dict/tensor_copies.h"
#include "torch_dcp/transform/pairs_internal.h"
#include "torch_dcp/transform/stateful_internal.h"

namespace dcp {
namespace {

bool is_object(const Value& value) {
  return value.kind() == ValueKind::kStateful || value.kind() == ValueKind::kOpaque;
}

std::string object_name(const Value& value) {
  const std::string kind = value_kind_name(value.kind());
  return value.kind() == ValueKind::kOpaque ? kind + " of type " + value.as_opaque().type_name : kind;
}

void check_objects(Pairs& pairs) {
  for (const ValuePair& pair : pairs.plain) {
    for (const Value* value : {pair.source, static_cast<const Value*>(pair.target)}) {
      if (!is_object(*value)) continue;
      pairs.faults.add(ErrorKind::kInvalidArgument, pair.key, "a " + object_name(*value) + " cannot be copied");
      break;
    }
  }
}

}  // namespace

std::vector<DtypeConversion> copy_into(const Dict& source, Dict& target, const CopyOptions& options) {
  Pairs pairs = pair_values(source, target);
  if (options.type_check) check_objects(pairs);
  std::vector<DtypeConversion> converted = check_tensors(pairs, options.dtype_policy);
  pairs.faults.throw_if_any("copy into another state dict", DCP_WHERE);
  // All that may fail comes before the first change.
  std::vector<Value> plain;
  plain.reserve(pairs.plain.size());
  for (const ValuePair& pair : pairs.plain) plain.push_back(replace_all_stateful(*pair.source));
  TensorCopies copies;
  for (const TensorPair& pair : pairs.tensors) copies.add(pair.target, pair.source);
  copies.apply(options.non_blocking);
  for (std::size_t i = 0; i < plain.size(); ++i) *pairs.plain[i].target = std::move(plain[i]);
  return converted;
}

}  // namespace dcp
