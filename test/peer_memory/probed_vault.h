#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torch_dcp/memory/memory_vault.h"

namespace dcp::test {

/// A vault that tells of each call before it is made, on whatever thread makes it.
class ProbedVault final : public MemoryVault {
 public:
  /// \param call  "list", "open", "create", "room", "seal".
  /// \param name  Of the file; empty for "list".
  using OnCall = std::function<void(const std::string& call, const std::string& name)>;

  ProbedVault(std::shared_ptr<MemoryVault> vault, OnCall on_call)
      : vault_(std::move(vault)), on_call_(std::make_shared<OnCall>(std::move(on_call))) {}

  const std::string& id() const override { return vault_->id(); }
  const std::string& job() const override { return vault_->job(); }
  std::vector<VaultGeneration> list() override {
    (*on_call_)("list", "");
    return vault_->list();
  }
  std::unique_ptr<VaultWriter> create(std::uint64_t generation, const std::string& name) override {
    (*on_call_)("create", name);
    return std::make_unique<Writer>(vault_->create(generation, name), name, on_call_);
  }
  std::shared_ptr<const RandomAccessFile> open(std::uint64_t generation, const std::string& name) override {
    (*on_call_)("open", name);
    return vault_->open(generation, name);
  }
  void drop(std::uint64_t generation, const std::string& name) override { vault_->drop(generation, name); }
  void drop(std::uint64_t generation) override { vault_->drop(generation); }
  VaultUse use() override { return vault_->use(); }

 private:
  class Writer final : public VaultWriter {
   public:
    Writer(std::unique_ptr<VaultWriter> writer, std::string name, std::shared_ptr<OnCall> on_call)
        : writer_(std::move(writer)), name_(std::move(name)), on_call_(std::move(on_call)) {}

    MutableByteSpan room(std::uint64_t wanted) override {
      (*on_call_)("room", name_);
      return writer_->room(wanted);
    }
    void advance(std::uint64_t byte_count) override { writer_->advance(byte_count); }
    std::uint64_t size() const override { return writer_->size(); }
    MutableByteSpan piece(std::uint64_t offset, std::uint64_t wanted) override {
      return writer_->piece(offset, wanted);
    }
    void seal(const std::string& note) override {
      (*on_call_)("seal", name_);
      writer_->seal(note);
    }

   private:
    std::unique_ptr<VaultWriter> writer_;
    std::string name_;
    std::shared_ptr<OnCall> on_call_;
  };

  std::shared_ptr<MemoryVault> vault_;
  std::shared_ptr<OnCall> on_call_;
};

}  // namespace dcp::test
