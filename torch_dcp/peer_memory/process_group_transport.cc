#include "torch_dcp/peer_memory/process_group_transport.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/peer_memory/transport_head_internal.h"
#include "torch_dcp/peer_memory/transport_incoming_internal.h"
#include "torch_dcp/peer_memory/transport_messages_internal.h"
#include "torch_dcp/peer_memory/transport_pieces_internal.h"

namespace dcp {
namespace {

// Messages from the sender: a preface of fixed size, the head, the pieces, the sums. The receiver answers the preface,
// the head and the sums, so that nothing is sent that it will not take.
constexpr std::uint32_t kPrefaceTag = 0;
constexpr std::uint32_t kHeadTag = 1;
constexpr std::uint32_t kPieceTag = 2;
constexpr std::uint32_t kSumsTag = 3;
constexpr std::uint32_t kAnswerTag = 4;

constexpr std::size_t kWindow = 3;  // pieces on their way

}  // namespace

TransportOptions::TransportOptions() { limits.max_values = 16'000'000; }

class ProcessGroupTransport::Impl {
 public:
  Impl(std::shared_ptr<PeerLink> link, const TransportOptions& options)
      : link_(std::move(link)),
        options_(options),
        sending_(static_cast<std::size_t>(link_->size())),
        receiving_(static_cast<std::size_t>(link_->size())) {
    DCP_CHECK(options_.piece_bytes > 0 && options_.max_state_bytes > 0, kInvalidArgument,
              "a transport's sizes must be positive");
  }

  void send(const Dict& state, std::int64_t step, std::vector<int> ranks);
  Dict receive(std::int64_t step, int from, const Dict* given);
  Dict exchange(const Dict& state, std::int64_t step, int to, int from, const Dict* given);

  const std::shared_ptr<PeerLink>& link() const { return link_; }
  TransportCounts counts() const { return {messages_sent_, bytes_sent_, messages_received_, bytes_received_}; }

 private:
  using Transfer = PeerLink::Transfer;

  // A send to one rank or several.
  struct Sending {
    std::int64_t step;
    std::vector<int> ranks;  // those that have not refused
    std::vector<std::pair<int, TransportFailure>> refused = {};
  };

  Transfer post_send(int rank, std::uint32_t tag, ByteSpan bytes, std::shared_ptr<const void> keep, std::string what) {
    ++messages_sent_;
    bytes_sent_ += bytes.size();
    return link_->send(rank, options_.first_tag + tag, bytes, std::move(keep), std::move(what));
  }
  Transfer post_receive(int rank, std::uint32_t tag, MutableByteSpan bytes, std::shared_ptr<const void> keep,
                        std::string what) {
    ++messages_received_;
    bytes_received_ += bytes.size();
    return link_->receive(rank, options_.first_tag + tag, bytes, std::move(keep), std::move(what));
  }

  std::shared_ptr<Bytes> receive_bytes(int from, std::uint32_t tag, std::size_t count, std::string what) {
    auto bytes = std::make_shared<Bytes>(count);
    post_receive(from, tag, *bytes, bytes, std::move(what)).wait();
    return bytes;
  }
  void send_to_all(const Sending& sending, std::uint32_t tag, const std::shared_ptr<Bytes>& bytes, std::string what);
  void take_answers(Sending& sending, std::string what);
  void send_pieces(const Sending& sending, std::vector<TransportBlock>& blocks);
  void throw_refusals(const Sending& sending) const;

  void answer(int to, const std::optional<TransportFailure>& failure, std::string what);
  template <typename Work>
  auto or_refuse(int from, std::int64_t step, const char* what, const Work& work);
  void receive_pieces(int from, std::int64_t piece_bytes, std::vector<TransportBlock>& blocks);

  std::string name_of_state(std::int64_t step) const { return c10::str("the state of step ", step); }

