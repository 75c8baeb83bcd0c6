#pragma once

#include <signal.h>

namespace dcp {

/// Keeps SIGPIPE from this thread, and from threads that it starts, as long as it lives.
///
/// Gloo writes to its peers without asking for no signal: a peer that is gone would end this process, without a word,
/// unless the program ignores SIGPIPE. Where it is blocked the write fails, which Gloo tells.
class NoBrokenPipeSignal {
 public:
  NoBrokenPipeSignal();
  /// Drops a signal that came meanwhile.
  ~NoBrokenPipeSignal();
  NoBrokenPipeSignal(const NoBrokenPipeSignal&) = delete;
  NoBrokenPipeSignal& operator=(const NoBrokenPipeSignal&) = delete;

 private:
  sigset_t broken_pipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace dcp
