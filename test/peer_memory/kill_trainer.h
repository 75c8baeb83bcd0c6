#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "test/peer_memory/kill_cell.h"
#include "test/support/child_process.h"
#include "torch_dcp/comm/communicator.h"
#include "torch_dcp/memory/memory_vault.h"
#include "torch_dcp/peer_memory/peer_memory.h"

namespace dcp::test {

/// What a trainer is told to do, as one line of a pipe.
struct Order {
  std::string verb = {};  ///< "meet", "save", "load"
  int meeting = 0;        ///< "meet": its number
  int rank = 0;
  int size = 0;
  bool reopens = false;          ///< "meet": the memory server is another
  std::int64_t step = 0;         ///< "save"
  std::int64_t deadline_ms = 0;  ///< "meet": of the link
};
std::string to_line(const Order& order);
Order order_of(const std::string& line);

/// How that ended.
struct Answer {
  std::string outcome = {};     ///< "ok", or the error; of one that all ranks share "CheckpointError STEP: TEXT"
  std::int64_t elapsed_ms = 0;  ///< since the strike
  std::int64_t held = 0;        ///< "meet": the newest step whose `.metadata` this rank's memory held before
  std::int64_t step = 0;        ///< "meet": that the ranks found complete; "load": that was loaded, bit by bit
  std::string said = {};        ///< "load": where from; "meet": what was lost
};
std::string to_line(const Answer& answer);
Answer answer_of(const std::string& line);

/// One rank: a process that does what it is told, and dies when it comes to its cell's phase.
class Trainer {
 public:
  Trainer(const Cell& cell, Strike& strike, int slot, c10::intrusive_ptr<c10d::Store> store, std::string server);

  /// Until the process ends.
  void run(const Pipe& orders, const Pipe& told);

 private:
  Answer obey(const Order& order);
  void meet(const Order& order, Answer& answer);
  void save(const Order& order);
  void load(Answer& answer);
  CommunicatorOptions communicator_options(bool is_of_attach);
  std::int64_t newest_held() const;

  void set_part(const std::string& part);
  void on_vault_call(const std::string& call, const std::string& name);
  void on_vault_call_in_save(const std::string& call, const std::string& name);
  void on_vault_call_in_attach(const std::string& call, const std::string& name);
  /// Each event comes here.
  void reach(const std::string& event);
  [[noreturn]] static void wait_for_the_end();
  void strike();

  const Cell& cell_;
  Strike& strike_;
  int slot_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::string server_;
  int rank_ = 0;
  int size_ = 0;
  std::mutex mutex_;  // of the four below
  std::string part_;
  int lists_ = 0;
  int groups_ = 0;
  std::map<std::string, int> rooms_;  // that were asked for, by file
  std::shared_ptr<MemoryVault> vault_;
  std::shared_ptr<PeerMemory> memory_;
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace dcp::test
