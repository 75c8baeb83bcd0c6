#include "torch_dcp/peer_memory/peer_memory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/comm/rank_step.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/peer_memory/file_owner_internal.h"
#include "torch_dcp/peer_memory/joining_internal.h"
#include "torch_dcp/peer_memory/peer_memory_impl_internal.h"
#include "torch_dcp/peer_memory/placement_internal.h"

namespace dcp {
namespace {

using peer::Candidate;
using peer::HeldFile;
using peer::Inventory;
using peer::PeerStore;
using peer::Refill;

constexpr std::uint64_t kMostMetadataBytes = std::uint64_t{1} << 32;

std::string name_of_this_host() {
  std::array<char, 256> name{};
  DCP_CHECK(::gethostname(name.data(), name.size() - 1) == 0, kIo, "this machine's name cannot be read");
  return name.data();
}

/// The meeting of all ranks, step by step.
class Meeting {
 public:
  Meeting(PeerStore& store, Communicator& comm, const PeerMemoryOptions& options)
      : store_(store), comm_(comm), options_(options) {}

  PeerMemoryReport run() {
    tell();
    status_step(comm_, "connect memory", [this] { store_.connect(); });
    choose();
    status_step(comm_, "clear memory", [this] { peer::drop_others(store_.vault(), chosen_ ? &*chosen_ : nullptr); });
    if (chosen_) refill();
    return std::move(report_);
  }

 private:
  /// All ranks know what all hold.
  void tell() {
    inventories_ = all_gather_step(comm_, "look into memory", [this] {
      return peer::take_inventory(store_.vault(), options_.host.empty() ? name_of_this_host() : options_.host);
    });
    status_step(comm_, "place copies", [this] { agree(); });
    for (const Inventory& inventory : inventories_) {
      for (const std::string& damage : inventory.damaged) {
        if (std::find(report_.lost.begin(), report_.lost.end(), damage) == report_.lost.end()) {
          report_.lost.push_back(damage);
        }
      }
    }
  }

  void agree() {
    std::vector<peer::MemberPlace> places;
    for (std::size_t rank = 0; rank < inventories_.size(); ++rank) {
      const Inventory& inventory = inventories_[rank];
      DCP_CHECK(inventory.job == inventories_[0].job, kState, "rank ", rank, "'s memory is of job '", inventory.job,
                "', rank 0's of '", inventories_[0].job, "'");
      places.push_back({inventory.vault, inventory.host});
    }
    store_.set_copies(peer::place_copies(places, options_.copies));
    store_.set_coordinator(comm_.coordinator());
    candidates_ = peer::find_candidates(inventories_);
  }

  /// The newest complete one, as the coordinator finds.
  void choose() {
    using Choice = std::pair<std::optional<std::uint64_t>, std::vector<std::string>>;
    auto [chosen, lost] = broadcast_step(comm_, "choose a generation", [this] {
      Choice choice;
      for (std::size_t i = 0; i < candidates_.size() && !choice.first; ++i) {
        const std::string missing = find_missing(candidates_[i]);
        if (missing.empty()) {
          choice.first = i;
        } else {
          choice.second.push_back(
              c10::str("generation ", candidates_[i].number, " (step ", candidates_[i].step, "): ", missing));
        }
      }
      return choice;
    });
    if (chosen) chosen_ = std::move(candidates_.at(*chosen));
    std::move(lost.begin(), lost.end(), std::back_inserter(report_.lost));
  }

  /// \returns Why the save cannot be loaded; empty if it can.
  std::string find_missing(const Candidate& candidate) {
    const std::string name(peer::kMetadataName);
    const auto found = candidate.files.find(name);
    if (found == candidate.files.end()) return "nobody holds " + name;
    DCP_CHECK(found->second.size <= kMostMetadataBytes, kCorruptData, name, " has ", found->second.size, " bytes");
    Bytes bytes(found->second.size);
    read(candidate.number, name, found->second, bytes);
    const std::vector<std::string> missing = peer::missing_in(candidate.files, peer::files_named_by(bytes));
    if (missing.empty()) return {};
    return c10::str("nobody holds '", missing.front(), "'",
                    missing.size() > 1 ? c10::str(" and ", missing.size() - 1, " more") : std::string());
  }

