#pragma once

#include <memory>
#include <string>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/memory/memory_vault.h"
#include "torch_dcp/memory/stretches_internal.h"

namespace dcp {

/// A sealed file that lies in this process's address space.
class MemoryFile final : public RandomAccessFile {
 public:
  /// \param holder  What keeps the bytes where they are.
  /// \pre `size` <= stretches.capacity().
  MemoryFile(std::shared_ptr<const void> holder, Stretches stretches, std::uint64_t size, std::string name);

  std::uint64_t size() const override { return size_; }
  void read_at(std::uint64_t offset, MutableByteSpan out) const override;

 private:
  std::shared_ptr<const void> holder_;
  Stretches stretches_;
  std::uint64_t size_;
  std::string name_;
};

/// What writers into memory have in common: all but where more memory comes from, and how a file becomes visible.
class MemoryFileWriter : public VaultWriter {
 public:
  MutableByteSpan room(std::uint64_t wanted) final;
  void advance(std::uint64_t byte_count) final;
  std::uint64_t size() const final { return size_; }
  MutableByteSpan piece(std::uint64_t offset, std::uint64_t wanted) final;
  void seal(const std::string& note) final;

 protected:
  MemoryFileWriter(std::uint64_t generation, std::string name) : generation_(generation), name_(std::move(name)) {}

  /// Returns stretches of memory for `wanted` bytes or fewer, at least one.
  virtual std::vector<MutableByteSpan> grow(std::uint64_t wanted) = 0;
  virtual void finish(std::uint64_t size, const std::string& note) = 0;

 private:
  void check_is_open() const { DCP_CHECK(!is_sealed_, kState, "'", name_, "' has been sealed"); }

  std::uint64_t generation_;
  std::string name_;
  Stretches stretches_;
  std::uint64_t size_ = 0;
  std::uint64_t room_ = 0;  // bytes of the last room that are not part of the file yet
  bool is_sealed_ = false;
};

}  // namespace dcp
