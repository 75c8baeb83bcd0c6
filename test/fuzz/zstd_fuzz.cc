// Fuzz target of zstd items: whatever the bytes, a bounded number comes out of them, or an Error of ours.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "test/fuzz/expected_error.h"
#include "torch_dcp/format/zstd_stream.h"

namespace {

class Source : public dcp::ByteSource {
 public:
  explicit Source(dcp::ByteSpan bytes) : left_(bytes) {}

  std::size_t read(dcp::MutableByteSpan out) override {
    const std::size_t count = std::min(out.size(), left_.size());
    std::copy_n(left_.begin(), count, out.begin());
    left_ = left_.subspan(count);
    return count;
  }

 private:
  dcp::ByteSpan left_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
  returns_or_refuses([&] {
    const auto zstd = dcp::make_zstd_transform(3, 20);
    const auto stream = zstd->decode(std::make_unique<Source>(dcp::ByteSpan(data, size)));
    dcp::Bytes piece(1000);
    for (std::size_t done = 0; done < kMaxBytes;) {
      const std::size_t count = stream->read(piece);
      must(count <= piece.size());
      done += count;
      if (count < piece.size()) break;
    }
  });
  return 0;
}
