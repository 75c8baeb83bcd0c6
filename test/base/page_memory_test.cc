#include "torch_dcp/base/page_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace dcp {
namespace {

TEST(PageMemory, TakesEverySizeAndAlignsWhatHasLargePages) {
  for (const std::size_t byte_count : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, kLargePageBytes - 1,
                                       kLargePageBytes, kLargePageBytes + 1, 3 * kLargePageBytes}) {
    const PageMemory memory = make_page_memory(byte_count);
    ASSERT_TRUE(memory) << byte_count;
    std::memset(memory.get(), 0xab, byte_count);
    const bool has_large_pages = byte_count != 0 && byte_count % kLargePageBytes == 0;
    EXPECT_EQ(memory.get_deleter().has_large_pages, has_large_pages) << byte_count;
    if (has_large_pages) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % kLargePageBytes, 0u) << byte_count;
    }
  }
}

TEST(PageMemory, MovesLikeAnyOtherOwner) {
  PageMemory memory = make_page_memory(kLargePageBytes);
  std::byte* const address = memory.get();
  const PageMemory moved = std::move(memory);
  EXPECT_EQ(moved.get(), address);
  EXPECT_FALSE(memory);
}

}  // namespace
}  // namespace dcp
