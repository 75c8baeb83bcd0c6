#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "torch_dcp/base/error.h"
#include "torch_dcp/memory/server_socket_internal.h"

namespace dcp {
namespace {

[[noreturn]] void throw_system_error(const char* action, const std::string& path) {
  const int error_number = errno;
  DCP_THROW(kIo, "cannot ", action, " '", path, "': ", std::generic_category().message(error_number));
}

const sockaddr* general(const sockaddr_un& address) { return reinterpret_cast<const sockaddr*>(&address); }

}  // namespace

ServerSocket::ServerSocket(const std::string& path) : path_(path), lock_path_(path + ".lock") {
  const sockaddr_un address = unix_address(path);
  take_lock();
  remove_dead_socket();
  Descriptor made = make_unix_socket();
  // The name has the mode of the socket, so that there is no moment at which others may connect.
  if (::fchmod(made.get(), S_IRUSR | S_IWUSR) != 0) throw_system_error("set the mode of", path);
  if (::bind(made.get(), general(address), sizeof(address)) != 0) throw_system_error("make the socket", path);
  socket_ = std::move(made);
  if (::listen(socket_.get(), 64) == 0) return;
  const int error_number = errno;
  ::unlink(path.c_str());
  errno = error_number;
  throw_system_error("listen at", path);
}

ServerSocket::~ServerSocket() {
  ::unlink(path_.c_str());
  ::unlink(lock_path_.c_str());
}

void ServerSocket::take_lock() {
  for (;;) {
    Descriptor made(::open(lock_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
    if (!made) throw_system_error("make", lock_path_);
    if (::flock(made.get(), LOCK_EX | LOCK_NB) != 0) {
      DCP_CHECK(errno != EWOULDBLOCK, kAlreadyExists, "a server lives at '", path_, "'");
      throw_system_error("lock", lock_path_);
    }
    // A server that ended meanwhile took the name away: then this is a lock that nobody else will find.
    struct stat locked = {};
    struct stat named = {};
    if (::fstat(made.get(), &locked) != 0) throw_system_error("look at", lock_path_);
    if (::stat(lock_path_.c_str(), &named) != 0 || named.st_ino != locked.st_ino || named.st_dev != locked.st_dev)
      continue;
    lock_ = std::move(made);
    return;
  }
}

void ServerSocket::remove_dead_socket() const {
  struct stat status = {};
  if (::lstat(path_.c_str(), &status) != 0) {
    if (errno == ENOENT) return;
    throw_system_error("look at", path_);
  }
  DCP_CHECK(S_ISSOCK(status.st_mode), kAlreadyExists, "'", path_, "' is there and no socket");
  // Somebody who knows nothing of the lock may listen there.
  const Descriptor probe = make_unix_socket();
  const sockaddr_un address = unix_address(path_);
  const bool is_dead = ::connect(probe.get(), general(address), sizeof(address)) != 0 && errno == ECONNREFUSED;
  DCP_CHECK(is_dead, kAlreadyExists, "somebody listens at '", path_, "'");
  if (::unlink(path_.c_str()) != 0) throw_system_error("remove", path_);
}

}  // namespace dcp
