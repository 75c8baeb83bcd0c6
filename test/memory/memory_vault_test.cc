#include "torch_dcp/memory/memory_vault.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <list>
#include <random>

#include "test/memory/running_server.h"
#include "test/support/expect_error.h"
#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

using test::expect_error;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kUnit = std::uint64_t{64} << 10;

Bytes random_bytes(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count + 8);
  for (std::size_t at = 0; at < count; at += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, 8);
  }
  bytes.resize(count);
  return bytes;
}

MemoryVaultOptions options_of(std::uint64_t budget_bytes) {
  MemoryVaultOptions options;
  options.job = "test";
  options.budget_bytes = budget_bytes;
  return options;
}

enum class Where { kInProcess, kInServer };

/// The same for a vault in this process and for a client of a server.
class VaultTest : public testing::TestWithParam<Where> {
 protected:
  std::shared_ptr<MemoryVault> vault_of(std::uint64_t budget_bytes) {
    if (GetParam() == Where::kInProcess) return make_memory_vault(options_of(budget_bytes));
    return servers_.emplace_back("test", budget_bytes).connect();
  }

 private:
  std::list<test::RunningServer> servers_;
};

INSTANTIATE_TEST_SUITE_P(Everywhere, VaultTest, testing::Values(Where::kInProcess, Where::kInServer),
                         [](const auto& info) { return info.param == Where::kInProcess ? "InProcess" : "InServer"; });

void put(MemoryVault& vault, std::uint64_t generation, const std::string& name, ByteSpan bytes,
         const std::string& note = {}) {
  const auto writer = vault.create(generation, name);
  writer->append(bytes);
  writer->seal(note);
}

Bytes contents(const RandomAccessFile& file) {
  Bytes bytes(file.size());
  file.read_at(0, bytes);
  return bytes;
}

TEST_P(VaultTest, GivesBackWhatWasPutIn) {
  const auto vault = vault_of(64 * kMiB);
  EXPECT_EQ(vault->job(), "test");
  EXPECT_NE(vault->id(), vault_of(kMiB)->id());
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kUnit - 1, kUnit, kUnit + 1, 4 * kMiB, 9 * kMiB + 5}) {
    const Bytes bytes = random_bytes(size, 1);
    put(*vault, 3, "a", bytes, "note");
    const auto file = vault->open(3, "a");
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(contents(*file), bytes) << size;
    if (size < 2) continue;
    // Across the borders of pieces.
    Bytes part(std::min<std::size_t>(size - 1, 5 * kMiB));
    file->read_at(1, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + 1)) << size;
  }
  expect_error(ErrorKind::kCorruptData, "'a'", [&] {
    Bytes too_much(2);
    vault->open(3, "a")->read_at(vault->open(3, "a")->size() - 1, too_much);
  });
}

TEST_P(VaultTest, ListsSealedFilesAlone) {
  const auto vault = vault_of(64 * kMiB);
  put(*vault, 7, "b", random_bytes(5, 1), "of b");
  put(*vault, 7, "a", random_bytes(6, 1), "of a");
  put(*vault, 2, "c", random_bytes(7, 1));
  const auto unsealed = vault->create(7, "d");
  unsealed->append(random_bytes(8, 1));
  EXPECT_EQ(vault->open(7, "d"), nullptr);
  EXPECT_EQ(vault->open(1, "a"), nullptr);
  const std::vector<VaultGeneration> listed = vault->list();
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].number, 2u);
  EXPECT_EQ(listed[1].number, 7u);
  ASSERT_EQ(listed[1].files.size(), 2u);
  EXPECT_EQ(listed[1].files[0].name, "a");
  EXPECT_EQ(listed[1].files[0].size, 6u);
  EXPECT_EQ(listed[1].files[0].note, "of a");
  unsealed->seal("");
  EXPECT_NE(vault->open(7, "d"), nullptr);
  expect_error(ErrorKind::kState, "'d' has been sealed", [&] { unsealed->append(random_bytes(1, 1)); });
  expect_error(ErrorKind::kState, "'d' has been sealed", [&] { unsealed->seal(""); });
}