  std::shared_ptr<PeerLink> link_;
  TransportOptions options_;
  std::vector<std::mutex> sending_;    // to each rank
  std::vector<std::mutex> receiving_;  // from each rank
  std::atomic<std::uint64_t> messages_sent_{0};
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::uint64_t> messages_received_{0};
  std::atomic<std::uint64_t> bytes_received_{0};
};

// Sending.

void ProcessGroupTransport::Impl::send(const Dict& state, std::int64_t step, std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  DCP_CHECK(!ranks.empty() && std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end(), kInvalidArgument,
            "a state is sent to one rank or several, each once");
  std::vector<std::unique_lock<std::mutex>> locks;
  for (const int rank : ranks) {
    DCP_CHECK(rank >= 0 && rank < link_->size() && rank != link_->rank(), kInvalidArgument,
              "a state cannot be sent to rank ", rank, ": this is rank ", link_->rank(), " of ", link_->size());
    locks.emplace_back(
        sending_[static_cast<std::size_t>(rank)]);  // in the order of ranks, so two calls never wait for each other
  }
  Sending sending{step, std::move(ranks)};
  TransportPreface preface;
  preface.step = step;
  preface.piece_bytes = options_.piece_bytes;
  OutgoingState outgoing;
  std::exception_ptr own;
  try {
    outgoing = describe_state(state);
  } catch (...) {
    own = std::current_exception();
    preface.failure = current_transport_failure(link_->rank());
  }
  preface.head_bytes = outgoing.head.size();
  preface.head_sum = crc32_of(outgoing.head);
  send_to_all(sending, kPrefaceTag, encode_preface(preface), "the preface of " + name_of_state(step));
  if (own) std::rethrow_exception(own);
  take_answers(sending, "the answer to the preface of " + name_of_state(step));

  send_to_all(sending, kHeadTag, std::make_shared<Bytes>(std::move(outgoing.head)),
              "the head of " + name_of_state(step));
  take_answers(sending, "the answer to the head of " + name_of_state(step));

  std::vector<TransportBlock> blocks;
  for (OutgoingState::Storage& one : outgoing.storages) {
    at::Tensor bytes = at::empty({0}, at::TensorOptions(at::kByte).device(one.storage.device()));
    const std::int64_t unit = 1;
    bytes.set_(one.storage, one.range.begin, one.range.bytes(), unit);
    blocks.push_back({std::move(bytes), std::move(one.name)});
  }
  try {
    send_pieces(sending, blocks);
  } catch (...) {
    // The receivers wait for what will not come.
    link_->break_off(current_transport_failure(link_->rank()).text);
    throw;
  }
  send_to_all(sending, kSumsTag, std::make_shared<Bytes>(encode_sums(blocks)), "the sums of " + name_of_state(step));
  take_answers(sending, "the last answer about " + name_of_state(step));
  throw_refusals(sending);
}

void ProcessGroupTransport::Impl::send_to_all(const Sending& sending, std::uint32_t tag,
                                              const std::shared_ptr<Bytes>& bytes, std::string what) {
  std::vector<Transfer> transfers;
  for (const int rank : sending.ranks) transfers.push_back(post_send(rank, tag, *bytes, bytes, what));
  for (Transfer& transfer : transfers) transfer.wait();
}

void ProcessGroupTransport::Impl::take_answers(Sending& sending, std::string what) {
  std::vector<std::shared_ptr<Bytes>> answers;
  std::vector<Transfer> transfers;
  for (const int rank : sending.ranks) {
    answers.push_back(std::make_shared<Bytes>(kTransportFixedBytes));
    transfers.push_back(post_receive(rank, kAnswerTag, *answers.back(), answers.back(), what));
  }
  for (Transfer& transfer : transfers) transfer.wait();
  std::vector<int> accepting;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (auto failure = decode_answer(*answers[i])) {
      sending.refused.emplace_back(sending.ranks[i], std::move(*failure));
    } else {
      accepting.push_back(sending.ranks[i]);
    }
  }
  sending.ranks = std::move(accepting);
}

