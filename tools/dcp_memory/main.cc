// dcp_memory: holds the newest checkpoints of a job's processes on this machine, which it outlives, in memory.
//
// Ends, and takes its memory along, at SIGTERM or SIGINT. Exit codes: 0 ended so, 1 could not serve, 2 wrong use.

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <exception>
#include <iostream>

#include "torch_dcp/base/error.h"
#include "torch_dcp/memory/vault_server.h"

namespace {

constexpr int kCannotServe = 1;
constexpr int kWrongUse = 2;

/// A descriptor that can be read when the process is asked to end. \returns -1 if the system has none.
int end_descriptor() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (sigprocmask(SIG_BLOCK, &signals, nullptr) != 0) return -1;
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Holds checkpoints of the training processes on this machine in memory, and outlives them."};
  dcp::VaultServerOptions options;
  app.add_option("--socket", options.socket, "Path of the Unix socket; clients know it as mem://PATH")->required();
  app.add_option("--job", options.job, "The job that is served, and no other")->capture_default_str();
  app.add_option("--budget", options.budget_bytes,
                 "Most bytes of all files, such as 8GiB; without it half of the machine's memory")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--connections", options.max_connections, "Most clients at a time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUse;
  }

  try {
    const int end = end_descriptor();
    DCP_CHECK(end >= 0, kIo, "signals cannot be waited for");
    dcp::VaultServer server(options);
    // Who started it can wait for this line: from now on clients can connect.
    std::cout << "dcp_memory: job '" << options.job << "' at " << server.id() << ", " << server.use().budget_bytes
              << " bytes" << std::endl;
    server.run(end);
  } catch (const c10::Error& error) {
    std::cerr << "dcp_memory: " << error.what_without_backtrace() << '\n';
    return kCannotServe;
  } catch (const std::exception& error) {
    std::cerr << "dcp_memory: " << error.what() << '\n';
    return kCannotServe;
  }
  return 0;
}
