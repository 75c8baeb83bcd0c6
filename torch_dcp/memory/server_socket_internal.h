#pragma once

#include <string>

#include "torch_dcp/memory/unix_socket_internal.h"

namespace dcp {

/// A socket with a name that listens, for one process at a time; the name goes with this object.
class ServerSocket {
 public:
  /// \throws dcp::Error kAlreadyExists if somebody listens there, or it is no socket; kInvalidArgument; kIo
  explicit ServerSocket(const std::string& path);
  ~ServerSocket();
  ServerSocket(const ServerSocket&) = delete;
  ServerSocket& operator=(const ServerSocket&) = delete;

  int get() const { return socket_.get(); }

 private:
  void take_lock();
  void remove_dead_socket() const;

  const std::string path_;
  const std::string lock_path_;
  Descriptor lock_;
  Descriptor socket_;
};

}  // namespace dcp