  /// From one of its holders. (By name alone another save's file could be found here.)
  void read(std::uint64_t number, const std::string& name, const HeldFile& file, MutableByteSpan out) {
    std::vector<int> others = file.holders;
    if (std::erase(others, store_.rank()) > 0) {
      const auto own = store_.vault().open(number, name);
      DCP_CHECK(own, kInternal, "'", name, "' of generation ", number, " has gone from this rank's memory");
      own->read_at(0, out);
    } else if (!out.empty()) {
      store_.read(others, number, name, 0, out);
    }
  }

  void refill() {
    const std::vector<Refill> refills = peer::plan_refill(*chosen_, inventories_, store_.copies(), comm_.coordinator());
    status_step(comm_, "fill memory", [&] {
      for (const Refill& refill : refills) {
        if (refill.to == store_.rank()) pull(refill);
      }
    });
    status_step(comm_, "drop surplus", [this] { peer::drop_surplus(store_.vault(), *chosen_, store_.rank()); });
    for (const Refill& refill : refills) {
      const HeldFile& file = chosen_->files.at(refill.name);
      report_.refilled.push_back(c10::str("'", refill.name, "' to rank ", refill.to));
      report_.refilled_bytes += static_cast<std::int64_t>(file.size);
    }
    report_.generation = {chosen_->number, chosen_->step, chosen_->save_id};
    store_.set_held({{chosen_->number, std::move(chosen_->files)}});
  }

  /// Copies a file from one of its holders into this rank's memory.
  void pull(const Refill& refill) {
    const HeldFile& file = chosen_->files.at(refill.name);
    const auto writer = store_.vault().create(chosen_->number, refill.name);
    std::uint32_t crc = 0;
    while (writer->size() < file.size) {
      comm_.throw_if_cancelled();
      const MutableByteSpan room = writer->room(std::min(file.size - writer->size(), peer::kPieceBytes));
      store_.read(refill.from, chosen_->number, refill.name, writer->size(), room);
      crc = crc32_of(room, crc);
      writer->advance(room.size());
    }
    DCP_CHECK(crc == peer::from_note(file.note).crc, kCorruptData, "'", refill.name, "' of generation ",
              chosen_->number, " was damaged on its way to rank ", refill.to);
    writer->seal(file.note);
  }

  PeerStore& store_;
  Communicator& comm_;
  const PeerMemoryOptions& options_;
  std::vector<Inventory> inventories_;  // by rank
  std::vector<Candidate> candidates_;   // the newest first, alike on all ranks
  std::optional<Candidate> chosen_;
  PeerMemoryReport report_;
};

}  // namespace

std::shared_ptr<PeerMemory> PeerMemory::attach(std::shared_ptr<MemoryVault> vault, const GroupRef& group,
                                               const PeerMemoryOptions& options) {
  DCP_CHECK(vault, kInvalidArgument, "peers' memory needs a vault");
  PeerLinkOptions link;
  link.deadline = options.deadline;
  link.name = options.communicator_options.name + "/memory";
  link.store = options.communicator_options.store;
  link.group_factory = options.communicator_options.group_factory;
  Communicator comm = group ? Communicator::create(group.get(), options.communicator_options) : Communicator::single();
  auto store = std::make_shared<peer::PeerStore>(std::move(vault), group, std::move(link));
  auto impl = std::make_unique<Impl>(store);
  impl->report = Meeting(*store, comm, options).run();
  impl->set_newest(impl->report.generation);
  return std::shared_ptr<PeerMemory>(new PeerMemory(std::move(impl)));
}

PeerMemory::PeerMemory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PeerMemory::~PeerMemory() = default;

int PeerMemory::rank() const { return impl_->store()->rank(); }
int PeerMemory::size() const { return impl_->store()->size(); }
const std::shared_ptr<MemoryVault>& PeerMemory::vault() const { return impl_->store()->shared_vault(); }
const PeerMemoryReport& PeerMemory::report() const { return impl_->report; }
std::optional<PeerGeneration> PeerMemory::newest() const { return impl_->newest(); }
const std::shared_ptr<FileSystem>& PeerMemory::file_system() const { return impl_->files(); }
std::string PeerMemory::directory_of(std::uint64_t generation) { return peer::directory_of(generation); }

}  // namespace dcp
