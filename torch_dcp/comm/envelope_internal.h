#pragma once

#include <vector>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/error.h"

namespace dcp {

/// The outcome of a rank's part of a step as it travels between ranks.
///
/// Whether it is a failure is said by `failed`, which travels beside the bytes and
/// never by what the bytes look like.
struct Envelope {
  bool failed = false;
  Bytes body;  ///< the payload, or failures as `encode_failures` writes them
};

Envelope failure_envelope(const std::vector<RankFailure>& failures);

void encode_failures(ByteWriter& writer, const std::vector<RankFailure>& failures);
/// \throws dcp::Error kCorruptData if the bytes are no failures.
std::vector<RankFailure> decode_failures(ByteReader& reader);

/// Collects the failures in `envelopes`, sorted by rank.
///
/// Ranks that stopped because of others (kCancelled) are left out unless no other
/// failure explains why they stopped.
std::vector<RankFailure> collect_failures(const std::vector<Envelope>& envelopes);

}  // namespace dcp
