#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/error.h"

namespace dcp {

/// Bytes of prefaces and answers.
constexpr std::size_t kTransportFixedBytes = 1024;

struct TransportFailure {
  ErrorKind kind = ErrorKind::kInternal;
  std::string text;
};

struct TransportPreface {
  std::optional<TransportFailure> failure;  // why there is nothing to come
  std::int64_t step = 0;
  std::uint64_t head_bytes = 0;
  std::uint32_t head_sum = 0;
  std::int64_t piece_bytes = 0;
};

std::shared_ptr<Bytes> encode_preface(const TransportPreface& preface);
/// \throws dcp::Error kCorruptData.
TransportPreface decode_preface(const Bytes& bytes);

/// An answer: nothing, or why the receiver refuses.
std::shared_ptr<Bytes> encode_answer(const std::optional<TransportFailure>& failure);
std::optional<TransportFailure> decode_answer(const Bytes& bytes);

/// The exception that is being handled.
TransportFailure current_transport_failure(int rank);

}  // namespace dcp
