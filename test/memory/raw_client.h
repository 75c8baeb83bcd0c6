#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "torch_dcp/base/byte_codec.h"

namespace dcp::test {

/// A connection that says anything to a server of memory, and hears what it answers.
class RawClient {
 public:
  explicit RawClient(const std::string& socket_path) : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::copy(socket_path.begin(), socket_path.end(), address.sun_path);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) std::abort();
  }
  ~RawClient() { ::close(socket_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  /// What the server does not take any more is lost.
  void say(ByteSpan bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
  }
  void say_frame(ByteSpan content) const {
    ByteWriter frame;
    frame.u32(static_cast<std::uint32_t>(content.size()));
    frame.raw(content);
    const Bytes bytes = std::move(frame).take();
    say(bytes);
  }
  void say_hello(const std::string& job) const {
    ByteWriter hello;
    hello.u8(1);
    hello.u32(1);
    hello.text(job);
    const Bytes bytes = std::move(hello).take();
    say_frame(bytes);
  }
  void say_no_more() const { ::shutdown(socket_, SHUT_WR); }
  /// All that comes until the server ends the connection.
  Bytes hear_all() const {
    Bytes heard;
    std::uint8_t part[4096];
    for (;;) {
      const ssize_t count = ::recv(socket_, part, sizeof(part), 0);
      if (count <= 0) return heard;
      heard.insert(heard.end(), part, part + count);
    }
  }

 private:
  int socket_;
};

}  // namespace dcp::test
