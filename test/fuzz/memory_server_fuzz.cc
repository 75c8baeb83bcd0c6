// Fuzz target of the memory server: whatever a client says, with or without a hello before it, in frames or not, the
// server goes on, and takes no more than its budget.
//
// The first byte says how: 1 for a hello before it, 2 for frames, each of which begins with its length in one byte.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "test/fuzz/expected_error.h"
#include "test/memory/raw_client.h"
#include "test/memory/unique_socket.h"
#include "torch_dcp/memory/memory_client.h"
#include "torch_dcp/memory/vault_server.h"

namespace {

constexpr std::uint64_t kBudget = std::uint64_t{4} << 20;

/// A server on a thread, as long as the process lives, and a client that looks after it.
struct Served {
  Served()
      : server({dcp::test::unique_socket(), "fuzz", kBudget, 16, {}}),
        thread([this] { server.run(); }),
        watcher(dcp::open_memory_vault(server.id(), {"fuzz", std::chrono::seconds(20)})) {}
  ~Served() {
    watcher.reset();
    server.stop();
  }

  dcp::VaultServer server;
  std::jthread thread;
  std::shared_ptr<dcp::MemoryVault> watcher;
};

void say_frames(const dcp::test::RawClient& client, dcp::ByteSpan bytes) {
  while (!bytes.empty()) {
    const std::size_t length = std::min<std::size_t>(bytes[0], bytes.size() - 1);
    client.say_frame(bytes.subspan(1, length));
    bytes = bytes.subspan(1 + length);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Served served;
  if (size == 0 || size > 16384) return 0;
  const dcp::ByteSpan rest = dcp::ByteSpan(data, size).subspan(1);
  const std::string path = served.server.id().substr(6);
  {
    const dcp::test::RawClient client(path);
    if ((data[0] & 1) != 0) client.say_hello("fuzz");
    if ((data[0] & 2) != 0) {
      say_frames(client, rest);
    } else {
      client.say(rest);
    }
    client.say_no_more();
    client.hear_all();
  }
  for (const dcp::VaultGeneration& generation : served.watcher->list()) served.watcher->drop(generation.number);
  const dcp::VaultUse use = served.watcher->use();
  must(use.used_bytes == 0);
  must(use.spare_bytes <= kBudget);
  return 0;
}