void ProcessGroupTransport::Impl::send_pieces(const Sending& sending, std::vector<TransportBlock>& blocks) {
  if (sending.ranks.empty()) return;
  std::deque<std::vector<Transfer>> window;
  const auto wait_for_first = [&] {
    for (Transfer& transfer : window.front()) transfer.wait();
    window.pop_front();
  };
  for (const Piece& piece : pieces_of(blocks, options_.piece_bytes)) {
    if (window.size() == kWindow) wait_for_first();
    const auto bytes = std::make_shared<at::Tensor>(packed(piece, blocks));
    const std::string name = name_of(piece, blocks);
    std::vector<Transfer>& transfers = window.emplace_back();
    for (const int rank : sending.ranks) transfers.push_back(post_send(rank, kPieceTag, span_of(*bytes), bytes, name));
    sum_up(piece, *bytes, blocks);
  }
  while (!window.empty()) wait_for_first();
}

void ProcessGroupTransport::Impl::throw_refusals(const Sending& sending) const {
  if (sending.refused.empty()) return;
  std::string text;
  for (const auto& [rank, failure] : sending.refused) {
    text += c10::str(text.empty() ? "" : "\n", "sending ", name_of_state(sending.step), " to rank ", rank, ": ",
                     failure.text);
  }
  throw Error(sending.refused.front().second.kind, std::move(text), DCP_WHERE);
}

// Receiving.

void ProcessGroupTransport::Impl::answer(int to, const std::optional<TransportFailure>& failure, std::string what) {
  const auto bytes = encode_answer(failure);
  post_send(to, kAnswerTag, *bytes, bytes, std::move(what)).wait();
}

// What `work` throws is told to the sender, who waits for an answer.
template <typename Work>
auto ProcessGroupTransport::Impl::or_refuse(int from, std::int64_t step, const char* what, const Work& work) {
  TransportFailure failure;
  try {
    return work();
  } catch (...) {
    failure = current_transport_failure(link_->rank());
  }
  answer(from, failure, c10::str("the refusal of ", what));
  throw Error(failure.kind, c10::str("receiving ", name_of_state(step), " from rank ", from, ": ", failure.text),
              DCP_WHERE);
}

Dict ProcessGroupTransport::Impl::receive(std::int64_t step, int from, const Dict* given) {
  DCP_CHECK(from >= 0 && from < link_->size() && from != link_->rank(), kInvalidArgument,
            "a state cannot be received from rank ", from, ": this is rank ", link_->rank(), " of ", link_->size());
  const std::unique_lock<std::mutex> lock(receiving_[static_cast<std::size_t>(from)]);
  const std::string name = name_of_state(step);
  const auto first = receive_bytes(from, kPrefaceTag, kTransportFixedBytes, "the preface of " + name);
  const TransportPreface preface = or_refuse(from, step, "the preface", [&] {
    TransportPreface decoded = decode_preface(*first);
    if (decoded.failure) return decoded;
    DCP_CHECK(decoded.step == step, kState, "rank ", from, " sends the state of step ", decoded.step, ", rank ",
              link_->rank(), " wants that of step ", step);
    DCP_CHECK(
        decoded.head_bytes > 0 && decoded.head_bytes <= options_.limits.max_header_bytes && decoded.piece_bytes > 0,
        kCorruptData, "a head of ", decoded.head_bytes, " bytes, in pieces of ", decoded.piece_bytes);
    return decoded;
  });
  if (preface.failure) {
    throw Error(preface.failure->kind, c10::str("receiving ", name, " from rank ", from, ": ", preface.failure->text),
                DCP_WHERE);
  }
  answer(from, std::nullopt, "the answer to the preface of " + name);

  const auto head = receive_bytes(from, kHeadTag, static_cast<std::size_t>(preface.head_bytes), "the head of " + name);
  const auto incoming = or_refuse(from, step, "the head", [&] {
    DCP_CHECK(crc32_of(*head) == preface.head_sum, kCorruptData,
              "the head has another CRC-32 than the one that was sent");
    return std::make_unique<IncomingState>(
        std::move(*head), given,
        IncomingOptions{options_.limits, options_.max_state_bytes, options_.strict_in_place, options_.device});
  });
  std::vector<TransportBlock> blocks;
  for (const IncomingState::Target& target : incoming->targets()) blocks.push_back({target.bytes, target.name});
  answer(from, std::nullopt, "the answer to the head of " + name);

  try {
    receive_pieces(from, preface.piece_bytes, blocks);
    const auto sums = receive_bytes(from, kSumsTag, (blocks.size() + 1) * sizeof(std::uint32_t), "the sums of " + name);
    Dict state = or_refuse(from, step, "the state", [&] {
      check_sums(*sums, blocks);
      return incoming->finish();
    });
    answer(from, std::nullopt, "the last answer about " + name);
    return state;
  } catch (const Error& error) {
    if (!incoming->writes_in_place()) throw;
    throw Error(error.kind(),
                c10::str(error.what_without_backtrace(), "; tensors of the given state have been overwritten in part"),
                error.where());
  }
}

