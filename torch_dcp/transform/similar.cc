#include "torch_dcp/transform/similar.h"

#include <algorithm>

#include "torch_dcp/transform/pairs_internal.h"

namespace dcp {

TensorInfo tensor_info(const TensorLike& tensor) { return {global_sizes(tensor), dtype_of(tensor)}; }

bool similar(const Dict& a, const Dict& b) {
  Dict second = b;  // Copies the structure alone: pairs point into something that may be changed.
  const Pairs pairs = pair_values(a, second);
  return pairs.faults.empty() && std::all_of(pairs.tensors.begin(), pairs.tensors.end(), [](const TensorPair& pair) {
           return pair.source.scalar_type() == pair.target.scalar_type() && pair.source.sizes() == pair.target.sizes();
         });
}

}  // namespace dcp
