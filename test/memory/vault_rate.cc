// Prints how fast a file of 1 GiB is put into a vault whose memory is there already, against memcpy into memory that is
// there: MB/s, the best of five rounds, and the time of a small request to the server.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include "test/memory/unique_socket.h"
#include "torch_dcp/memory/memory_client.h"
#include "torch_dcp/memory/vault_server.h"

namespace {

constexpr std::size_t kBytes = std::size_t{1} << 30;
constexpr int kRounds = 5;

double best_seconds(const std::function<void()>& call) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    call();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

void print_rate(const char* what, double seconds) { std::printf("%-44s %8.0f MB/s\n", what, kBytes / seconds / 1e6); }

double write_seconds(dcp::MemoryVault& vault, const dcp::Bytes& bytes, std::size_t step) {
  std::uint64_t generation = 0;
  const auto write = [&] {
    const auto writer = vault.create(++generation, "a");
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      writer->append(dcp::ByteSpan(bytes).subspan(at, std::min(step, bytes.size() - at)));
    }
    writer->seal("");
    vault.drop(generation);
  };
  write();
  return best_seconds(write);
}

}  // namespace

int main() {
  const dcp::Bytes source(kBytes, 3);
  {
    dcp::Bytes into(kBytes, 1);
    print_rate("memcpy", best_seconds([&] { std::memcpy(into.data(), source.data(), kBytes); }));
  }
  {
    dcp::MemoryVaultOptions options;
    options.budget_bytes = kBytes;
    const auto vault = dcp::make_memory_vault(options);
    print_rate("vault in this process", write_seconds(*vault, source, kBytes));
    print_rate("the same, appended in parts of 64 KiB", write_seconds(*vault, source, 65536));
  }
  dcp::VaultServerOptions options;
  options.socket = dcp::test::unique_socket();
  options.budget_bytes = kBytes;
  dcp::VaultServer server(options);
  const std::jthread serving([&] { server.run(); });
  {
    const auto vault = dcp::open_memory_vault(server.id());
    print_rate("vault in a server", write_seconds(*vault, source, kBytes));
    print_rate("the same, appended in parts of 64 KiB", write_seconds(*vault, source, 65536));
    constexpr int kCalls = 10000;
    const double seconds = best_seconds([&] {
      for (int i = 0; i < kCalls; ++i) vault->use();
    });
    std::printf("%-44s %8.1f us\n", "a small request to the server", seconds / kCalls * 1e6);
  }
  server.stop();
}
