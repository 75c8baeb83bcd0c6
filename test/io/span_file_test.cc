#include "torch_dcp/io/span_file.h"

#include <gtest/gtest.h>

#include "test/support/expect_error.h"

namespace dcp {
namespace {

using test::expect_error;

TEST(SpanFileTest, ReadsWithinItsBytesOnly) {
  const SpanFile file(as_bytes("abcdef"));
  EXPECT_EQ(file.size(), 6u);
  Bytes out(3);
  file.read_at(2, out);
  EXPECT_EQ(as_text(out), "cde");
  file.read_at(6, {});
  for (const std::uint64_t offset : {std::uint64_t{4}, std::uint64_t{7}, ~std::uint64_t{0}}) {
    expect_error(ErrorKind::kCorruptData, std::to_string(offset), [&] { file.read_at(offset, out); });
  }
}

}  // namespace
}  // namespace dcp