TEST_P(VaultTest, RoomIsFilledInPlace) {
  const auto vault = vault_of(64 * kMiB);
  const Bytes bytes = random_bytes(6 * kMiB, 2);
  const auto writer = vault->create(1, "a");
  std::size_t at = 0;
  while (at < bytes.size()) {
    const MutableByteSpan room = writer->room(bytes.size() - at);
    ASSERT_GE(room.size(), 1u);
    ASSERT_LE(room.size(), bytes.size() - at);
    const std::size_t now = std::min<std::size_t>(room.size(), 1000003);
    std::memcpy(room.data(), bytes.data() + at, now);
    writer->advance(now);
    at += now;
  }
  EXPECT_EQ(writer->size(), bytes.size());
  expect_error(ErrorKind::kInvalidArgument, "'a'", [&] { writer->advance(writer->room(10).size() + 1); });
  // Pieces are the memory itself, and cover it.
  std::size_t covered = 0;
  while (covered < bytes.size()) {
    const MutableByteSpan piece = writer->piece(covered, bytes.size());
    ASSERT_TRUE(std::equal(piece.begin(), piece.end(), bytes.begin() + static_cast<std::ptrdiff_t>(covered)));
    covered += piece.size();
  }
  writer->piece(5 * kMiB, 1)[0] ^= 1;
  writer->seal("");
  Bytes changed = bytes;
  changed[5 * kMiB] ^= 1;
  EXPECT_EQ(contents(*vault->open(1, "a")), changed);
}

TEST_P(VaultTest, ReadersKeepWhatIsDroppedOrReplaced) {
  const auto vault = vault_of(64 * kMiB);
  const Bytes first = random_bytes(3 * kMiB, 1);
  const Bytes second = random_bytes(3 * kMiB, 2);
  put(*vault, 1, "a", first);
  const auto reader = vault->open(1, "a");
  put(*vault, 1, "a", second);
  EXPECT_EQ(contents(*reader), first);
  EXPECT_EQ(contents(*vault->open(1, "a")), second);
  vault->drop(1);
  EXPECT_EQ(vault->open(1, "a"), nullptr);
  EXPECT_TRUE(vault->list().empty());
  put(*vault, 2, "b", random_bytes(3 * kMiB, 3));
  EXPECT_EQ(contents(*reader), first) << "its memory was given to another file";
  EXPECT_EQ(vault->use().used_bytes, 6 * kMiB);
}

TEST_P(VaultTest, OneFileOfAGenerationIsDropped) {
  const auto vault = vault_of(kMiB);
  put(*vault, 1, "a", random_bytes(10, 1));
  put(*vault, 1, "b", random_bytes(10, 1));
  vault->drop(1, "a");
  vault->drop(1, "no such file");
  vault->drop(5, "a");
  vault->drop(5);
  EXPECT_EQ(vault->open(1, "a"), nullptr);
  EXPECT_NE(vault->open(1, "b"), nullptr);
  vault->drop(1, "b");
  EXPECT_TRUE(vault->list().empty());
  EXPECT_EQ(vault->use().used_bytes, 0u);
}

TEST_P(VaultTest, WritersOfADroppedGenerationCannotSeal) {
  const auto vault = vault_of(kMiB);
  const auto dropped = vault->create(1, "a");
  const auto other = vault->create(2, "a");
  dropped->append(random_bytes(10, 1));
  vault->drop(1);
  const auto later = vault->create(1, "b");
  expect_error(ErrorKind::kCancelled, "generation 1 was dropped while 'a'", [&] { dropped->seal(""); });
  other->seal("");
  later->seal("");
  ASSERT_EQ(vault->list().size(), 2u);
  EXPECT_EQ(vault->open(1, "a"), nullptr);
}

TEST_P(VaultTest, AWriterThatIsGivenUpLeavesNothing) {
  const auto vault = vault_of(64 * kMiB);
  vault->create(1, "a")->append(random_bytes(5 * kMiB, 1));
  EXPECT_TRUE(vault->list().empty());
  EXPECT_EQ(vault->use().used_bytes, 0u);
}

