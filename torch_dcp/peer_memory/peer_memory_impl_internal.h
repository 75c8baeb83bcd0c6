#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "torch_dcp/peer_memory/peer_memory.h"
#include "torch_dcp/peer_memory/peer_store_internal.h"

namespace dcp {

/// What a `PeerMemory` is, for the writers and readers of this folder.
class PeerMemory::Impl {
 public:
  explicit Impl(std::shared_ptr<peer::PeerStore> store)
      : store_(std::move(store)), files_(peer::make_peer_file_system(store_)) {}

  const std::shared_ptr<peer::PeerStore>& store() const { return store_; }
  const std::shared_ptr<FileSystem>& files() const { return files_; }

  std::optional<PeerGeneration> newest() const {
    const std::lock_guard lock(mutex_);
    return newest_;
  }
  void set_newest(std::optional<PeerGeneration> generation) {
    const std::lock_guard lock(mutex_);
    newest_ = std::move(generation);
  }

  /// What a save on its way will be. Where its commit has not been heard of, others may have: it is known then.
  void set_pending(std::optional<PeerGeneration> generation) {
    const std::lock_guard lock(mutex_);
    pending_ = std::move(generation);
  }
  /// The generation of that save, if it is the newest or the pending one.
  std::optional<PeerGeneration> generation_of(const std::string& save_id) const {
    const std::lock_guard lock(mutex_);
    for (const auto& known : {newest_, pending_}) {
      if (known && known->save_id == save_id) return known;
    }
    return std::nullopt;
  }

  PeerMemoryReport report = {};  ///< of `attach`

 private:
  std::shared_ptr<peer::PeerStore> store_;
  std::shared_ptr<FileSystem> files_;
  mutable std::mutex mutex_;
  std::optional<PeerGeneration> newest_;
  std::optional<PeerGeneration> pending_;
};

}  // namespace dcp
