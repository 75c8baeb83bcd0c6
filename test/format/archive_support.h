#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/format/zip_internal.h"
#include "torch_dcp/io/span_file.h"

namespace dcp::test {

inline Bytes read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  Bytes bytes{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_TRUE(stream.is_open() && !stream.bad()) << path;
  return bytes;
}

inline Bytes concat(std::initializer_list<ByteSpan> parts) {
  Bytes all;
  for (ByteSpan part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

inline Bytes make_item(c10::ScalarType dtype, c10::IntArrayRef sizes, ByteSpan elements) {
  const TensorItemFrame frame = begin_tensor_item(dtype, sizes);
  EXPECT_EQ(frame.data_bytes, static_cast<std::int64_t>(elements.size()));
  return concat({frame.head, elements, finish_tensor_item(frame, crc32_of(elements))});
}

/// A float32 item of [2, 3], 1577 bytes.
inline Bytes small_item() {
  Bytes elements(24);
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<std::uint8_t>(17 * i + 1);
  return make_item(c10::ScalarType::Float, {2, 3}, elements);
}

/// An archive of torch.save's form with this pickle and this storage.
inline Bytes make_archive(ByteSpan pickle, ByteSpan storage) {
  zip::Writer writer;
  writer.add("data.pkl", pickle);
  writer.add_format_members();
  writer.add("data/0", storage);
  writer.add_closing_members();
  return writer.finish();
}

inline TensorItem open_item(ByteSpan item) {
  return open_tensor_item(SpanFile(item), 0, static_cast<std::int64_t>(item.size()));
}

/// Counts what is read of another file.
class CountingFile : public RandomAccessFile {
 public:
  explicit CountingFile(const RandomAccessFile& base) : base_(base) {}

  std::uint64_t size() const override { return base_.size(); }
  void read_at(std::uint64_t offset, MutableByteSpan out) const override {
    ++reads_;
    bytes_ += out.size();
    base_.read_at(offset, out);
  }

  std::size_t reads() const { return reads_; }
  std::size_t bytes() const { return bytes_; }

 private:
  const RandomAccessFile& base_;
  mutable std::atomic<std::size_t> reads_ = 0;
  mutable std::atomic<std::size_t> bytes_ = 0;
};

}  // namespace dcp::test
