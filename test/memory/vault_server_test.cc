#include "torch_dcp/memory/vault_server.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <list>
#include <random>
#include <thread>

#include "test/memory/raw_client.h"
#include "test/memory/running_server.h"
#include "test/memory/unique_socket.h"
#include "test/support/expect_error.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/memory/memory_client.h"

namespace dcp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::expect_error;
using test::RawClient;
using test::RunningServer;
using test::unique_socket;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

VaultServerOptions options_at(const std::string& socket) {
  VaultServerOptions options;
  options.socket = socket;
  options.job = "test";
  options.budget_bytes = 64 * kMiB;
  return options;
}

std::size_t entries(const char* folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

void put(MemoryVault& vault, std::uint64_t generation, const std::string& name, std::size_t byte_count) {
  const auto writer = vault.create(generation, name);
  writer->append(Bytes(byte_count, 7));
  writer->seal("");
}

TEST(VaultServer, ItsSocketIsItsUsersAndGoesWithIt) {
  const std::string socket = unique_socket();
  {
    const VaultServer server(options_at(socket));
    EXPECT_EQ(server.id(), "mem://" + socket);
    struct stat status = {};
    ASSERT_EQ(::stat(socket.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode, static_cast<mode_t>(S_IFSOCK | 0600));
  }
  EXPECT_FALSE(std::filesystem::exists(socket));
  EXPECT_FALSE(std::filesystem::exists(socket + ".lock"));
}

TEST(VaultServer, OneLivesAtASocket) {
  const std::string socket = unique_socket();
  {
    const VaultServer server(options_at(socket));
    expect_error(ErrorKind::kAlreadyExists, "a server lives at '" + socket + "'",
                 [&] { VaultServer{options_at(socket)}; });
    EXPECT_TRUE(std::filesystem::exists(socket)) << "the second took it away";
  }
  // Somebody else's, who has no lock.
  const int other = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::copy(socket.begin(), socket.end(), address.sun_path);
  ASSERT_EQ(::bind(other, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(other, 1), 0);
  expect_error(ErrorKind::kAlreadyExists, "somebody listens", [&] { VaultServer{options_at(socket)}; });
  // Dead now, and its name is still there.
  ::close(other);
  ASSERT_TRUE(std::filesystem::exists(socket));
  const RunningServer server(options_at(socket));
  EXPECT_TRUE(server.connect()->list().empty());
}

TEST(VaultServer, NoOtherFileIsReplaced) {
  const std::string path = unique_socket();
  std::ofstream(path) << "precious";
  expect_error(ErrorKind::kAlreadyExists, "no socket", [&] { VaultServer{options_at(path)}; });
  EXPECT_EQ(std::filesystem::file_size(path), 8u);
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".lock");
  const std::string long_path = "/tmp/" + std::string(120, 'x');
  expect_error(ErrorKind::kInvalidArgument, long_path, [&] { VaultServer{options_at(long_path)}; });
  expect_error(ErrorKind::kIo, "no such folder", [&] { VaultServer{options_at(path + "/no such folder/x")}; });
}

TEST(VaultServer, ClientsOfOneServerSeeOneMemory) {
  const RunningServer first(options_at(unique_socket()));
  const RunningServer second(options_at(unique_socket()));
  const auto a = first.connect();
  const auto b = first.connect();
  EXPECT_EQ(a->id(), b->id());
  EXPECT_NE(a->id(), second.connect()->id());
  EXPECT_EQ(a->id().find(first.server().id() + "#"), 0u);
  put(*a, 4, "x", 5 * kMiB);
  const auto file = b->open(4, "x");
  ASSERT_NE(file, nullptr);
  Bytes bytes(file->size());
  file->read_at(0, bytes);
  EXPECT_EQ(bytes, Bytes(5 * kMiB, 7));
  b->drop(4);
  EXPECT_TRUE(a->list().empty());
}

TEST(VaultServer, WhatWasNotSealedEndsWithTheConnection) {
  const RunningServer server(options_at(unique_socket()));
  const auto other = server.connect();
  auto vault = server.connect();
  auto writer = vault->create(1, "half");
  writer->append(Bytes(3 * kMiB, 1));
  put(*vault, 1, "whole", 2 * kMiB);
  auto reader = vault->open(1, "whole");
  other->drop(1, "whole");
  EXPECT_EQ(other->use().used_bytes, 5 * kMiB);
  // Files that are open hold the connection.
  vault.reset();
  EXPECT_EQ(other->use().used_bytes, 5 * kMiB);
  reader.reset();
  EXPECT_EQ(other->use().used_bytes, 3 * kMiB);
  writer.reset();
  ASSERT_TRUE(server.has_clients(1));
  EXPECT_EQ(other->use().used_bytes, 0u);
  EXPECT_TRUE(other->list().empty());
}

TEST(VaultServer, AnotherJobIsRefusedByName) {
  const RunningServer server(options_at(unique_socket()));
  expect_error(ErrorKind::kState, "job 'test', not of job 'other'", [&] { server.connect("other"); });
  EXPECT_EQ(server.connect()->job(), "test");
}

TEST(VaultServer, AnotherUserIsRefused) {
  VaultServerOptions options = options_at(unique_socket());
  options.user = ::geteuid() + 1;
  const RunningServer server(options);
  expect_error(ErrorKind::kState, "serves its own user alone", [&] { server.connect(); });
  expect_error(ErrorKind::kState, server.socket(), [&] { server.connect(); });
}

TEST(VaultServer, ConnectionsAreBounded) {
  VaultServerOptions options = options_at(unique_socket());
  options.max_connections = 3;
  const RunningServer server(options);
  std::list<std::shared_ptr<MemoryVault>> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(server.connect());
  expect_error(ErrorKind::kState, "most clients, 3", [&] { server.connect(); });
  clients.pop_front();
  ASSERT_TRUE(server.has_clients(2));
  EXPECT_TRUE(server.connect()->list().empty());
  EXPECT_TRUE(clients.front()->list().empty());
}

TEST(VaultServer, OpenFilesNamesAndNotesAreBounded) {
  const RunningServer server(options_at(unique_socket()));
  const auto vault = server.connect();
  std::list<std::unique_ptr<VaultWriter>> writers;
  for (int i = 0; i < 4096; ++i) writers.push_back(vault->create(1, std::to_string(i)));
  expect_error(ErrorKind::kState, "more than 4096 files", [&] { vault->create(1, "x"); });
  writers.pop_back();
  vault->create(1, std::string(255, 'n'))->seal(std::string(65536, 'n'));
  expect_error(ErrorKind::kInvalidArgument, "name of 256", [&] { vault->create(1, std::string(256, 'n')); });
  expect_error(ErrorKind::kInvalidArgument, "name of 0", [&] { vault->create(1, ""); });
  const auto writer = vault->create(1, "x");
  expect_error(ErrorKind::kInvalidArgument, "note of 65537", [&] { writer->seal(std::string(65537, 'n')); });
  writer->seal("");
  const std::vector<VaultGeneration> listed = vault->list();
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].files.size(), 2u);
}

