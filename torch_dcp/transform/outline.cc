#include "torch_dcp/transform/outline.h"

#include <ATen/ops/empty.h>

#include <cstddef>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/comm/rank_step.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/transform/skeleton_internal.h"

namespace dcp {
namespace {

constexpr char kHeading[] = "outline of a state";

void find_quantized(const Skeleton& skeleton, Path& path, FaultList& faults) {
  if (skeleton.quantizer) faults.add(ErrorKind::kUnsupported, flat_key(path), "a quantized tensor has no outline");
  for (std::size_t i = 0; i < skeleton.children.size(); ++i) {
    path.push_back(skeleton.kind == ValueKind::kDict ? PathItem::dict_key(skeleton.keys[i])
                                                     : PathItem::list_index(static_cast<std::int64_t>(i)));
    find_quantized(skeleton.children[i], path, faults);
    path.pop_back();
  }
}

Value value_of(const Skeleton& skeleton) {
  switch (skeleton.kind) {
    case ValueKind::kTensor:
      return at::empty(skeleton.tensor.sizes, at::TensorOptions(skeleton.tensor.dtype).device(at::kMeta));
    case ValueKind::kDict: {
      Dict dict;
      for (std::size_t i = 0; i < skeleton.keys.size(); ++i) {
        dict.insert_or_assign(skeleton.keys[i], value_of(skeleton.children[i]));
      }
      return dict;
    }
    case ValueKind::kList: {
      List list;
      for (const Skeleton& child : skeleton.children) list.push_back(value_of(child));
      return list;
    }
    case ValueKind::kTuple: {
      Tuple tuple;
      for (const Skeleton& child : skeleton.children) tuple.push_back(value_of(child));
      return tuple;
    }
    default:
      return skeleton.plain;
  }
}

}  // namespace

Dict broadcast_outline(const Dict& full, Communicator& comm) {
  const Skeleton skeleton = broadcast_step(comm, "broadcast outline", [&] {
    Skeleton own = take_full_state(full, kHeading).skeleton;
    Path path;
    FaultList faults;
    find_quantized(own, path, faults);
    faults.throw_if_any(kHeading, DCP_WHERE);
    return own;
  });
  return std::move(value_of(skeleton).as_dict());
}

}  // namespace dcp
