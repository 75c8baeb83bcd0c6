#include "torch_dcp/peer_memory/peer_memory.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "test/bench/contests.h"
#include "test/bench/other_process.h"
#include "test/bench/rank_threads.h"
#include "test/bench/raw_io.h"
#include "test/bench/subjects.h"
#include "test/memory/running_server.h"
#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/checkpoint/save.h"
#include "torch_dcp/memory/memory_vault.h"
#include "torch_dcp/peer_memory/process_group_storage.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/filesystem_writer.h"

namespace dcp::bench {
namespace {

constexpr int kCopies = 1;
/// A recovery from memory against a cold load from disk, on one machine.
constexpr double kAgainstCold = 2.0;
/// Memory that is used against what must be held.
constexpr double kOfMemory = 1.05;

using Vaults = std::vector<std::shared_ptr<MemoryVault>>;

/// Tensors that each rank has of its own, under a key of its own.
class RankStates {
 public:
  RankStates(const Settings& settings, std::uint64_t seed) {
    const std::int64_t each = settings.peer_bytes / settings.peer_ranks / settings.peer_count;
    for (int rank = 0; rank < settings.peer_ranks; ++rank) {
      flat_.push_back(make_state(settings.peer_count, each, seed + static_cast<std::uint64_t>(rank)));
    }
  }

  StateDict of(int rank) const { return {{"rank" + std::to_string(rank), flat_.at(rank)}}; }
  void clear() {
    for (StateDict& state : flat_) {
      for (const MutableByteSpan part : mutable_parts_of(state)) std::memset(part.data(), 0, part.size());
    }
  }

  bool operator==(const RankStates& other) const {
    for (std::size_t rank = 0; rank < flat_.size(); ++rank) {
      if (!have_equal_bytes(flat_[rank], other.flat_[rank])) return false;
    }
    return true;
  }

 private:
  std::vector<StateDict> flat_;
};

/// A job whose ranks save into memory.
class MemoryJob {
 public:
  MemoryJob(const RankThreads& ranks, Vaults vaults)
      : ranks_(ranks), vaults_(std::move(vaults)), members_(vaults_.size()) {
    attach();
  }

  double attach() {
    return ranks_.run([&](int rank) {
      PeerMemoryOptions options;
      options.copies = kCopies;
      options.host = "machine " + std::to_string(rank);
      options.communicator_options = ranks_.communicator_options();
      members_[rank].memory = PeerMemory::attach(vaults_[rank], ranks_.group(rank), options);
      members_[rank].communicator = ranks_.communicator(rank);
    });
  }

  double save(const RankStates& states) {
    return ranks_.run([&](int rank) {
      ProcessGroupStorageWriter writer(members_[rank].memory);
      SaveOptions options;
      options.communicator = members_[rank].communicator;
      dcp::save(states.of(rank), writer, options);
    });
  }

  double load(const RankStates& states) {
    return ranks_.run([&](int rank) {
      StateDict state = states.of(rank);
      ProcessGroupStorageReader reader(members_[rank].memory);
      LoadOptions options;
      options.communicator = members_[rank].communicator;
      dcp::load(state, reader, options);
    });
  }

  /// A rank's machine is lost; another takes its place, with nothing in its memory.
  void lose(int rank, const std::shared_ptr<MemoryVault>& empty) {
    leave();
    vaults_[rank] = empty;
  }
  void leave() {
    for (Member& member : members_) member = {};
  }

  double used_bytes() const {
    double bytes = 0;
    for (const auto& vault : vaults_) bytes += static_cast<double>(vault->use().used_bytes);
    return bytes;
  }

 private:
  struct Member {
    std::shared_ptr<PeerMemory> memory;
    std::shared_ptr<Communicator> communicator;
  };

  const RankThreads& ranks_;
  Vaults vaults_;
  std::vector<Member> members_;
};

class PeerMemoryBench {
 public:
  PeerMemoryBench(const Settings& settings, Report& report)
      : settings_(settings),
        report_(report),
        other_(bytes()),
        ranks_(settings.peer_ranks),
        saved_(settings, 1),
        loaded_(settings, 1000),
        memory_(ranks_, own_vaults()) {}

  void run() {
    measure_use();
    measure_saves();
    measure_recovery();
  }

 private:
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(settings_.peer_bytes); }
  std::uint64_t part() const { return bytes() / static_cast<std::uint64_t>(settings_.peer_ranks); }
  /// Two generations and the one that is being written, of the own part and the copies.
  std::uint64_t budget() const { return 3 * (1 + kCopies) * part() + (std::uint64_t{64} << 20); }

  std::shared_ptr<MemoryVault> own_vault() const {
    MemoryVaultOptions options;
    options.budget_bytes = budget();
    return make_memory_vault(options);
  }
  Vaults own_vaults() const {
    Vaults vaults;
    for (int rank = 0; rank < settings_.peer_ranks; ++rank) vaults.push_back(own_vault());
    return vaults;
  }

  void measure_use() {
    const double must = (1 + kCopies) * static_cast<double>(bytes());
    memory_.save(saved_);
    report_.bound("memory of one checkpoint / (1 + copies) of the state", memory_.used_bytes() / must, kOfMemory);
    memory_.save(saved_);
    report_.bound("memory of the two that are kept / (1 + copies) of two states", memory_.used_bytes() / must / 2,
                  kOfMemory);
  }

