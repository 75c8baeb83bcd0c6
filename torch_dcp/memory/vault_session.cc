#include <algorithm>
#include <exception>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/memory/vault_session_internal.h"

namespace dcp {

using vault_protocol::AnswerHead;
using vault_protocol::PiecePlace;
using vault_protocol::Request;

namespace {

/// Head and body as a frame.
Bytes frame_of(const AnswerHead& head, ByteSpan body) {
  ByteWriter content;
  vault_protocol::encode(content, head);
  content.raw(body);
  ByteWriter frame;
  frame.u32(static_cast<std::uint32_t>(content.size()));
  const Bytes bytes = std::move(content).take();
  frame.raw(bytes);
  return std::move(frame).take();
}

}  // namespace

struct VaultSession::Reply {
  std::vector<MemoryArena::BlockView> blocks;
  ByteWriter body;
  bool is_silent = false;
};

VaultSession::VaultSession(std::shared_ptr<VaultFiles> files, std::string vault_id)
    : files_(std::move(files)), vault_id_(std::move(vault_id)) {}

VaultAnswer VaultSession::greeting() { return {frame_of({}, {}), {}, false}; }

VaultAnswer VaultSession::refusal(ErrorKind kind, const std::string& message) {
  AnswerHead head;
  head.is_good = false;
  head.kind = kind;
  head.message = message;
  return {frame_of(head, {}), {}, true};
}

VaultAnswer VaultSession::answer(ByteSpan request) {
  try {
    Reply reply = run(request);
    if (reply.is_silent) return {};
    AnswerHead head;
    VaultAnswer answer;
    for (const MemoryArena::BlockView& block : reply.blocks) {
      head.new_blocks.push_back(block.byte_count);
      answer.descriptors.push_back(block.fd);
    }
    const Bytes body = std::move(reply.body).take();
    answer.bytes = frame_of(head, body);
    // It has them with this answer.
    known_blocks_ += static_cast<std::uint32_t>(reply.blocks.size());
    return answer;
  } catch (...) {
    // The client throws it; the server goes on.
    const RankFailure failure = current_failure(0);
    VaultAnswer answer = refusal(failure.kind, failure.message);
    answer.is_last = failure.kind == ErrorKind::kCorruptData || !has_said_hello_;
    return answer;
  }
}

VaultSession::Reply VaultSession::run(ByteSpan bytes) {
  ByteReader reader(bytes);
  Reply reply;
  const auto request = static_cast<Request>(reader.u8());
  DCP_CHECK((request == Request::kHello) == !has_said_hello_, kCorruptData,
            "a request before the hello, or two hellos");
  switch (request) {
    case Request::kHello:
      hello(reader, reply);
      return reply;
    case Request::kCreate:
      create(reader, reply);
      return reply;
    case Request::kGrow:
      grow(reader, reply);
      return reply;
    case Request::kSeal:
      seal(reader);
      return reply;
    case Request::kOpen:
      open(reader, reply);
      return reply;
    case Request::kRelease: {
      const std::uint64_t handle = reader.u64();
      reader.expect_end();
      drafts_.erase(handle);
      readers_.erase(handle);
      reply.is_silent = true;
      return reply;
    }
    case Request::kDropFile:
      drop_file(reader);
      return reply;
    case Request::kDropGeneration: {
      const std::uint64_t generation = reader.u64();
      reader.expect_end();
      files_->drop(generation);
      return reply;
    }
    case Request::kList:
      reader.expect_end();
      vault_protocol::encode(reply.body, files_->list());
      return reply;
    case Request::kUse:
      use(reader, reply);
      return reply;
  }
  DCP_THROW(kCorruptData, "a request of an unknown kind, ", static_cast<int>(request));
}

void VaultSession::hello(ByteReader& reader, Reply& reply) {
  const std::uint32_t version = reader.u32();
  DCP_CHECK(version == vault_protocol::kVersion, kUnsupported, "version ", version,
            " is spoken to a server of version ", vault_protocol::kVersion);
  const std::string job = reader.text();
  reader.expect_end();
  DCP_CHECK(job == files_->job(), kState, "the memory is that of job '", files_->job(), "', not of job '", job, "'");
  has_said_hello_ = true;
  reply.body.text(vault_id_);
}

std::uint64_t VaultSession::next_handle() {
  DCP_CHECK(drafts_.size() + readers_.size() < vault_protocol::kHandles, kState, "more than ", vault_protocol::kHandles,
            " files are open at a time");
  return ++last_handle_;
}

void VaultSession::create(ByteReader& reader, Reply& reply) {
  const std::uint64_t generation = reader.u64();
  const std::string name = reader.text();
  reader.expect_end();
  const std::uint64_t handle = next_handle();
  drafts_[handle] = files_->create(generation, name);
  reply.body.u64(handle);
}

FileDraft& VaultSession::draft(std::uint64_t handle) {
  const auto found = drafts_.find(handle);
  DCP_CHECK(found != drafts_.end() && found->second != nullptr, kCorruptData, "no file is written with handle ",
            handle);
  return *found->second;
}

void VaultSession::grow(ByteReader& reader, Reply& reply) {
  FileDraft& file = draft(reader.u64());
  const std::uint64_t wanted = std::min(std::max<std::uint64_t>(reader.u64(), 1), vault_protocol::kGrowBytes);
  reader.expect_end();
  DCP_CHECK(!file.is_sealed(), kCorruptData, "a sealed file is to grow");
  PieceList& memory = file.memory();
  const std::size_t first = memory.pieces().size();
  const std::uint64_t before = memory.capacity();
  try {
    // With some memory the client can go on; that there is no more it hears when it needs more.
    while (memory.capacity() == before || (memory.capacity() - before < wanted && !files_->arena()->is_full())) {
      DCP_CHECK(memory.pieces().size() < vault_protocol::kPieces, kState, "the file lies in ", vault_protocol::kPieces,
                " pieces, the most");
      memory.grow(wanted - (memory.capacity() - before));
    }
  } catch (...) {
    memory.cut(before);  // The client will not hear of it.
    throw;
  }
  add_pieces(memory.pieces(), first, reply);
}

void VaultSession::seal(ByteReader& reader) {
  FileDraft& file = draft(reader.u64());
  const std::uint64_t size = reader.u64();
  const std::string note = reader.text();
  reader.expect_end();
  file.seal(size, note);
}

void VaultSession::open(ByteReader& reader, Reply& reply) {
  const std::uint64_t generation = reader.u64();
  const std::string name = reader.text();
  reader.expect_end();
  const std::optional<HeldFile> file = files_->find(generation, name);
  reply.body.boolean(file.has_value());
  if (!file) return;
  const std::uint64_t handle = next_handle();
  readers_[handle] = file->memory;
  reply.body.u64(handle);
  reply.body.u64(file->size);
  add_pieces(file->memory->pieces(), 0, reply);
}

void VaultSession::drop_file(ByteReader& reader) {
  const std::uint64_t generation = reader.u64();
  const std::string name = reader.text();
  reader.expect_end();
  files_->drop(generation, name);
}

void VaultSession::use(ByteReader& reader, Reply& reply) {
  reader.expect_end();
  const VaultUse use = files_->arena()->use();
  reply.body.u64(use.used_bytes);
  reply.body.u64(use.spare_bytes);
  reply.body.u64(use.budget_bytes);
}

void VaultSession::add_pieces(const std::vector<MemoryArena::Piece>& pieces, std::size_t first, Reply& reply) {
  std::vector<PiecePlace> places;
  bool has_new_block = false;
  for (std::size_t i = first; i < pieces.size(); ++i) {
    places.push_back({pieces[i].block_number(), pieces[i].first_unit, pieces[i].unit_count});
    has_new_block |= pieces[i].block_number() >= known_blocks_;
  }
  vault_protocol::encode(reply.body, places);
  if (has_new_block) reply.blocks = files_->arena()->blocks_from(known_blocks_);
}

}  // namespace dcp
