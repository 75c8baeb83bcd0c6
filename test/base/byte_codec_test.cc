#include "torch_dcp/base/byte_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

TEST(ByteCodecTest, ReadsWhatWasWritten) {
  ByteWriter writer;
  writer.u8(200);
  writer.boolean(true);
  writer.u32(0xdeadbeef);
  writer.i64(std::numeric_limits<std::int64_t>::min());
  writer.f64(-0.0);
  writer.text(std::string("a\0b", 3));
  writer.bytes({});
  const Bytes bytes = std::move(writer).take();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.u8(), 200);
  EXPECT_TRUE(reader.boolean());
  EXPECT_EQ(reader.u32(), 0xdeadbeef);
  EXPECT_EQ(reader.i64(), std::numeric_limits<std::int64_t>::min());
  EXPECT_TRUE(std::signbit(reader.f64()));
  EXPECT_EQ(reader.text(), std::string("a\0b", 3));
  EXPECT_TRUE(reader.bytes().empty());
  EXPECT_NO_THROW(reader.expect_end());
}

TEST(ByteCodecTest, EveryCutIsCorruptData) {
  ByteWriter writer;
  writer.u32(1);
  writer.text("four");
  const Bytes bytes = std::move(writer).take();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    ByteReader reader(ByteSpan(bytes).first(length));
    EXPECT_THROW(
        {
          reader.u32();
          reader.text();
        },
        Error)
        << length;
  }
}

TEST(ByteCodecTest, RefusesCountsBeyondTheBytesLeft) {
  ByteWriter writer;
  writer.u64(1ull << 60);
  writer.u8(0);
  const Bytes bytes = std::move(writer).take();
  EXPECT_THROW(ByteReader(bytes).count(), Error);
  EXPECT_THROW(ByteReader(bytes).bytes(), Error);
}

}  // namespace
}  // namespace dcp
