#include "torch_dcp/comm/broken_pipe_internal.h"

#include <pthread.h>
#include <time.h>

#include <cerrno>

#include "torch_dcp/base/error.h"

namespace dcp {

NoBrokenPipeSignal::NoBrokenPipeSignal() {
  sigemptyset(&broken_pipe_);
  sigaddset(&broken_pipe_, SIGPIPE);
  sigset_t pending;
  sigemptyset(&pending);
  sigpending(&pending);
  was_pending_ = sigismember(&pending, SIGPIPE) == 1;
  const int error_number = ::pthread_sigmask(SIG_BLOCK, &broken_pipe_, &before_);
  DCP_CHECK(error_number == 0, kInternal, "cannot block SIGPIPE: error ", error_number);
}

NoBrokenPipeSignal::~NoBrokenPipeSignal() {
  if (sigismember(&before_, SIGPIPE) == 1) return;
  if (!was_pending_) {
    const timespec at_once{};
    while (::sigtimedwait(&broken_pipe_, nullptr, &at_once) == -1 && errno == EINTR) {
    }
  }
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace dcp
