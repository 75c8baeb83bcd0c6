#include "torch_dcp/memory/memory_vault.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "torch_dcp/memory/memory_file_internal.h"
#include "torch_dcp/memory/vault_files_internal.h"

namespace dcp {

VaultWriter::~VaultWriter() = default;
MemoryVault::~MemoryVault() = default;

void VaultWriter::append(ByteSpan bytes) {
  while (!bytes.empty()) {
    const MutableByteSpan into = room(bytes.size());
    const ByteSpan now = bytes.first(std::min(into.size(), bytes.size()));
    std::memcpy(into.data(), now.data(), now.size());
    advance(now.size());
    bytes = bytes.subspan(now.size());
  }
}

namespace {

class LocalWriter final : public MemoryFileWriter {
 public:
  LocalWriter(std::unique_ptr<FileDraft> draft, std::uint64_t generation, const std::string& name)
      : MemoryFileWriter(generation, name), draft_(std::move(draft)) {}

 private:
  std::vector<MutableByteSpan> grow(std::uint64_t wanted) override { return {draft_->memory().grow(wanted).bytes()}; }
  void finish(std::uint64_t size, const std::string& note) override { draft_->seal(size, note); }

  std::unique_ptr<FileDraft> draft_;
};

class LocalVault final : public MemoryVault {
 public:
  explicit LocalVault(const MemoryVaultOptions& options)
      : id_(random_vault_id()), files_(std::make_shared<VaultFiles>(options)) {}

  const std::string& id() const override { return id_; }
  const std::string& job() const override { return files_->job(); }
  std::vector<VaultGeneration> list() override { return files_->list(); }

  std::unique_ptr<VaultWriter> create(std::uint64_t generation, const std::string& name) override {
    return std::make_unique<LocalWriter>(files_->create(generation, name), generation, name);
  }

  std::shared_ptr<const RandomAccessFile> open(std::uint64_t generation, const std::string& name) override {
    const std::optional<HeldFile> file = files_->find(generation, name);
    if (!file) return nullptr;
    return std::make_shared<MemoryFile>(file->memory, file->memory->stretches(), file->size, name);
  }

  void drop(std::uint64_t generation, const std::string& name) override { files_->drop(generation, name); }
  void drop(std::uint64_t generation) override { files_->drop(generation); }
  VaultUse use() override { return files_->arena()->use(); }

 private:
  const std::string id_;
  const std::shared_ptr<VaultFiles> files_;
};

}  // namespace

std::shared_ptr<MemoryVault> make_memory_vault(const MemoryVaultOptions& options) {
  return std::make_shared<LocalVault>(options);
}

}  // namespace dcp