TEST(VaultServer, NotesInAllAreBoundedAndTheListStillTravels) {
  const RunningServer server(options_at(unique_socket()));
  const auto vault = server.connect();
  for (int i = 0; i < 128; ++i) vault->create(1, std::to_string(i))->seal(std::string(65536, 'n'));
  const auto writer = vault->create(2, "x");
  expect_error(ErrorKind::kState, "8388608 bytes", [&] { writer->seal("n"); });
  EXPECT_EQ(vault->list().at(0).files.size(), 128u);
  vault->drop(1, "0");
  writer->append(Bytes(10, 3));
  writer->seal("n");
  EXPECT_EQ(vault->open(2, "x")->size(), 10u);
}

TEST(VaultServer, NoServerIsSaidByName) {
  const std::string socket = unique_socket();
  expect_error(ErrorKind::kComm, socket, [&] { open_memory_vault("mem://" + socket); });
  expect_error(ErrorKind::kInvalidArgument, "'file:///x'", [] { open_memory_vault("file:///x"); });
  expect_error(ErrorKind::kInvalidArgument, "'mem://'", [] { open_memory_vault("mem://"); });
}

TEST(VaultServer, AServerThatDoesNotAnswerIsGivenUp) {
  const std::string socket = unique_socket();
  const VaultServer server(options_at(socket));  // which nobody runs
  const auto start = std::chrono::steady_clock::now();
  expect_error(ErrorKind::kDeadline, socket,
               [&] { open_memory_vault("mem://" + socket, {"test", milliseconds(200)}); });
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(2));
}

TEST(VaultServer, AServerThatEndedLeavesOpenFilesReadable) {
  std::shared_ptr<const RandomAccessFile> file;
  std::shared_ptr<MemoryVault> vault;
  std::unique_ptr<VaultWriter> writer;
  std::string socket;
  {
    const RunningServer server(options_at(unique_socket()));
    socket = server.socket();
    vault = server.connect();
    put(*vault, 1, "a", 5 * kMiB);
    file = vault->open(1, "a");
    writer = vault->create(1, "b");
    writer->append(Bytes(100, 1));
  }
  Bytes bytes(file->size());
  file->read_at(0, bytes);
  EXPECT_EQ(bytes, Bytes(5 * kMiB, 7));
  writer->append(Bytes(100, 1));  // fits into the memory that it has
  for (int i = 0; i < 2; ++i) {
    expect_error(ErrorKind::kComm, socket, [&] { vault->list(); });
    expect_error(ErrorKind::kComm, "'b' of generation 1", [&] { writer->seal(""); });
  }
}

