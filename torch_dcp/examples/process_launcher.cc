#include "torch_dcp/examples/process_launcher.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <map>
#include <system_error>
#include <thread>

namespace dcp::examples {
namespace {

using Environment = std::map<std::string, std::string>;

constexpr std::chrono::milliseconds kPollInterval{20};

[[noreturn]] void fail(const std::string& what, int code) {
  throw std::system_error(code, std::generic_category(), what);
}

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

/// Binds a socket of the loopback address to a free port, which then is this job's and no other's.
int bind_loopback(int descriptor) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  if (descriptor < 0 || ::bind(descriptor, generic, length) != 0 || ::listen(descriptor, SOMAXCONN) != 0 ||
      ::getsockname(descriptor, generic, &length) != 0) {
    fail("cannot listen on the loopback address", errno);
  }
  return ::ntohs(address.sin_port);
}

Environment this_environment() {
  Environment result;
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) result[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return result;
}

Environment rank_environment(int rank, int ranks, int store_port) {
  Environment result = this_environment();
  result.erase("TORCHELASTIC_USE_AGENT_STORE");
  result["RANK"] = result["LOCAL_RANK"] = std::to_string(rank);
  result["WORLD_SIZE"] = result["LOCAL_WORLD_SIZE"] = std::to_string(ranks);
  result["MASTER_ADDR"] = "127.0.0.1";
  result["MASTER_PORT"] = std::to_string(store_port);
  // More threads than cores only cost time, and one thread adds in one order.
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}) result[name] = "1";
  // What a rank whose peer was killed has to say comes as its own error.
  result.emplace("TORCH_CPP_LOG_LEVEL", "ERROR");
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// Starts this program anew; it inherits the standard streams and `sockets`.
pid_t spawn(std::vector<std::string> arguments, const Environment& environment, const std::vector<int>& sockets) {
  arguments.insert(arguments.begin(), "train");
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  // Onto itself: the child's copy loses its close-on-exec flag.
  for (const int socket : sockets) ::posix_spawn_file_actions_adddup2(&actions, socket, socket);
  pid_t id = -1;
  const int error =
      ::posix_spawn(&id, "/proc/self/exe", &actions, nullptr, pointers(arguments).data(), pointers(variables).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail("cannot start a process", error);
  return id;
}

}  // namespace

ProcessLauncher::ProcessLauncher(int ranks, const std::vector<std::string>& arguments) : processes_(ranks) {
  ::signal(SIGCHLD, SIG_DFL);  // ignored, as some parents leave it, the exit codes would be lost
  const Socket store(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int port = bind_loopback(store.descriptor());
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) fail("cannot make a socket", errno);
  link_ = std::make_unique<ProgressLink>(ends[0]);
  const Socket rank_0_end(ends[1]);
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      start(rank, ranks, arguments, store.descriptor(), rank_0_end.descriptor(), port);
    }
  } catch (...) {
    kill_running();
    throw;
  }
}

ProcessLauncher::~ProcessLauncher() { kill_running(); }

void ProcessLauncher::start(int rank, int ranks, const std::vector<std::string>& arguments, int store_socket,
                            int link_socket, int store_port) {
  Environment environment = rank_environment(rank, ranks, store_port);
  std::vector<int> sockets;
  if (rank == 0) {
    environment[kStoreDescriptorVariable] = std::to_string(store_socket);
    environment[kLinkDescriptorVariable] = std::to_string(link_socket);
    sockets = {store_socket, link_socket};
  }
  processes_[rank].id = spawn(arguments, environment, sockets);
  processes_[rank].is_running = true;
}

std::vector<RankExit> ProcessLauncher::wait(const ReportHandler& on_report, std::chrono::milliseconds grace) {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> end_of_grace;
  while (any_running()) {
    handle_reports(on_report, kPollInterval);
    reap();
    if (!any_failed()) continue;
    if (!end_of_grace) end_of_grace = Clock::now() + grace;
    if (Clock::now() < *end_of_grace) continue;
    for (Process& process : processes_) process.exit.by_launcher |= process.is_running;
    kill_running();
  }
  std::vector<RankExit> exits;
  for (const Process& process : processes_) exits.push_back(process.exit);
  return exits;
}

void ProcessLauncher::kill_rank(int rank) {
  const Process& process = processes_.at(rank);
  if (process.is_running) ::kill(process.id, SIGKILL);
}

void ProcessLauncher::handle_reports(const ReportHandler& on_report, std::chrono::milliseconds patience) {
  if (link_ == nullptr) {
    std::this_thread::sleep_for(patience);
    return;
  }
  pollfd waiting{link_->descriptor(), POLLIN, 0};
  if (::poll(&waiting, 1, static_cast<int>(patience.count())) <= 0) return;
  const std::optional<StepReport> report = link_->receive();
  if (!report) {
    link_.reset();  // rank 0 has ended
    return;
  }
  on_report(*report);
  link_->answer();
}

void ProcessLauncher::reap() {
  for (Process& process : processes_) {
    int status = 0;
    if (!process.is_running || ::waitpid(process.id, &status, WNOHANG) != process.id) continue;
    process.is_running = false;
    process.exit.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    process.exit.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }
}

void ProcessLauncher::kill_running() {
  for (const Process& process : processes_) {
    if (process.is_running) ::kill(process.id, SIGKILL);
  }
  while (any_running()) {
    reap();
    if (any_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool ProcessLauncher::any_running() const {
  for (const Process& process : processes_) {
    if (process.is_running) return true;
  }
  return false;
}

bool ProcessLauncher::any_failed() const {
  for (const Process& process : processes_) {
    if (!process.is_running && !process.exit.is_clean()) return true;
  }
  return false;
}

}  // namespace dcp::examples
