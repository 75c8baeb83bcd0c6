#include "torch_dcp/examples/progress_link.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <utility>

namespace dcp::examples {
namespace {

constexpr char kGoOn = 'g';

/// Whether all of the message was sent.
bool send_message(int descriptor, const void* data, std::size_t bytes) {
  ssize_t sent = 0;
  do {
    sent = ::send(descriptor, data, bytes, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes);
}

/// Whether a message of this length came, and not the end of the link.
bool receive_message(int descriptor, void* data, std::size_t bytes) {
  ssize_t received = 0;
  do {
    received = ::recv(descriptor, data, bytes, 0);
  } while (received < 0 && errno == EINTR);
  return received == static_cast<ssize_t>(bytes);
}

}  // namespace

ProgressLink::~ProgressLink() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

ProgressLink::ProgressLink(ProgressLink&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

std::optional<ProgressLink> ProgressLink::inherited(const Variables& variables) {
  const std::optional<std::string> descriptor = variables(kLinkDescriptorVariable);
  if (!descriptor || descriptor->empty()) return std::nullopt;
  return ProgressLink(std::stoi(*descriptor));
}

void ProgressLink::report(const StepReport& report) {
  char answer = 0;
  if (!send_message(descriptor_, &report, sizeof report) || !receive_message(descriptor_, &answer, 1)) {
    throw std::runtime_error("the process that started this one is gone");
  }
}

std::optional<StepReport> ProgressLink::receive() {
  StepReport report;
  if (!receive_message(descriptor_, &report, sizeof report)) return std::nullopt;
  return report;
}

void ProgressLink::answer() { send_message(descriptor_, &kGoOn, 1); }

}  // namespace dcp::examples
