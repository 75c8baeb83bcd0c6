#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "test/peer_memory/kill_cell.h"
#include "test/peer_memory/kill_trainer.h"
#include "test/support/child_process.h"

namespace dcp::test {

/// What a cell showed.
struct CellResult {
  std::string wrong = {};                ///< empty if nothing was
  std::int64_t longest_after_death = 0;  ///< ms until a survivor's call had returned or thrown
  std::int64_t step = 0;                 ///< that was there afterwards
};

/// A job of processes, a trainer for each rank and a memory server for each host, some of which die as a cell says.
///
/// To be made in a process without threads, for each cell another.
class KillJob {
 public:
  /// \param store_port  Of a store that outlives the job.
  /// \param name        Tells jobs apart in it.
  KillJob(const Cell& cell, std::uint16_t store_port, std::string name);
  ~KillJob();
  KillJob(const KillJob&) = delete;
  KillJob& operator=(const KillJob&) = delete;

  /// Step 1 and, if the cell is not of a save, step 2 are saved; the cell's death comes in a save of step 2, or in the
  /// recovery from a death before; those that live go on, with or without new processes for the others; what they find
  /// is compared; and they save and load step 3.
  CellResult run();

 private:
  struct Ends {
    Pipe orders;
    Pipe told;
  };

  void start_server(int host);
  void start_trainer(int slot);
  /// Kills what is still there of the victims among `slots`, and starts their servers anew.
  void bury(const std::vector<int>& slots);
  void start_missing();
  /// Which victims are lost before a recovery in which all of them die.
  std::vector<int> lost_before() const;

  void tell(int slot, const Order& order) { ends_[slot]->orders.write(to_line(order)); }
  void tell(const std::vector<int>& slots, const Order& order);
  void tell_meet(const std::vector<int>& slots);
  std::vector<Answer> answers(const std::vector<int>& slots);
  void require_all_ok(const std::vector<int>& slots, const std::string& doing);

  void begin_recovery();
  void wait_for_strike();
  void check_survivors(const std::vector<Answer>& told);
  void check_recovery(const std::vector<int>& slots);
  static void check_loaded(const std::vector<Answer>& told, std::int64_t step);
  static void check_loss(const std::vector<Answer>& told);

  Cell cell_;
  std::uint16_t store_port_;
  std::string name_;
  Strike* strike_;
  int meeting_ = 0;
  bool reopens_ = false;   // a server has died that its trainers have outlived
  bool is_saved_ = false;  // a survivor's save of step 2 has returned
  std::vector<int> all_;
  std::vector<int> survivors_;
  std::vector<std::string> sockets_;  // by host
  std::vector<std::unique_ptr<Child>> servers_;
  std::vector<std::unique_ptr<Ends>> ends_;  // by slot
  std::vector<std::unique_ptr<Child>> trainers_;
  CellResult result_;
};

}  // namespace dcp::test
