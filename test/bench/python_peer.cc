#include "test/bench/python_peer.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

extern char** environ;

namespace dcp::bench {

PythonPeer::PythonPeer(const std::string& script) {
  if (!start(script)) return;
  const std::string hello = read_line();
  if (hello.empty()) return;  // It ended at once: no torch, or no python3.
  version_ = nlohmann::json::parse(hello).at("torch");
  is_there_ = true;
}

bool PythonPeer::start(const std::string& script) {
  std::array<int, 2> requests{};
  std::array<int, 2> answers{};
  if (::pipe2(requests.data(), O_CLOEXEC) != 0 || ::pipe2(answers.data(), O_CLOEXEC) != 0) {
    throw std::runtime_error(std::string("no pipe: ") + std::strerror(errno));
  }
  ::signal(SIGPIPE, SIG_IGN);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, requests[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, answers[1], STDOUT_FILENO);
  std::string program = "python3";
  std::string path = script;
  char* arguments[] = {program.data(), path.data(), nullptr};
  const int failed = ::posix_spawnp(&process_, "python3", &actions, nullptr, arguments, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(requests[0]);
  ::close(answers[1]);
  to_child_ = requests[1];
  from_child_ = answers[0];
  if (failed != 0) process_ = -1;
  return failed == 0;
}

PythonPeer::~PythonPeer() {
  if (to_child_ >= 0) ::close(to_child_);  // It ends at the end of its input.
  if (from_child_ >= 0) ::close(from_child_);
  if (process_ > 0) ::waitpid(process_, nullptr, 0);
}

nlohmann::json PythonPeer::ask(const nlohmann::json& request) {
  const std::string line = request.dump() + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t count = ::write(to_child_, line.data() + done, line.size() - done);
    if (count < 0) throw std::runtime_error("the Python process has gone");
    done += static_cast<std::size_t>(count);
  }
  const std::string answer = read_line();
  if (answer.empty()) throw std::runtime_error("the Python process has gone");
  nlohmann::json result = nlohmann::json::parse(answer);
  if (result.contains("error")) throw std::runtime_error("Python: " + result["error"].get<std::string>());
  return result;
}

std::string PythonPeer::read_line() {
  for (;;) {
    const std::size_t end = pending_.find('\n');
    if (end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    std::array<char, 4096> buffer;
    const ssize_t count = ::read(from_child_, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return "";
    pending_.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace dcp::bench