  void measure_saves() {
    std::vector<std::unique_ptr<test::RunningServer>> servers;
    Vaults clients;
    for (int rank = 0; rank < settings_.peer_ranks; ++rank) {
      servers.push_back(std::make_unique<test::RunningServer>("default", budget()));
      clients.push_back(servers.back()->connect());
    }
    MemoryJob with_servers(ranks_, std::move(clients));
    std::vector<at::Tensor> out;
    std::vector<at::Tensor> in;
    for (int rank = 0; rank < settings_.peer_ranks; ++rank) {
      for (auto* list : {&out, &in}) list->push_back(at::full({static_cast<std::int64_t>(part())}, rank, at::kByte));
    }

    Contest contest("checkpoint into the ranks' memory, one copy with another rank");
    contest.add("torch_dcp, trainers' memory", [&] { return memory_.save(saved_); });
    contest.add("torch_dcp, memory servers", [&] { return with_servers.save(saved_); });
    contest.add("Gloo send, each to the next", [&] { return send_round(out, in); });
    if (other_.can_be_read()) {
      contest.add("copy from another process", [&] {
        return ranks_.run(
            [&](int rank) { other_.read(part() * static_cast<std::uint64_t>(rank), bytes_of(in[rank])); });
      });
    } else {
      report_.note("copy from another process", "not allowed here: left out");
    }
    contest.run(settings_.rounds);
    report_.add(contest, static_cast<double>(bytes()), "B");
    for (const char* limit : {"Gloo send, each to the next", "copy from another process"}) {
      for (const char* save : {"torch_dcp, trainers' memory", "torch_dcp, memory servers"}) {
        note_rate("save", contest, save, limit);
      }
    }
  }

  static MutableByteSpan bytes_of(const at::Tensor& tensor) {
    return {static_cast<std::uint8_t*>(tensor.mutable_data_ptr()), tensor.nbytes()};
  }

  double send_round(std::vector<at::Tensor>& out, std::vector<at::Tensor>& in) const {
    const int count = ranks_.count();
    return ranks_.run([&](int rank) {
      std::vector<at::Tensor> mine{out[rank]};
      std::vector<at::Tensor> other{in[rank]};
      const auto receiving = ranks_.group(rank)->recv(other, (rank + count - 1) % count, 1);
      ranks_.group(rank)->send(mine, (rank + 1) % count, 1)->wait();
      receiving->wait();
    });
  }

  /// The rate of one against another's, which is no target: it does less, or does not lose what a machine had.
  void note_rate(const std::string& of_what, const Contest& contest, const std::string& name,
                 const std::string& other) {
    const Times* mine = contest.find(name);
    const Times* others = contest.find(other);
    if (!mine || !others) return;
    report_.note("rate of a " + of_what + ": " + name + " / " + other,
                 {{"best", others->best() / mine->best()}, {"median", others->median() / mine->median()}});
  }

  void measure_recovery() {
    const std::string folder = settings_.disk + "/peer_memory";
    ranks_.run([&](int rank) {
      FileSystemWriter writer(folder);
      SaveOptions options;
      options.communicator = ranks_.communicator(rank);
      save(saved_.of(rank), writer, options);
    });
    Times refilling{"of the first: until memory is whole", {}};
    Contest contest("a state comes back after a rank was lost");
    contest.add(
        "ranks' memory, the lost one's empty", [&] { return recover(&refilling); },
        [&] { memory_.lose(ranks_.count() - 1, own_vault()); });
    contest.add("ranks' memory, all of it there", [&] { return recover(); }, [&] { memory_.leave(); });
    contest.add("files, cold", [&] { return load_files(folder); }, [&] { drop_from_cache(folder); });
    contest.add("files, warm", [&] { return load_files(folder); });
    contest.run(settings_.rounds);
    report_.add(contest, static_cast<double>(bytes()), "B");
    refilling.seconds.erase(refilling.seconds.begin());  // of the run that does not count
    report_.add(refilling, contest.name());
    const Times* lost = contest.find("ranks' memory, the lost one's empty");
    report_.ratio("recovery: files, cold / memory of which one rank's was lost", contest.find("files, cold"), lost,
                  kAgainstCold);
    report_.ratio("recovery: files, cold / memory that is all there", contest.find("files, cold"),
                  contest.find("ranks' memory, all of it there"), kAgainstCold);
    note_rate("load", contest, "ranks' memory, the lost one's empty", "files, warm");
    note_rate("load", contest, "ranks' memory, all of it there", "files, warm");
    check_loaded();
    remove_and_settle(folder);
  }

  /// \param refilling  Gets the part of the time after which the ranks have agreed and all copies are there again.
  double recover(Times* refilling = nullptr) {
    const double attaching = memory_.attach();
    if (refilling) refilling->seconds.push_back(attaching);
    return attaching + memory_.load(cleared());
  }

  double load_files(const std::string& folder) {
    const RankStates& states = cleared();
    return ranks_.run([&](int rank) {
      StateDict state = states.of(rank);
      FileSystemReader reader(folder);
      LoadOptions options;
      options.communicator = ranks_.communicator(rank);
      load(state, reader, options);
    });
  }

  /// Where loads go. What an earlier one has brought is checked first.
  const RankStates& cleared() {
    if (has_loaded_) check_loaded();
    has_loaded_ = true;
    loaded_.clear();
    return loaded_;
  }

  void check_loaded() const {
    if (!(loaded_ == saved_)) throw std::runtime_error("a load brought other bytes than were saved");
  }

  const Settings& settings_;
  Report& report_;
  OtherProcess other_;
  RankThreads ranks_;
  RankStates saved_;
  RankStates loaded_;
  MemoryJob memory_;
  bool has_loaded_ = false;
};

}  // namespace

void measure_peer_memory(const Settings& settings, PythonPeer*, Report& report) {
  PeerMemoryBench(settings, report).run();
}

}  // namespace dcp::bench
