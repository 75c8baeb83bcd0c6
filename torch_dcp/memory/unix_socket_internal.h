#pragma once

#include <sys/un.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "torch_dcp/base/bytes.h"

namespace dcp {

/// A descriptor that is closed with this object.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// \throws dcp::Error kInvalidArgument if the path is empty or too long for a socket.
sockaddr_un unix_address(const std::string& path);

/// A socket that does not block. \throws dcp::Error kIo
Descriptor make_unix_socket();

/// Whether the process at the other end is of this user.
bool is_peer_of_user(int socket, unsigned user);

/// What `send_some` and `receive_some` did.
struct Transferred {
  std::size_t byte_count = 0;  ///< 0: it would have to wait, or the end
  bool has_ended = false;      ///< the other end is gone
};

/// Sends what can be sent at once, with the descriptors at its first byte. Raises no signal.
/// \throws dcp::Error kIo
Transferred send_some(int socket, ByteSpan bytes, const std::vector<int>& descriptors);
/// Takes what has come, and the descriptors that came with it. \throws dcp::Error kIo
Transferred receive_some(int socket, MutableByteSpan bytes, std::vector<Descriptor>& descriptors);

/// Waits until the socket can be read or written. \returns Whether it could before `until`.
bool wait_for_socket(int socket, bool for_reading, std::chrono::steady_clock::time_point until);

}  // namespace dcp
