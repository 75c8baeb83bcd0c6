#include <algorithm>
#include <functional>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/peer_memory/file_note_internal.h"
#include "torch_dcp/peer_memory/peer_service_internal.h"

namespace dcp::peer {
namespace {

/// Runs `part` of a request. \returns The error that is its answer.
Answer answer_of(const std::function<void()>& part) {
  try {
    part();
  } catch (const Error& error) {
    return {.is_good = false, .kind = error.kind(), .text = error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {.is_good = false, .kind = ErrorKind::kInternal, .text = error.what()};
  }
  return {};
}

}  // namespace

PeerService::PeerService(std::shared_ptr<MemoryVault> vault, std::shared_ptr<PeerLink> link)
    : vault_(std::move(vault)), link_(std::move(link)) {
  link_->serve(kRequestTag, kHeadBytes, [this](int rank, const Bytes& head) { handle(rank, decode_request(head)); });
}

PeerService::~PeerService() { link_->stop_serving(); }

void PeerService::handle(int rank, const Request& request) {
  switch (request.verb) {
    case Verb::kPutBegin:
      return begin_put(rank, request);
    case Verb::kPutPiece:
      return take_piece(rank, request);
    case Verb::kPutSeal:
      return seal_put(rank, request);
    case Verb::kPutDrop:
      puts_.erase({rank, request.call});
      return;
    case Verb::kRead:
      return read(rank, request);
  }
}

PeerService::Put& PeerService::put(int rank, const Request& request) {
  const auto found = puts_.find({rank, request.call});
  DCP_CHECK(found != puts_.end(), kCorruptData, "a piece of no file: call ", request.call);
  return found->second;
}

void PeerService::begin_put(int rank, const Request& request) {
  Put& put = puts_[{rank, request.call}];
  put = {};
  put.answer = answer_of([&] { put.writer = vault_->create(request.generation, request.name); });
}

void PeerService::take_piece(int rank, const Request& request) {
  Put& put = this->put(rank, request);
  DCP_CHECK(request.byte_count > 0, kCorruptData, "a piece of 0 bytes");
  MutableByteSpan room;
  if (put.answer.is_good) {
    put.answer = answer_of([&] { room = put.writer->room(room_for(request.byte_count, put.writer->size())); });
  }
  const std::string what = "a piece of '" + request.name + "'";
  if (put.answer.is_good && room.size() >= request.byte_count) {
    const MutableByteSpan piece = room.first(request.byte_count);
    link_->receive(rank, data_tag(request.call), piece, put.writer, what).wait();
    put.crc = crc32_of(piece, put.crc);
    put.writer->advance(request.byte_count);
    return;
  }
  // The bytes are on their way, whatever became of the file.
  auto bytes = std::make_shared<Bytes>(request.byte_count);
  link_->receive(rank, data_tag(request.call), *bytes, bytes, what).wait();
  put.crc = crc32_of(*bytes, put.crc);
  if (put.answer.is_good) put.answer = answer_of([&] { put.writer->append(*bytes); });
}

void PeerService::seal_put(int rank, const Request& request) {
  Put& put = this->put(rank, request);
  if (put.answer.is_good) {
    put.answer = answer_of([&] {
      DCP_CHECK(from_note(request.note).crc == put.crc, kCorruptData, "'", request.name, "' of generation ",
                request.generation, " did not arrive as it was sent");
      put.writer->seal(request.note);
    });
  }
  const Answer result = put.answer;
  puts_.erase({rank, request.call});
  answer(rank, request, result);
}

void PeerService::read(int rank, const Request& request) {
  Bytes bytes;
  Answer result;
  std::uint64_t size = 0;
  result = answer_of([&] {
    const auto file = vault_->open(request.generation, request.name);
    DCP_CHECK(file, kNotFound, "there is no '", request.name, "' of generation ", request.generation);
    size = file->size();
    bytes.resize(request.byte_count);
    file->read_at(request.offset, bytes);
  });
  result.size = size;
  answer(rank, request, result, result.is_good ? std::move(bytes) : Bytes());
}

void PeerService::answer(int rank, const Request& request, const Answer& answer, Bytes bytes) {
  // Neither is waited for: a slow rank does not keep the others waiting.
  auto head = std::make_shared<Bytes>(encode_head(answer));
  link_->send(rank, answer_tag(request.call), *head, head, "an answer");
  if (bytes.empty()) return;
  auto kept = std::make_shared<Bytes>(std::move(bytes));
  link_->send(rank, answer_tag(request.call), *kept, kept, "bytes of '" + request.name + "'");
}

}  // namespace dcp::peer
