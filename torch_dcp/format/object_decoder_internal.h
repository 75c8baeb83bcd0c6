#pragma once

#include <optional>
#include <vector>

#include "torch_dcp/base/limits.h"
#include "torch_dcp/format/object_reader_internal.h"
#include "torch_dcp/format/torch_save_file.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// Makes values of an object's nodes: tensors, too, or only their descriptions.
class ObjectDecoder {
 public:
  ObjectDecoder(ObjectReader& reader, const ParseLimits& limits) : reader_(reader), limits_(limits) {}

  /// The value with its tensors; nothing if anything in it is such that no value can hold it.
  std::optional<Value> value(pickle::Ref node);

  /// The value with tensors on the meta device, and None for what no value can hold, which is added to `unread`.
  Value describe(pickle::Ref node, std::vector<UnreadPart>& unread);

 private:
  std::optional<Value> readable(pickle::Ref node);
  std::optional<Value> container(pickle::Ref node);
  template <typename Sequence>
  std::optional<Value> sequence(pickle::Ref node);
  std::optional<Value> dict(pickle::Ref node);
  std::optional<Value> call(pickle::Ref node);
  void charge_mention(std::size_t more_bytes);

  ObjectReader& reader_;
  const ParseLimits& limits_;
  std::vector<UnreadPart>* unread_ = nullptr;  ///< null: the first such part ends it all
  Path path_;                                  ///< kept only for `unread_`
  std::size_t depth_ = 0;
};

}  // namespace dcp
