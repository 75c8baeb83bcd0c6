#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace dcp::bench {

/// The real PyTorch in a process of its own, which does what it is told and says how long that took.
class PythonPeer {
 public:
  /// \param script  Path of peer.py.
  explicit PythonPeer(const std::string& script);
  PythonPeer(const PythonPeer&) = delete;
  PythonPeer& operator=(const PythonPeer&) = delete;
  ~PythonPeer();

  /// False where there is no python3 with torch; nothing else may be called then.
  bool is_there() const { return is_there_; }
  const std::string& version() const { return version_; }

  /// Sends a request and returns the answer.
  ///
  /// \throws std::runtime_error with Python's words if it failed.
  nlohmann::json ask(const nlohmann::json& request);
  double seconds(const nlohmann::json& request) { return ask(request).at("seconds"); }

 private:
  bool start(const std::string& script);
  std::string read_line();

  int to_child_ = -1;
  int from_child_ = -1;
  int process_ = -1;
  bool is_there_ = false;
  std::string version_;
  std::string pending_;
};

}  // namespace dcp::bench
