#include <algorithm>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/peer_memory/peer_client_internal.h"

namespace dcp::peer {
namespace {

/// Heads and pieces to one rank that are waited for at last.
constexpr std::size_t kMostOnTheWay = 6;

[[noreturn]] void throw_answer(const Answer& answer, int rank, const std::string& doing) {
  throw Error(answer.kind, c10::str(doing, " rank ", rank, ": ", answer.text), DCP_WHERE);
}

}  // namespace

Answer PeerClient::ask(int rank, const Request& request, MutableByteSpan bytes) {
  const std::string what = "'" + request.name + "' of generation " + std::to_string(request.generation);
  auto head = std::make_shared<Bytes>(encode_head(request));
  auto answer_head = std::make_shared<Bytes>(kHeadBytes);
  auto answered = link_->receive(rank, answer_tag(request.call), *answer_head, answer_head, "an answer about " + what);
  link_->send(rank, kRequestTag, *head, head, "a request for " + what).wait();
  answered.wait();
  const Answer answer = decode_answer(*answer_head);
  if (!answer.is_good || bytes.empty()) return answer;
  // Of its own, so that a transfer that is left behind harms nobody.
  auto arrived = std::make_shared<Bytes>(bytes.size());
  link_->receive(rank, answer_tag(request.call), *arrived, arrived, "bytes of " + what).wait();
  std::copy(arrived->begin(), arrived->end(), bytes.begin());
  return answer;
}

std::optional<std::uint64_t> PeerClient::size_of(int rank, std::uint64_t generation, const std::string& name) {
  const Answer answer =
      ask(rank, {.verb = Verb::kRead, .call = next_call(), .generation = generation, .name = name}, {});
  if (answer.is_good) return answer.size;
  if (answer.kind == ErrorKind::kNotFound) return std::nullopt;
  throw_answer(answer, rank, "asking");
}

void PeerClient::read(int rank, std::uint64_t generation, const std::string& name, std::uint64_t offset,
                      MutableByteSpan out) {
  while (!out.empty()) {
    const MutableByteSpan now = out.first(std::min<std::uint64_t>(out.size(), kPieceBytes));
    const Answer answer = ask(rank,
                              {.verb = Verb::kRead,
                               .call = next_call(),
                               .generation = generation,
                               .offset = offset,
                               .byte_count = now.size(),
                               .name = name},
                              now);
    if (!answer.is_good) throw_answer(answer, rank, "reading from");
    offset += now.size();
    out = out.subspan(now.size());
  }
}

PeerPut::PeerPut(PeerClient& client, const std::vector<int>& ranks, std::uint64_t generation, std::string name)
    : client_(client), generation_(generation), name_(std::move(name)) {
  for (const int rank : ranks) {
    send_head(targets_.emplace_back(rank, client_.next_call()), Verb::kPutBegin, 0);
  }
}

PeerPut::~PeerPut() {
  if (is_over_) return;
  try {
    for (Target& target : targets_) send_head(target, Verb::kPutDrop, 0);
  } catch (const std::exception&) {
    // The link is broken: the service at its other end forgets what has not come whole.
  }
}

void PeerPut::send_head(Target& target, Verb verb, std::uint64_t byte_count, const std::string& note) {
  auto head = std::make_shared<Bytes>(encode_head(Request{.verb = verb,
                                                          .call = target.call,
                                                          .generation = generation_,
                                                          .byte_count = byte_count,
                                                          .name = name_,
                                                          .note = note}));
  target.transfers.push_back(client_.link()->send(target.rank, kRequestTag, *head, head, "a word about " + what()));
}

void PeerPut::send(ByteSpan piece, const std::shared_ptr<const void>& keep_alive) {
  for (Target& target : targets_) {
    while (target.transfers.size() > kMostOnTheWay) {
      target.transfers.front().wait();
      target.transfers.pop_front();
    }
    send_head(target, Verb::kPutPiece, piece.size());
    target.transfers.push_back(
        client_.link()->send(target.rank, data_tag(target.call), piece, keep_alive, "a piece of " + what()));
  }
}

void PeerPut::seal(const std::string& note) {
  is_over_ = true;
  std::vector<std::pair<std::shared_ptr<Bytes>, PeerLink::Transfer>> answers;
  for (Target& target : targets_) {
    auto head = std::make_shared<Bytes>(kHeadBytes);
    answers.emplace_back(
        head, client_.link()->receive(target.rank, answer_tag(target.call), *head, head, "word that it has " + what()));
    send_head(target, Verb::kPutSeal, 0, note);
  }
  for (Target& target : targets_) {
    for (PeerLink::Transfer& transfer : target.transfers) transfer.wait();
    target.transfers.clear();
  }
  std::optional<std::pair<Answer, int>> bad;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    answers[i].second.wait();
    const Answer answer = decode_answer(*answers[i].first);
    if (!answer.is_good && !bad) bad.emplace(answer, targets_[i].rank);
  }
  if (bad) throw_answer(bad->first, bad->second, "putting " + what() + " into the memory of");
}

}  // namespace dcp::peer
