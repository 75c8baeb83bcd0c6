#include "torch_dcp/format/crc32.h"

#include <isa-l/crc.h>
#include <zlib.h>

#include "torch_dcp/base/error.h"

namespace dcp {

std::uint32_t crc32_of(ByteSpan bytes, std::uint32_t seed) {
  return bytes.empty() ? seed : crc32_gzip_refl(seed, bytes.data(), bytes.size());
}

std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second, std::int64_t second_bytes) {
  static_assert(sizeof(z_off_t) == sizeof(std::int64_t), "lengths over 2 GiB must fit");
  DCP_CHECK(second_bytes >= 0, kInvalidArgument, "a CRC-32 of ", second_bytes, " bytes");
  return static_cast<std::uint32_t>(::crc32_combine(first, second, second_bytes));
}

}  // namespace dcp