void ProcessGroupTransport::Impl::receive_pieces(int from, std::int64_t piece_bytes,
                                                 std::vector<TransportBlock>& blocks) {
  struct Arriving {
    const Piece* piece;
    at::Tensor bytes;
    Transfer transfer;
  };
  const std::vector<Piece> pieces = pieces_of(blocks, piece_bytes);
  std::deque<Arriving> window;
  const auto take_first = [&] {
    Arriving& first = window.front();
    first.transfer.wait();
    sum_up(*first.piece, first.bytes, blocks);
    if (!goes_straight(*first.piece, blocks)) unpack(*first.piece, first.bytes, blocks);
    window.pop_front();
  };
  for (const Piece& piece : pieces) {
    if (window.size() == kWindow) take_first();
    const at::Tensor bytes = goes_straight(piece, blocks) ? place_of(piece, blocks) : room_for(piece);
    const MutableByteSpan room(static_cast<std::uint8_t*>(bytes.mutable_data_ptr()), bytes.nbytes());
    window.push_back(
        {&piece, bytes,
         post_receive(from, kPieceTag, room, std::make_shared<at::Tensor>(bytes), name_of(piece, blocks))});
  }
  while (!window.empty()) take_first();
}

Dict ProcessGroupTransport::Impl::exchange(const Dict& state, std::int64_t step, int to, int from, const Dict* given) {
  std::exception_ptr not_sent;
  std::thread sending([&] {
    try {
      send(state, step, {to});
    } catch (...) {
      not_sent = std::current_exception();
    }
  });
  std::exception_ptr not_received;
  Dict received;
  try {
    received = receive(step, from, given);
  } catch (...) {
    not_received = std::current_exception();
  }
  sending.join();
  if (not_received) std::rethrow_exception(not_received);
  if (not_sent) std::rethrow_exception(not_sent);
  return received;
}

std::shared_ptr<ProcessGroupTransport> ProcessGroupTransport::create(const GroupRef& group,
                                                                     const TransportOptions& options,
                                                                     const PeerLinkOptions& link_options) {
  return std::make_shared<ProcessGroupTransport>(PeerLink::create(group.get(), link_options), options);
}

ProcessGroupTransport::ProcessGroupTransport(std::shared_ptr<PeerLink> link, const TransportOptions& options)
    : impl_(std::make_unique<Impl>(std::move(link), options)) {}
ProcessGroupTransport::~ProcessGroupTransport() = default;

const std::shared_ptr<PeerLink>& ProcessGroupTransport::link() const { return impl_->link(); }

void ProcessGroupTransport::send(const Dict& state, std::int64_t step, const std::vector<int>& ranks) {
  impl_->send(state, step, ranks);
}

void ProcessGroupTransport::send(const Dict& state, std::int64_t step, int rank) { impl_->send(state, step, {rank}); }

Dict ProcessGroupTransport::receive(std::int64_t step, int from) { return impl_->receive(step, from, nullptr); }

void ProcessGroupTransport::receive_into(Dict& state, std::int64_t step, int from) {
  state = impl_->receive(step, from, &state);
}

Dict ProcessGroupTransport::exchange(const Dict& state, std::int64_t step, int to, int from) {
  return impl_->exchange(state, step, to, from, nullptr);
}

void ProcessGroupTransport::exchange_into(const Dict& state, Dict& into, std::int64_t step, int to, int from) {
  into = impl_->exchange(state, step, to, from, &into);
}

TransportCounts ProcessGroupTransport::counts() const { return impl_->counts(); }

}  // namespace dcp
