#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/state_dict/value.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/tensor/quantized.h"

namespace dcp {

// The head of a state that travels:
//
//     storages   which bytes of each are sent: from the first to the last that a tensor reaches
//     tensors    each once: where it lies in which storage
//     tree       the values, in which tensors are numbers

/// Bytes of a storage; what is before them is not sent, but keeps its room, so that tensors keep their offsets.
struct SentStorage {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t bytes() const { return end - begin; }
};

/// A tensor as seen from its storage.
struct SentTensor {
  bool is_defined = false;
  std::uint64_t storage = 0;
  NamedDtype dtype;
  Sizes sizes;
  Sizes strides;
  std::int64_t storage_offset = 0;  ///< in elements
  bool is_conj = false;
  bool is_neg = false;
  bool requires_grad = false;
  std::optional<Quantizer> quantizer;
};

/// First byte of the storage that the tensor reaches, and the one past the last; nothing if 64 bits do not hold them.
/// Equal for a tensor without elements.
std::optional<std::pair<std::int64_t, std::int64_t>> byte_extent(const SentTensor& tensor);

struct HeadTables {
  std::vector<SentStorage> storages;
  std::vector<SentTensor> tensors;
};

/// \throws dcp::Error kCorruptData unless every number is in range: tensors lie in their storages, and storages are not
///         larger than `max_state_bytes` together.
HeadTables decode_tables(ByteReader& in, const ParseLimits& limits, std::int64_t max_state_bytes);

/// What a tensor is before its storage's range is known.
/// \throws dcp::Error kUnsupported for tensors that have no memory of their own to be sent: sparse, meta, nested.
SentTensor describe_tensor(const at::Tensor& tensor);

/// A state that is to be sent.
struct OutgoingState {
  struct Storage {
    c10::Storage storage;
    SentStorage range;
    std::string name;  ///< key of a tensor that lies in it
  };
  Bytes head;
  std::vector<Storage> storages;
};

/// Each Stateful is asked for its state, once.
/// \throws dcp::Error that names the keys of all that cannot be sent.
OutgoingState describe_state(const Dict& state);

void encode(ByteWriter& out, const Placement& placement);
void encode(ByteWriter& out, const Key& key);
void encode_sizes(ByteWriter& out, const Sizes& sizes);
void encode_dtype(ByteWriter& out, const NamedDtype& dtype);

/// \throws dcp::Error kCorruptData.
Sizes decode_sizes(ByteReader& in, const ParseLimits& limits);
NamedDtype decode_dtype(ByteReader& in);

}  // namespace dcp
