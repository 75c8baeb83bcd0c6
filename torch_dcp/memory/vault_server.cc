#include "torch_dcp/memory/vault_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <list>
#include <system_error>
#include <utility>
#include <vector>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/memory/server_socket_internal.h"
#include "torch_dcp/memory/unix_socket_internal.h"
#include "torch_dcp/memory/vault_session_internal.h"

namespace dcp {
namespace {

constexpr std::size_t kLengthBytes = 4;

/// One client: bytes come, an answer goes. Takes no new request before the answer is gone, so that a client that does
/// not read cannot make answers pile up.
class Connection {
 public:
  Connection(Descriptor socket, std::unique_ptr<VaultSession> session, VaultAnswer first)
      : socket_(std::move(socket)), session_(std::move(session)), answer_(std::move(first)) {}

  int socket() const { return socket_.get(); }
  bool is_answering() const { return !answer_.bytes.empty(); }

  /// Does what can be done at once. \returns Whether the connection goes on.
  bool step() {
    if (!is_answering() && !receive()) return false;
    return !is_answering() || send();
  }

 private:
  bool send() {
    const ByteSpan rest = ByteSpan(answer_.bytes).subspan(sent_);
    const Transferred sent = send_some(socket(), rest, sent_ == 0 ? answer_.descriptors : std::vector<int>());
    sent_ += sent.byte_count;
    if (sent.has_ended) return false;
    if (sent_ < answer_.bytes.size()) return true;
    sent_ = 0;
    return !std::exchange(answer_, {}).is_last;
  }

  bool receive() {
    // Descriptors that a client sends are closed at once.
    std::vector<Descriptor> unwanted;
    const Transferred came =
        receive_some(socket(), MutableByteSpan(request_).subspan(received_, wanted() - received_), unwanted);
    received_ += came.byte_count;
    if (came.has_ended) return false;
    if (received_ < wanted() || came.byte_count == 0) return true;
    if (request_.size() == kLengthBytes) {
      const std::uint32_t length = ByteReader(request_).u32();
      if (length > vault_protocol::kRequestBytes) {
        answer_ = VaultSession::refusal(ErrorKind::kCorruptData, c10::str("a request of ", length, " bytes"));
        return true;
      }
      request_.resize(kLengthBytes + length);
      if (length > 0) return true;
    }
    answer_ = session_->answer(ByteSpan(request_).subspan(kLengthBytes));
    request_.assign(kLengthBytes, 0);
    received_ = 0;
    return true;
  }

  std::size_t wanted() const { return request_.size(); }

  Descriptor socket_;  // closed last: when a client sees the end its files are gone
  std::unique_ptr<VaultSession> session_;
  Bytes request_ = Bytes(kLengthBytes);
  std::size_t received_ = 0;
  VaultAnswer answer_;
  std::size_t sent_ = 0;
};

}  // namespace

class VaultServer::Impl {
 public:
  explicit Impl(VaultServerOptions options)
      : options_(std::move(options)),
        files_(std::make_shared<VaultFiles>(MemoryVaultOptions{options_.job, options_.budget_bytes, true})),
        vault_id_(c10::str("mem://", options_.socket, "#", random_vault_id())),
        id_("mem://" + options_.socket),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        socket_(options_.socket) {
    DCP_CHECK(wake_, kIo, "no descriptor is left: ", std::generic_category().message(errno));
  }

  void run(int end_descriptor) {
    for (;;) {
      wait(end_descriptor);
      if (waited_[0].revents != 0 || waited_[1].revents != 0) break;
      step_connections();
      if (waited_[2].revents != 0) accept_one();
      connection_count_ = connections_.size();
    }
    connections_.clear();
    connection_count_ = 0;
  }

  void stop() noexcept {
    const std::uint64_t one = 1;
    // Fails only if it has been told very often already.
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  }

  const std::string& id() const { return id_; }
  VaultUse use() const { return files_->arena()->use(); }
  std::size_t connection_count() const { return connection_count_; }

 private:
  void wait(int end_descriptor) {
    constexpr int kRetryMilliseconds = 100;
    waited_.clear();
    waited_.push_back({wake_.get(), POLLIN, 0});
    waited_.push_back({end_descriptor, POLLIN, 0});
    waited_.push_back({is_out_of_descriptors_ ? -1 : socket_.get(), POLLIN, 0});
    for (const Connection& connection : connections_) {
      waited_.push_back({connection.socket(), static_cast<short>(connection.is_answering() ? POLLOUT : POLLIN), 0});
    }
    const int ready = ::poll(waited_.data(), waited_.size(), is_out_of_descriptors_ ? kRetryMilliseconds : -1);
    is_out_of_descriptors_ = false;
    if (ready >= 0) return;
    for (pollfd& one : waited_) one.revents = 0;
    DCP_CHECK(errno == EINTR, kIo, "cannot wait for clients: ", std::generic_category().message(errno));
  }

  void step_connections() {
    std::size_t at = 3;
    for (auto connection = connections_.begin(); connection != connections_.end(); ++at) {
      const bool goes_on = waited_[at].revents == 0 || goes_on_after_step(*connection);
      connection = goes_on ? std::next(connection) : connections_.erase(connection);
    }
  }

  /// A client that cannot be served, whatever the reason, is none any more; the others are.
  static bool goes_on_after_step(Connection& connection) {
    try {
      return connection.step();
    } catch (const std::exception&) {
      return false;
    }
  }

  void accept_one() {
    Descriptor client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client) {
      is_out_of_descriptors_ = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      const bool is_passing = is_out_of_descriptors_ || errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
      DCP_CHECK(is_passing, kIo, "cannot accept a client: ", std::generic_category().message(errno));
      return;
    }
    const unsigned user = options_.user.value_or(::geteuid());
    VaultAnswer first = VaultSession::greeting();
    if (!is_peer_of_user(client.get(), user)) {
      first = VaultSession::refusal(ErrorKind::kState, "the server serves its own user alone");
    } else if (connections_.size() >= options_.max_connections) {
      first = VaultSession::refusal(ErrorKind::kState,
                                    c10::str("the server has its most clients, ", options_.max_connections));
    }
    if (first.is_last) {
      // Fits into any socket's buffer; a client that is gone already misses nothing.
      send_some(client.get(), first.bytes, {});
      return;
    }
    connections_.emplace_back(std::move(client), std::make_unique<VaultSession>(files_, vault_id_), std::move(first));
  }

  const VaultServerOptions options_;
  const std::shared_ptr<VaultFiles> files_;
  const std::string vault_id_;
  const std::string id_;
  const Descriptor wake_;
  const ServerSocket socket_;
  std::list<Connection> connections_;
  std::vector<pollfd> waited_;
  std::atomic<std::size_t> connection_count_ = 0;
  bool is_out_of_descriptors_ = false;
};

VaultServer::VaultServer(VaultServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
VaultServer::~VaultServer() = default;
void VaultServer::run(int end_descriptor) { impl_->run(end_descriptor); }
void VaultServer::stop() noexcept { impl_->stop(); }
const std::string& VaultServer::id() const { return impl_->id(); }
VaultUse VaultServer::use() const { return impl_->use(); }
std::size_t VaultServer::connection_count() const { return impl_->connection_count(); }

}  // namespace dcp
