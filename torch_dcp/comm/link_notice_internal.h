#pragma once

#include <optional>
#include <string>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/error.h"

namespace dcp {

/// Why a link does not work any more.
struct LinkEnd {
  ErrorKind kind = ErrorKind::kComm;
  std::string reason;
};

constexpr std::size_t kNoticeBytes = 512;

/// What a rank tells its peers last: nothing that it leaves, else why the link is broken. A long reason is cut.
Bytes encode_notice(const std::optional<LinkEnd>& end);
/// \throws dcp::Error kCorruptData.
std::optional<LinkEnd> decode_notice(const Bytes& bytes);

}  // namespace dcp
