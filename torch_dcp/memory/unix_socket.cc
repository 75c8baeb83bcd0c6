#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "torch_dcp/base/error.h"
#include "torch_dcp/memory/memory_arena_internal.h"
#include "torch_dcp/memory/unix_socket_internal.h"

namespace dcp {
namespace {

constexpr std::size_t kMostDescriptors = MemoryArena::kMostBlocks;

[[noreturn]] void throw_system_error(const char* action) {
  const int error_number = errno;
  DCP_THROW(kIo, "cannot ", action, ": ", std::generic_category().message(error_number));
}

bool would_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }
bool is_gone() { return errno == EPIPE || errno == ECONNRESET; }

/// Room for the descriptors of one message, aligned as the system wants it.
struct ControlBuffer {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostDescriptors)> bytes{};
};

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  DCP_CHECK(!path.empty() && path.size() < sizeof(address.sun_path) && path.find('\0') == std::string::npos,
            kInvalidArgument, "a socket's path of ", path.size(), " characters (1 to ", sizeof(address.sun_path) - 1,
            " are possible): '", path, "'");
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Descriptor make_unix_socket() {
  Descriptor made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) throw_system_error("make a socket");
  return made;
}

bool is_peer_of_user(int socket, unsigned user) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return false;
  return credentials.uid == user;
}

Transferred send_some(int socket, ByteSpan bytes, const std::vector<int>& descriptors) {
  iovec part = {const_cast<std::uint8_t*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ControlBuffer control;
  if (!descriptors.empty()) {
    DCP_CHECK(descriptors.size() <= kMostDescriptors, kInternal, descriptors.size(), " descriptors in one message");
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  }
  const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  if (sent >= 0) return {static_cast<std::size_t>(sent), false};
  if (would_wait()) return {};
  if (is_gone()) return {0, true};
  throw_system_error("send to a socket");
}

Transferred receive_some(int socket, MutableByteSpan bytes, std::vector<Descriptor>& descriptors) {
  iovec part = {bytes.data(), bytes.size()};
  ControlBuffer control;
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  const ssize_t received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (received < 0) {
    if (would_wait()) return {};
    if (is_gone()) return {0, true};
    throw_system_error("receive from a socket");
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(fd);
    }
  }
  return {static_cast<std::size_t>(received), received == 0};
}

bool wait_for_socket(int socket, bool for_reading, std::chrono::steady_clock::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    if (left <= 0) return false;
    pollfd waited = {socket, static_cast<short>(for_reading ? POLLIN : POLLOUT), 0};
    const int ready = ::poll(&waited, 1, static_cast<int>(std::min<long long>(left, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw_system_error("wait for a socket");
  }
}

}  // namespace dcp
