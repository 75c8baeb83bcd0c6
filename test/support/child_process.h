#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>

namespace dcp::test {

/// Carries lines between a test and its children. The ends stay open as long as the process lives.
class Pipe {
 public:
  Pipe() {
    if (::pipe(ends_) != 0) std::abort();
  }
  void write(const std::string& text) const {
    if (::write(ends_[1], text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
  }
  /// Up to a newline; what came, and a remark, if that takes longer than `limit`.
  std::string read_line(std::chrono::seconds limit) const {
    const auto until = std::chrono::steady_clock::now() + limit;
    std::string line;
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      pollfd waited{ends_[0], POLLIN, 0};
      if (left.count() <= 0 || ::poll(&waited, 1, static_cast<int>(left.count())) != 1) return line + " (then nothing)";
      char c = 0;
      if (::read(ends_[0], &c, 1) != 1 || c == '\n') return line;
      line += c;
    }
  }

 private:
  int ends_[2] = {-1, -1};
};

/// A process that runs `body`, and that dies with this object or after `limit`. To be made before this process has any
/// thread of its own.
class Child {
 public:
  Child(const std::function<void()>& body, std::chrono::seconds limit) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::alarm(static_cast<unsigned>(limit.count()));
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "a child threw: %s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  ~Child() {
    if (waited_) return;
    signal(SIGKILL);
    wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void signal(int number) const { ::kill(pid_, number); }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    waited_ = true;
    return status;
  }

 private:
  pid_t pid_;
  bool waited_ = false;
};

}  // namespace dcp::test