TEST_P(VaultTest, TheBudgetIsKeptToTheUnit) {
  constexpr std::uint64_t kBudget = 70 * kMiB;  // more than a block
  const auto vault = vault_of(kBudget + kUnit - 1);
  EXPECT_EQ(vault->use().budget_bytes, kBudget);
  put(*vault, 1, "all", random_bytes(kBudget, 1));
  EXPECT_EQ(vault->use().used_bytes, kBudget);
  const auto writer = vault->create(1, "one more");
  const auto append_one = [&] { writer->append(random_bytes(1, 1)); };
  expect_error(ErrorKind::kState, "memory budget: all " + std::to_string(kBudget) + " bytes are taken", append_one);
  expect_error(ErrorKind::kState, "'one more' of generation 1", append_one);
  vault->drop(1, "all");
  writer->append(random_bytes(kBudget - kUnit, 2));
  writer->append(random_bytes(kUnit, 3));
  writer->seal("");
  EXPECT_EQ(vault->use().used_bytes, kBudget);
  expect_error(ErrorKind::kInvalidArgument, "budget", [&] { vault_of(kUnit - 1); });
}

TEST_P(VaultTest, SmallFilesTakeLittle) {
  const auto vault = vault_of(16 * kMiB);
  for (int i = 0; i < 256; ++i) put(*vault, 1, std::to_string(i), random_bytes(100, 1));
  EXPECT_EQ(vault->use().used_bytes, 256 * kUnit);
  expect_error(ErrorKind::kState, "memory budget", [&] { put(*vault, 1, "x", random_bytes(1, 1)); });
  // Free stretches of a unit are as good as long ones.
  for (int i = 0; i < 256; i += 2) vault->drop(1, std::to_string(i));
  const Bytes large = random_bytes(8 * kMiB, 4);
  put(*vault, 2, "large", large);
  EXPECT_EQ(contents(*vault->open(2, "large")), large);
}

std::size_t descriptor_count() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

TEST_P(VaultTest, GenerationAfterGenerationTakesNoMore) {
  const auto vault = vault_of(512 * kMiB);
  const Bytes bytes = random_bytes(20 * kMiB + 3, 1);
  std::uint64_t total = 0;
  std::size_t descriptors = 0;
  for (std::uint64_t generation = 1; generation <= 200; ++generation) {
    put(*vault, generation, "a", bytes);
    put(*vault, generation, "b", random_bytes(50, 2));
    if (generation > 2) vault->drop(generation - 2);
    const VaultUse use = vault->use();
    if (generation == 4) {
      total = use.used_bytes + use.spare_bytes;
      descriptors = descriptor_count();
    } else if (generation > 4) {
      ASSERT_EQ(use.used_bytes + use.spare_bytes, total) << generation;
      ASSERT_EQ(descriptor_count(), descriptors) << generation;
    }
  }
}

TEST(LocalVaultTest, WithoutSparesMemoryGoesBackToTheSystem) {
  MemoryVaultOptions options = options_of(512 * kMiB);
  options.keep_spare = false;
  const auto vault = make_memory_vault(options);
  const std::size_t descriptors = descriptor_count();
  put(*vault, 1, "a", random_bytes(100 * kMiB, 1));
  EXPECT_GT(descriptor_count(), descriptors);
  vault->drop(1);
  EXPECT_EQ(vault->use().spare_bytes, 0u);
  EXPECT_EQ(descriptor_count(), descriptors);
}

TEST_P(VaultTest, ManyThreadsAtOnce) {
  const auto vault = vault_of(128 * kMiB);
  {
    std::vector<std::jthread> threads;
    for (unsigned thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (unsigned round = 0; round < 30; ++round) {
          const std::string name = std::to_string(thread);
          const Bytes bytes = random_bytes(300000 + thread * 70000, round);
          put(*vault, round, name, bytes, name);
          const auto file = vault->open(round, name);
          ASSERT_NE(file, nullptr);
          vault->drop(round, name);
          ASSERT_EQ(contents(*file), bytes);
          vault->list();
        }
      });
    }
  }
  EXPECT_TRUE(vault->list().empty());
  EXPECT_EQ(vault->use().used_bytes, 0u);
}

}  // namespace
}  // namespace dcp