TEST(VaultServer, ThreadsOfOneClientTakeTurns) {
  const RunningServer server(options_at(unique_socket()));
  const auto vault = server.connect();
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (int round = 0; round < 50; ++round) {
          const std::string name = std::to_string(thread);
          put(*vault, 1, name, 100000);
          const auto file = vault->open(1, name);
          ASSERT_NE(file, nullptr);
          ASSERT_EQ(file->size(), 100000u);
        }
      });
    }
  }
  EXPECT_EQ(vault->list().at(0).files.size(), 4u);
  vault->drop(1);
  EXPECT_EQ(vault->use().used_bytes, 0u);
}

TEST(VaultServer, GenerationsOfManyClientsTakeNoMore) {
  const RunningServer server(options_at(unique_socket()));
  const auto watcher = server.connect();
  std::size_t descriptors = 0;
  for (std::uint64_t generation = 1; generation <= 200; ++generation) {
    {
      const auto vault = server.connect();
      put(*vault, generation, "a", 3 * kMiB + 5);
      if (generation > 2) vault->drop(generation - 2);
    }
    ASSERT_TRUE(server.has_clients(1));
    if (generation == 4) descriptors = entries("/proc/self/fd");
    if (generation > 4) {
      ASSERT_EQ(entries("/proc/self/fd"), descriptors) << generation;
      ASSERT_EQ(entries("/proc/self/task"), 2u) << generation;
      ASSERT_LE(watcher->use().used_bytes, 7 * kMiB) << generation;
    }
  }
}

TEST(VaultServer, AFrameThatIsTooLongEndsTheConnection) {
  const RunningServer server(options_at(unique_socket()));
  const RawClient client(server.socket());
  client.say_hello("test");
  client.say(Bytes{255, 255, 255, 255, 1});
  const Bytes heard = client.hear_all();
  EXPECT_NE(as_text(heard).find("a request of 4294967295 bytes"), std::string_view::npos);
  EXPECT_TRUE(server.connect()->list().empty());
}

TEST(VaultServer, RequestsBeforeTheHelloAreRefused) {
  const RunningServer server(options_at(unique_socket()));
  const RawClient client(server.socket());
  client.say_frame(Bytes{9});
  EXPECT_NE(as_text(client.hear_all()).find("before the hello"), std::string_view::npos);
}

TEST(VaultServer, AnotherVersionIsRefused) {
  const RunningServer server(options_at(unique_socket()));
  const RawClient client(server.socket());
  ByteWriter hello;
  hello.u8(1);
  hello.u32(2);
  hello.text("test");
  const Bytes bytes = std::move(hello).take();
  client.say_frame(bytes);
  EXPECT_NE(as_text(client.hear_all()).find("version 2"), std::string_view::npos);
}

TEST(VaultServer, RandomBytesNeitherEndNorGrowIt) {
  const RunningServer server(options_at(unique_socket()));
  const auto vault = server.connect();
  put(*vault, 0, "kept", 1000);
  std::mt19937 random(20);
  std::size_t descriptors = 0;
  for (int round = 0; round < 1500; ++round) {
    {
      const RawClient client(server.socket());
      if (round % 8 != 0) client.say_hello("test");
      const int frames = static_cast<int>(random() % 12);
      for (int i = 0; i < frames; ++i) {
        // Mostly small numbers, so that some requests mean something.
        Bytes content(random() % 40);
        for (std::uint8_t& byte : content)
          byte = static_cast<std::uint8_t>(random() % 4 == 0 ? random() : random() % 4);
        if (!content.empty()) content[0] = static_cast<std::uint8_t>(random() % 13);
        if (round % 5 == 0) {
          client.say(content);
        } else {
          client.say_frame(content);
        }
      }
      client.say_no_more();
      client.hear_all();
    }
    ASSERT_TRUE(server.has_clients(1)) << round;
    if (round == 10) descriptors = entries("/proc/self/fd");
    if (round > 10) {
      ASSERT_EQ(entries("/proc/self/fd"), descriptors) << round;
    }
  }
  for (const VaultGeneration& generation : vault->list()) vault->drop(generation.number);
  EXPECT_EQ(vault->use().used_bytes, 0u);
  EXPECT_EQ(vault->use().spare_bytes, 64 * kMiB);
}

}  // namespace
}  // namespace dcp
