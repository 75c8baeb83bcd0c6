#pragma once

#include <algorithm>

#include "torch_dcp/base/error.h"
#include "torch_dcp/io/file_system.h"

namespace dcp {

/// Bytes in memory seen as a file. Borrows them.
class SpanFile : public RandomAccessFile {
 public:
  explicit SpanFile(ByteSpan bytes) : bytes_(bytes) {}

  std::uint64_t size() const override { return bytes_.size(); }

  void read_at(std::uint64_t offset, MutableByteSpan out) const override {
    DCP_CHECK(offset <= bytes_.size() && out.size() <= bytes_.size() - offset, kCorruptData, "bytes [", offset, ", ",
              offset, " + ", out.size(), ") are outside of ", bytes_.size());
    std::copy_n(bytes_.data() + offset, out.size(), out.data());
  }

 private:
  ByteSpan bytes_;
};

}  // namespace dcp
