#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/peer_memory/file_owner_internal.h"
#include "torch_dcp/peer_memory/peer_store_internal.h"

namespace dcp::peer {
namespace {

/// A file that grows in the own vault, and travels to the copies' while it does.
class GrowingFile final : public WritableFile {
 public:
  GrowingFile(std::shared_ptr<VaultWriter> writer, std::unique_ptr<PeerPut> put, FileNote note)
      : writer_(std::move(writer)), put_(std::move(put)), note_(std::move(note)) {}

  void append(ByteSpan bytes) override {
    DCP_CHECK(writer_, kState, "the file has been closed, or an earlier call has failed");
    try {
      while (!bytes.empty()) {
        const MutableByteSpan room = writer_->room(room_for(bytes.size(), writer_->size()));
        const ByteSpan now = bytes.first(std::min(room.size(), bytes.size()));
        std::copy(now.begin(), now.end(), room.begin());
        note_.crc = crc32_of(now, note_.crc);
        writer_->advance(now.size());
        bytes = bytes.subspan(now.size());
        if (now.size() == room.size()) send_up_to(writer_->size());
      }
    } catch (...) {
      give_up();
      throw;
    }
  }

  std::uint64_t size() const override { return size_at_close_.value_or(writer_ ? writer_->size() : 0); }
  void sync() override {}

  void close() override {
    DCP_CHECK(writer_, kState, "the file has been closed, or an earlier call has failed");
    try {
      send_up_to(writer_->size());
      const std::string note = to_note(note_);
      // The copies first: what this rank has, all have that should.
      if (put_) put_->seal(note);
      writer_->seal(note);
    } catch (...) {
      give_up();
      throw;
    }
    size_at_close_ = writer_->size();
    give_up();
  }

 private:
  void send_up_to(std::uint64_t end) {
    if (!put_) return;
    while (sent_ < end) {
      const MutableByteSpan piece = writer_->piece(sent_, std::min(end - sent_, kPieceBytes));
      put_->send(piece, writer_);
      sent_ += piece.size();
    }
  }

  void give_up() {
    put_.reset();
    writer_.reset();
  }

  std::shared_ptr<VaultWriter> writer_;
  std::unique_ptr<PeerPut> put_;  // null if there are no copies
  FileNote note_;
  std::uint64_t sent_ = 0;
  std::optional<std::uint64_t> size_at_close_;
};

/// A file in other ranks' memories.
class RemoteFile final : public RandomAccessFile {
 public:
  RemoteFile(PeerStore& store, std::vector<int> ranks, std::uint64_t generation, std::string name, std::uint64_t size)
      : store_(store), ranks_(std::move(ranks)), generation_(generation), name_(std::move(name)), size_(size) {}

  std::uint64_t size() const override { return size_; }

  void read_at(std::uint64_t offset, MutableByteSpan out) const override {
    DCP_CHECK(offset <= size_ && out.size() <= size_ - offset, kCorruptData, "'", name_, "' has ", size_,
              " bytes, wanted are ", out.size(), " from ", offset, " on");
    if (!out.empty()) store_.read(ranks_, generation_, name_, offset, out);
  }

 private:
  PeerStore& store_;  // outlives what is opened through it
  std::vector<int> ranks_;
  std::uint64_t generation_;
  std::string name_;
  std::uint64_t size_;
};

}  // namespace

std::string directory_of(std::uint64_t generation) { return "generation-" + std::to_string(generation); }

PeerStore::PeerStore(std::shared_ptr<MemoryVault> vault, GroupRef group, PeerLinkOptions link_options)
    : vault_(std::move(vault)), group_(std::move(group)), link_options_(std::move(link_options)), rank_(group_.rank()) {
  if (group_) size_ = group_.get()->getSize();
}

PeerStore::~PeerStore() = default;

void PeerStore::connect() {
  if (size_ == 1) return;
  service_.reset();
  client_.reset();
  const std::shared_ptr<PeerLink> link = PeerLink::create(group_.get(), link_options_);
  client_ = std::make_shared<PeerClient>(link);
  service_ = std::make_unique<PeerService>(vault_, link);
}

std::string PeerStore::broken_reason() const {
  if (size_ == 1) return {};
  return client_ ? client_->link()->broken_reason() : "it was not made";
}

void PeerStore::break_off(const std::string& reason) {
  if (client_) client_->link()->break_off(reason);
}

void PeerStore::set_held(HeldGenerations held) {
  const std::lock_guard lock(mutex_);
  held_ = std::move(held);
}

HeldGenerations PeerStore::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

void PeerStore::begin(std::uint64_t generation, FileNote note) {
  writing_generation_ = generation;
  writing_note_ = std::move(note);
}

std::unique_ptr<WritableFile> PeerStore::create(const std::string& name, bool is_copied) {
  DCP_CHECK(client_ || size_ == 1, kComm, "the ranks' memories are not connected: ", broken_reason());
  std::shared_ptr<VaultWriter> writer = vault_->create(writing_generation_, name);
  std::unique_ptr<PeerPut> put;
  if (is_copied && client_ && !copies_[static_cast<std::size_t>(rank_)].empty()) {
    put = std::make_unique<PeerPut>(*client_, copies_[static_cast<std::size_t>(rank_)], writing_generation_, name);
  }
  return std::make_unique<GrowingFile>(std::move(writer), std::move(put), writing_note_);
}

std::vector<int> PeerStore::candidates(std::uint64_t generation, const std::string& name) const {
  std::vector<int> ranks;
  {
    const std::lock_guard lock(mutex_);
    if (const auto files = held_.find(generation); files != held_.end()) {
      const auto file = files->second.find(name);
      if (file != files->second.end()) ranks = file->second.holders;
      std::erase(ranks, rank_);
      return ranks;
    }
  }
  // Of a save since the ranks met: where its owner has put it.
  const int owner = owner_of(name).value_or(coordinator_);
  if (owner >= size_) return {};
  ranks = copies_[static_cast<std::size_t>(owner)];
  ranks.insert(ranks.begin(), owner);
  std::erase(ranks, rank_);
  return ranks;
}

std::shared_ptr<const RandomAccessFile> PeerStore::open(std::uint64_t generation, const std::string& name) {
  if (auto file = vault_->open(generation, name)) return file;
  std::vector<int> ranks = candidates(generation, name);
  if (!client_) return nullptr;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto size = client_->size_of(ranks[i], generation, name);
    if (!size) continue;
    ranks.erase(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(i));
    return std::make_shared<RemoteFile>(*this, std::move(ranks), generation, name, *size);
  }
  return nullptr;
}

void PeerStore::read(const std::vector<int>& ranks, std::uint64_t generation, const std::string& name,
                     std::uint64_t offset, MutableByteSpan out) {
  DCP_CHECK(client_, kComm, "the ranks' memories are not connected: ", broken_reason());
  std::string said;
  for (const int rank : ranks) {
    try {
      client_->read(rank, generation, name, offset, out);
      return;
    } catch (const Error& error) {
      // The link is one for all ranks.
      if (!client_->link()->broken_reason().empty()) throw;
      said += (said.empty() ? "" : "; ") + std::string(error.what_without_backtrace());
    }
  }
  DCP_THROW(kIo, "no rank gives '", name, "' of generation ", generation, ": ", said);
}

}  // namespace dcp::peer
