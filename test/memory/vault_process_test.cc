// Clients and servers as processes, which are killed and stopped. Children are forked before this process has threads.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "test/memory/unique_socket.h"
#include "test/support/child_process.h"
#include "test/support/expect_error.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/memory/memory_client.h"
#include "torch_dcp/memory/vault_server.h"

namespace dcp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Child;
using test::expect_error;
using test::Pipe;
using test::unique_socket;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr seconds kLimit{60};

std::function<void()> serving(const std::string& socket, const Pipe& ready) {
  return [=, &ready] {
    VaultServer server({socket, "test", 256 * kMiB, 8, {}});
    ready.write("ready\n");
    server.run();
  };
}

std::shared_ptr<MemoryVault> connect_to(const std::string& socket, milliseconds deadline = seconds(20)) {
  return open_memory_vault("mem://" + socket, {"test", deadline});
}

void put(MemoryVault& vault, const std::string& name, std::size_t byte_count, std::uint8_t fill) {
  const auto writer = vault.create(1, name);
  writer->append(Bytes(byte_count, fill));
  writer->seal("");
}

Bytes contents(const RandomAccessFile& file) {
  Bytes bytes(file.size());
  file.read_at(0, bytes);
  return bytes;
}

TEST(VaultProcesses, AClientThatIsKilledInAWriteLeavesNothingHalf) {
  const std::string socket = unique_socket();
  const Pipe ready;
  const Child server(serving(socket, ready), kLimit);
  ASSERT_EQ(ready.read_line(kLimit), "ready");
  const auto vault = connect_to(socket);
  for (int round = 0; round < 5; ++round) {
    const Pipe writing;
    Child client(
        [&] {
          const auto mine = connect_to(socket);
          put(*mine, "whole", 3 * kMiB, static_cast<std::uint8_t>(round));
          const auto writer = mine->create(1, "half");
          writer->append(Bytes(20 * kMiB, 1));
          writing.write("writing\n");
          for (;;) writer->piece(0, kMiB)[0] ^= 1;
        },
        kLimit);
    ASSERT_EQ(writing.read_line(kLimit), "writing");
    ASSERT_EQ(vault->use().used_bytes, 23 * kMiB);
    client.signal(SIGKILL);
    client.wait();
    VaultUse use = vault->use();
    for (int i = 0; i < 1000 && use.used_bytes != 3 * kMiB; ++i) {
      std::this_thread::sleep_for(milliseconds(5));
      use = vault->use();
    }
    ASSERT_EQ(use.used_bytes, 3 * kMiB);
    ASSERT_EQ(use.spare_bytes, 61 * kMiB);
    ASSERT_EQ(vault->open(1, "half"), nullptr);
    ASSERT_EQ(contents(*vault->open(1, "whole")), Bytes(3 * kMiB, static_cast<std::uint8_t>(round)));
  }
}

TEST(VaultProcesses, AServerThatIsKilledTakesNoClientAlong) {
  const std::string socket = unique_socket();
  const Pipe ready;
  Child server(serving(socket, ready), kLimit);
  ASSERT_EQ(ready.read_line(kLimit), "ready");
  const auto vault = connect_to(socket);
  put(*vault, "a", 70 * kMiB, 5);
  const auto file = vault->open(1, "a");
  const auto writer = vault->create(1, "b");
  const MutableByteSpan room = writer->room(4 * kMiB);
  server.signal(SIGKILL);
  server.wait();
  std::fill(room.begin(), room.end(), std::uint8_t{1});
  EXPECT_EQ(contents(*file), Bytes(70 * kMiB, 5));
  for (int i = 0; i < 2; ++i) {
    expect_error(ErrorKind::kComm, socket, [&] { vault->list(); });
    expect_error(ErrorKind::kComm, socket, [&] { vault->create(1, "c"); });
  }
  writer->advance(4 * kMiB);
  expect_error(ErrorKind::kComm, "'b'", [&] { writer->append(Bytes(70 * kMiB, 1)); });
  expect_error(ErrorKind::kComm, "'b'", [&] { writer->seal(""); });
  // Its socket is still there, and replaced.
  ASSERT_TRUE(std::filesystem::exists(socket));
  expect_error(ErrorKind::kComm, socket, [&] { connect_to(socket); });
  const Child next(serving(socket, ready), kLimit);
  ASSERT_EQ(ready.read_line(kLimit), "ready");
  const auto again = connect_to(socket);
  EXPECT_TRUE(again->list().empty());
  EXPECT_NE(again->id(), vault->id());
  expect_error(ErrorKind::kComm, socket, [&] { vault->list(); });
  EXPECT_EQ(contents(*file), Bytes(70 * kMiB, 5));
}

TEST(VaultProcesses, AServerThatIsStoppedIsGivenUpInTime) {
  const std::string socket = unique_socket();
  const Pipe ready;
  const Child server(serving(socket, ready), kLimit);
  ASSERT_EQ(ready.read_line(kLimit), "ready");
  const auto vault = connect_to(socket, milliseconds(300));
  put(*vault, "a", kMiB, 5);
  server.signal(SIGSTOP);
  const auto start = std::chrono::steady_clock::now();
  expect_error(ErrorKind::kDeadline, "within 300 ms", [&] { vault->list(); });
  expect_error(ErrorKind::kComm, "broken", [&] { vault->list(); });
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(3));
  server.signal(SIGCONT);
  expect_error(ErrorKind::kComm, "broken", [&] { vault->list(); });
  EXPECT_EQ(contents(*connect_to(socket)->open(1, "a")), Bytes(kMiB, 5));
}

/// The program itself, whose path the build gives.
TEST(VaultProcesses, TheProgramServesAndEndsCleanly) {
  const char* const program = std::getenv("DCP_MEMORY");
  ASSERT_NE(program, nullptr) << "DCP_MEMORY is the path of the program dcp_memory";
  const std::string socket = unique_socket();
  const auto run = [&](const std::string& budget) {
    return [=] {
      ::execl(program, program, "--socket", socket.c_str(), "--job", "test", "--budget", budget.c_str(), nullptr);
      std::abort();
    };
  };
  Child server(run("64MiB"), kLimit);
  std::shared_ptr<MemoryVault> vault;
  for (int i = 0; i < 1000 && vault == nullptr; ++i) {
    try {
      vault = connect_to(socket);
    } catch (const Error&) {
      std::this_thread::sleep_for(milliseconds(10));  // It has not begun yet.
    }
  }
  ASSERT_NE(vault, nullptr);
  put(*vault, "a", 10 * kMiB, 3);
  EXPECT_EQ(vault->use().budget_bytes, 64 * kMiB);
  Child second(run("64MiB"), kLimit);
  const int refused = second.wait();
  EXPECT_TRUE(WIFEXITED(refused) && WEXITSTATUS(refused) == 1) << refused;
  Child wrong(run("64 bananas"), kLimit);
  const int misused = wrong.wait();
  EXPECT_TRUE(WIFEXITED(misused) && WEXITSTATUS(misused) == 2) << misused;
  EXPECT_EQ(contents(*vault->open(1, "a")), Bytes(10 * kMiB, 3));
  server.signal(SIGTERM);
  const int ended = server.wait();
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0) << ended;
  EXPECT_FALSE(std::filesystem::exists(socket));
  EXPECT_FALSE(std::filesystem::exists(socket + ".lock"));
}

}  // namespace
}  // namespace dcp
