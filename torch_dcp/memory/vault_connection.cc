#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/memory/memory_arena_internal.h"
#include "torch_dcp/memory/vault_connection_internal.h"

namespace dcp {

using vault_protocol::AnswerHead;
using vault_protocol::PiecePlace;
using vault_protocol::Request;

namespace {

/// What the server answered: an error of the call, after which the connection is as good as before.
class Refusal final : public Error {
 public:
  using Error::Error;
};

Bytes framed(ByteWriter request) {
  const Bytes content = std::move(request).take();
  DCP_CHECK(content.size() <= vault_protocol::kRequestBytes, kInvalidArgument, "a request of ", content.size(),
            " bytes, more than ", vault_protocol::kRequestBytes);
  ByteWriter frame;
  frame.u32(static_cast<std::uint32_t>(content.size()));
  frame.raw(content);
  return std::move(frame).take();
}

}  // namespace

/// Calls with the lock; names the server in errors, and remembers those after which the connection cannot be used.
template <typename Call>
auto VaultConnection::guarded(const std::string& doing, TimePoint until, const Call& call) {
  std::unique_lock lock(mutex_, until);
  DCP_CHECK(lock.owns_lock(), kDeadline, "the memory server at '", socket_path_,
            "' is busy with other calls: no answer within ", deadline_.count(), " ms, ", doing);
  DCP_CHECK(broken_.empty(), kComm, "the connection to the memory server at '", socket_path_, "' is broken (", broken_,
            "), ", doing);
  try {
    return call();
  } catch (Refusal& error) {
    error.add_context(c10::str(doing, ", by the memory server at '", socket_path_, "'"));
    throw;
  } catch (Error& error) {
    broken_ = error.what_without_backtrace();
    error.add_context(c10::str(doing, ", by the memory server at '", socket_path_, "'"));
    throw;
  } catch (const std::exception& error) {
    broken_ = error.what();
    throw;
  }
}

VaultConnection::VaultConnection(const std::string& socket, const MemoryClientOptions& options)
    : socket_path_(socket), deadline_(options.deadline) {
  const TimePoint until = std::chrono::steady_clock::now() + deadline_;
  guarded("connecting", until, [&] {
    connect(until);
    exchange(nullptr, until);  // the greeting
    hello(options.job, until);
  });
}

void VaultConnection::connect(TimePoint until) {
  constexpr std::chrono::milliseconds kRetry{5};
  const sockaddr_un address = unix_address(socket_path_);
  socket_ = make_unix_socket();
  // Waits while the server has many who want to connect: the system cannot wait for that.
  while (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EINTR) continue;
    DCP_CHECK(errno == EAGAIN, kComm, "no memory server answers: ", std::generic_category().message(errno));
    DCP_CHECK(std::chrono::steady_clock::now() + kRetry < until, kDeadline, "no answer within ", deadline_.count(),
              " ms");
    std::this_thread::sleep_for(kRetry);
  }
  DCP_CHECK(is_peer_of_user(socket_.get(), ::geteuid()), kState, "the memory server is of another user");
}

void VaultConnection::hello(const std::string& job, TimePoint until) {
  ByteWriter request = vault_protocol::begin_request(Request::kHello);
  request.u32(vault_protocol::kVersion);
  request.text(job);
  const Bytes frame = framed(std::move(request));
  const Bytes body = exchange(&frame, until);
  ByteReader reader(body);
  vault_id_ = reader.text();
  reader.expect_end();
}

Bytes VaultConnection::ask(ByteWriter request, const std::string& doing) {
  const TimePoint until = std::chrono::steady_clock::now() + deadline_;
  const Bytes frame = framed(std::move(request));
  return guarded(doing, until, [&] { return exchange(&frame, until); });
}

void VaultConnection::tell(ByteWriter request) noexcept {
  try {
    const TimePoint until = std::chrono::steady_clock::now() + deadline_;
    const Bytes frame = framed(std::move(request));
    guarded("releasing a file", until, [&] { send(frame, until); });
  } catch (const std::exception&) {
    // `broken_` says it to the next call; the server releases all when the connection ends.
  }
}

Bytes VaultConnection::exchange(const Bytes* request, TimePoint until) {
  if (request != nullptr) send(*request, until);
  Bytes length_bytes(4);
  receive(length_bytes, until);
  const std::uint32_t length = ByteReader(length_bytes).u32();
  DCP_CHECK(length <= vault_protocol::kAnswerBytes, kCorruptData, "an answer of ", length, " bytes");
  Bytes content(length);
  receive(content, until);
  ByteReader reader(content);
  AnswerHead head;
  decode(reader, head);
  map_blocks(head.new_blocks);
  if (!head.is_good) throw Refusal(head.kind, head.message, DCP_WHERE);
  content.erase(content.begin(), content.end() - static_cast<std::ptrdiff_t>(reader.left()));
  return content;
}

void VaultConnection::send(const Bytes& request, TimePoint until) {
  ByteSpan rest = request;
  while (!rest.empty()) {
    const Transferred sent = send_some(socket_.get(), rest, {});
    DCP_CHECK(!sent.has_ended, kComm, "the memory server is gone");
    rest = rest.subspan(sent.byte_count);
    const bool is_ready = sent.byte_count > 0 || wait_for_socket(socket_.get(), false, until);
    DCP_CHECK(is_ready, kDeadline, "the memory server takes no request within ", deadline_.count(), " ms");
  }
}

void VaultConnection::receive(MutableByteSpan into, TimePoint until) {
  while (!into.empty()) {
    const Transferred came = receive_some(socket_.get(), into, descriptors_);
    DCP_CHECK(!came.has_ended, kComm, "the memory server is gone");
    into = into.subspan(came.byte_count);
    const bool is_ready = came.byte_count > 0 || wait_for_socket(socket_.get(), true, until);
    DCP_CHECK(is_ready, kDeadline, "no answer within ", deadline_.count(), " ms");
  }
}

void VaultConnection::map_blocks(const std::vector<std::uint64_t>& byte_counts) {
  DCP_CHECK(byte_counts.size() == descriptors_.size(), kCorruptData, descriptors_.size(), " descriptors came for ",
            byte_counts.size(), " blocks");
  for (std::size_t i = 0; i < byte_counts.size(); ++i) {
    SharedMemory& block = blocks_.emplace_back(SharedMemory::open(descriptors_[i].get(), byte_counts[i]));
#ifdef MADV_POPULATE_WRITE
    // The pages are there; this puts them into this process's tables at once. An older system does it one by one.
    ::madvise(block.data(), block.size(), MADV_POPULATE_WRITE);
#endif
  }
  descriptors_.clear();
}

std::vector<MutableByteSpan> VaultConnection::locate(const std::vector<PiecePlace>& pieces) {
  const std::lock_guard lock(mutex_);
  std::vector<MutableByteSpan> places;
  places.reserve(pieces.size());
  for (const PiecePlace& piece : pieces) {
    DCP_CHECK(piece.block < blocks_.size(), kCorruptData, "a piece in block ", piece.block, " of ", blocks_.size());
    const SharedMemory& block = blocks_[piece.block];
    const std::uint64_t first = piece.first_unit * MemoryArena::kUnitBytes;
    const std::uint64_t byte_count = piece.unit_count * MemoryArena::kUnitBytes;
    DCP_CHECK(byte_count > 0 && first + byte_count <= block.size(), kCorruptData, "a piece of ", byte_count,
              " bytes at ", first, " of a block of ", block.size());
    places.push_back({block.data() + first, static_cast<std::size_t>(byte_count)});
  }
  return places;
}

}  // namespace dcp
