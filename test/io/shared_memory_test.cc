#include "torch_dcp/io/shared_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "test/support/expect_error.h"

namespace dcp {
namespace {

using test::expect_error;

/// Mappings of shared memory that this process has.
std::size_t mapping_count() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:torch_dcp") != std::string::npos ? 1 : 0;
  return count;
}

std::size_t descriptor_count() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

TEST(SharedMemory, BeginsAsZerosAndIsFreedWithItsObject) {
  const std::size_t descriptors = descriptor_count();
  {
    const SharedMemory memory(100'000);
    EXPECT_EQ(memory.size(), 100'000u);
    EXPECT_TRUE(std::all_of(memory.data(), memory.data() + memory.size(), [](std::uint8_t b) { return b == 0; }));
    memory.data()[99'999] = 7;
    EXPECT_EQ(mapping_count(), 1u);
    EXPECT_EQ(descriptor_count(), descriptors + 1);
  }
  EXPECT_EQ(mapping_count(), 0u);
  EXPECT_EQ(descriptor_count(), descriptors);
}

TEST(SharedMemory, AForkedProcessWritesWhatThisOneReads) {
  const SharedMemory memory(4096);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    memory.data()[5] = 42;
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(memory.data()[5], 42);
}

TEST(SharedMemory, OpensTheBlockOfADescriptor) {
  SharedMemory first(4096);
  const SharedMemory second = SharedMemory::open(first.fd(), 4096);
  EXPECT_NE(first.data(), second.data());
  first.data()[0] = 9;
  EXPECT_EQ(second.data()[0], 9);
  first = SharedMemory(1);
  EXPECT_EQ(second.data()[0], 9) << "its own descriptor and mapping live on";
}

TEST(SharedMemory, MovesWithoutMovingItsBytes) {
  SharedMemory first(10);
  std::uint8_t* const data = first.data();
  SharedMemory second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.size(), 10u);
  first = std::move(second);
  EXPECT_EQ(first.data(), data);
  EXPECT_EQ(mapping_count(), 1u);
}

TEST(SharedMemory, RefusesWhatCannotBeAndLeaksNothing) {
  const std::size_t descriptors = descriptor_count();
  expect_error(ErrorKind::kInvalidArgument, "0 bytes", [] { SharedMemory memory(0); });
  expect_error(ErrorKind::kInvalidArgument, "bytes", [] { SharedMemory memory(SIZE_MAX); });
  expect_error(ErrorKind::kIo, "shared memory", [] { SharedMemory memory(std::size_t{1} << 62); });
  expect_error(ErrorKind::kIo, "cannot open 8 bytes of shared memory", [] { SharedMemory::open(-1, 8); });
  const SharedMemory memory(10);
  expect_error(ErrorKind::kInvalidArgument, "a block of 10 bytes", [&] { SharedMemory::open(memory.fd(), 11); });
  EXPECT_EQ(descriptor_count(), descriptors + 1);
  EXPECT_EQ(mapping_count(), 1u);
}

}  // namespace
}  // namespace dcp
