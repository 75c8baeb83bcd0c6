#include <unistd.h>

#include <array>
#include <cstdio>
#include <random>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/memory/vault_files_internal.h"

namespace dcp {
namespace {

std::uint64_t default_budget() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  DCP_CHECK(pages > 0 && page_bytes > 0, kIo, "the system does not say how much memory it has: give a budget");
  return static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes) / 2;
}

}  // namespace

PieceList::~PieceList() {
  for (const MemoryArena::Piece& piece : pieces_) arena_->give_back(piece);
}

const MemoryArena::Piece& PieceList::grow(std::uint64_t wanted) {
  MemoryArena::Piece& piece = pieces_.emplace_back();
  try {
    piece = arena_->take(wanted);
  } catch (...) {
    pieces_.pop_back();
    throw;
  }
  capacity_ += piece.bytes().size();
  return piece;
}

void PieceList::cut(std::uint64_t byte_count) {
  while (capacity_ > byte_count) {
    MemoryArena::Piece& last = pieces_.back();
    const std::uint64_t last_bytes = last.bytes().size();
    const std::uint64_t begin = capacity_ - last_bytes;
    if (begin < byte_count) {
      last = arena_->trim(last, byte_count - begin);
      capacity_ = begin + last.bytes().size();
      return;
    }
    arena_->give_back(last);
    pieces_.pop_back();
    capacity_ = begin;
  }
}

Stretches PieceList::stretches() const {
  Stretches stretches;
  for (const MemoryArena::Piece& piece : pieces_) stretches.push_back(piece.bytes());
  return stretches;
}

FileDraft::FileDraft(std::shared_ptr<VaultFiles> files, std::uint64_t generation, std::string name)
    : files_(std::move(files)),
      generation_(generation),
      name_(std::move(name)),
      memory_(std::make_shared<PieceList>(files_->arena())) {
  const std::lock_guard lock(files_->mutex_);
  files_->drafts_.insert(this);
}

FileDraft::~FileDraft() {
  const std::lock_guard lock(files_->mutex_);
  files_->drafts_.erase(this);
}

void FileDraft::seal(std::uint64_t size, const std::string& note) {
  DCP_CHECK(!is_sealed_, kState, "'", name_, "' has been sealed");
  DCP_CHECK(note.size() <= VaultLimits::kNoteBytes, kInvalidArgument, "a note of ", note.size(), " bytes for '", name_,
            "', more than ", VaultLimits::kNoteBytes);
  DCP_CHECK(size <= memory_->capacity(), kInvalidArgument, "'", name_, "' of ", size, " bytes in memory of ",
            memory_->capacity());
  files_->keep(*this, {memory_, size, note});
  is_sealed_ = true;
}

VaultFiles::VaultFiles(const MemoryVaultOptions& options)
    : job_(options.job),
      arena_(std::make_shared<MemoryArena>(options.budget_bytes == 0 ? default_budget() : options.budget_bytes,
                                           options.keep_spare)) {
  DCP_CHECK(!job_.empty() && job_.size() <= VaultLimits::kNameBytes, kInvalidArgument, "a job's name of ", job_.size(),
            " characters");
}

std::unique_ptr<FileDraft> VaultFiles::create(std::uint64_t generation, const std::string& name) {
  DCP_CHECK(!name.empty() && name.size() <= VaultLimits::kNameBytes, kInvalidArgument, "a file name of ", name.size(),
            " characters");
  return std::make_unique<FileDraft>(shared_from_this(), generation, name);
}

void VaultFiles::keep(FileDraft& draft, HeldFile file) {
  HeldFile replaced;  // Gives its memory back without the lock.
  const std::lock_guard lock(mutex_);
  DCP_CHECK(!draft.is_dropped_, kCancelled, "generation ", draft.generation_, " was dropped while '", draft.name_,
            "' was written");
  DCP_CHECK(file_count_ < VaultLimits::kFiles, kState, "the vault has its most files, ", VaultLimits::kFiles,
            ", and no place for '", draft.name_, "'");
  DCP_CHECK(note_bytes_ + file.note.size() <= VaultLimits::kAllNotesBytes, kState, "the vault's notes have their most ",
            VaultLimits::kAllNotesBytes, " bytes, and no place for that of '", draft.name_, "'");
  draft.memory_->cut(file.size);  // Only now: a draft that was refused can go on.
  HeldFile& place = generations_[draft.generation_][draft.name_];
  if (place.memory != nullptr) forget(place);
  ++file_count_;
  note_bytes_ += file.note.size();
  replaced = std::exchange(place, std::move(file));
}

void VaultFiles::forget(const HeldFile& file) {
  --file_count_;
  note_bytes_ -= file.note.size();
}

std::optional<HeldFile> VaultFiles::find(std::uint64_t generation, const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto files = generations_.find(generation);
  if (files == generations_.end()) return std::nullopt;
  const auto file = files->second.find(name);
  if (file == files->second.end()) return std::nullopt;
  return file->second;
}

void VaultFiles::drop(std::uint64_t generation, const std::string& name) {
  HeldFile dropped;  // Gives its memory back without the lock.
  const std::lock_guard lock(mutex_);
  const auto files = generations_.find(generation);
  if (files == generations_.end()) return;
  const auto file = files->second.find(name);
  if (file == files->second.end()) return;
  dropped = std::move(file->second);
  forget(dropped);
  files->second.erase(file);
  if (files->second.empty()) generations_.erase(files);
}

void VaultFiles::drop(std::uint64_t generation) {
  Generation dropped;
  const std::lock_guard lock(mutex_);
  if (const auto files = generations_.find(generation); files != generations_.end()) {
    dropped = std::move(files->second);
    for (const auto& [name, file] : dropped) forget(file);
    generations_.erase(files);
  }
  for (FileDraft* draft : drafts_) {
    if (draft->generation_ == generation) draft->is_dropped_ = true;
  }
}

std::vector<VaultGeneration> VaultFiles::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<VaultGeneration> generations;
  for (const auto& [number, files] : generations_) {
    VaultGeneration& generation = generations.emplace_back();
    generation.number = number;
    for (const auto& [name, file] : files) generation.files.push_back({name, file.size, file.note});
  }
  return generations;
}

std::string random_vault_id() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) {
    std::array<char, 9> digits{};
    std::snprintf(digits.data(), digits.size(), "%08x", static_cast<unsigned>(random()));
    id += digits.data();
  }
  return id;
}

}  // namespace dcp
