#include "torch_dcp/examples/memory_demonstration.h"

#include <cstdio>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "torch_dcp/examples/checked_jobs.h"
#include "torch_dcp/examples/local_job.h"
#include "torch_dcp/examples/memory_machines.h"

namespace dcp::examples {
namespace {

/// An interrupted run.
struct Recovery {
  std::string folder;
  LocalJobResult before;
  LocalJobResult after;

  std::int64_t killed_at_step() const { return before.losses.rbegin()->first; }
  std::int64_t resumed_from() const { return after.last_report.resumed_from; }
  std::int64_t steps_lost() const { return killed_at_step() - resumed_from(); }

  static double seconds(LocalJobResult::Clock::duration time) { return std::chrono::duration<double>(time).count(); }
  /// From the kill until all ranks had ended.
  double seconds_to_notice() const { return seconds(before.ended_at - *before.killed_at); }
  /// From the kill until the job was as far as it had been.
  double seconds_lost() const { return seconds(after.told_at.at(killed_at_step()) - *before.killed_at); }
};

class MemoryDemonstration {
 public:
  MemoryDemonstration(const RunOptions& run, const LostMachine& lost, std::ostream& out)
      : run_(run), lost_(lost), out_(out), kill_{lost.killed, step_to_kill_after(run)} {
    if (lost.ranks < 2 || lost.killed < 0 || lost.killed >= lost.ranks) {
      throw std::runtime_error("rank " + std::to_string(lost.killed) + " of " + std::to_string(lost.ranks) +
                               " cannot be killed and others be left");
    }
  }

  bool run() {
    RunOptions whole = run_;
    whole.memory_every = 0;
    whole.folder = run_.folder + "/uninterrupted";
    const LocalJobResult reference = run_to_the_end(whole, {1, "uninterrupted", {}}, out_);

    RunOptions with_files = run_;
    with_files.memory_every = 0;
    const Recovery files = recover(with_files, "files");
    const Recovery memory = recover(run_, "memory");
    if (files.after.last_report.from_memory || !memory.after.last_report.from_memory) {
      throw std::runtime_error("the run with memory was resumed from files, or the other from memory");
    }
    print_table(files, memory);
    return compare({whole.folder, reference}, files) && compare({whole.folder, reference}, memory);
  }

 private:
  Recovery recover(RunOptions run, const std::string& name) {
    run.folder = run_.folder + "/" + name;
    std::optional<MemoryMachines> machines;
    if (run.memory_every > 0) run.vaults = machines.emplace(lost_.ranks).vaults();
    Recovery recovery;
    recovery.folder = run.folder;
    recovery.before = run_until_killed(run, {lost_.ranks, "with " + name + ", interrupted", kill_}, out_);
    if (machines) {
      lost_.is_replaced ? machines->replace(lost_.killed) : machines->lose(lost_.killed);
      run.vaults = machines->vaults();
    }
    run.resume = true;
    recovery.after = run_to_the_end(run, {ranks_after(), "with " + name + ", resumed", {}}, out_);
    return recovery;
  }

  int ranks_after() const { return lost_.is_replaced ? lost_.ranks : lost_.ranks - 1; }

  void print_table(const Recovery& files, const Recovery& memory) const {
    out_ << "rank " << kill_.rank << " of " << lost_.ranks << " and its machine's memory were lost after step "
         << kill_.after_step << "; the job went on with " << ranks_after() << " ranks"
         << (lost_.is_replaced ? ", one of them on an empty machine" : "") << "\n"
         << "                   saved every  resumed from  steps lost  noticed after  loaded in  time lost\n";
    print_row("files alone", run_.save_every, files);
    print_row("memory and files", run_.memory_every, memory);
    out_.flush();
  }

  void print_row(const char* name, std::int64_t every, const Recovery& recovery) const {
    char row[160];
    std::snprintf(row, sizeof row, "%-17s %12lld  %12lld  %10lld  %11.2f s  %7.3f s  %7.2f s\n", name,
                  static_cast<long long>(every), static_cast<long long>(recovery.resumed_from()),
                  static_cast<long long>(recovery.steps_lost()), recovery.seconds_to_notice(),
                  recovery.after.last_report.load_seconds, recovery.seconds_lost());
    out_ << row;
  }

  bool compare(const WholeRun& whole, const Recovery& broken) const {
    const RunComparison comparison = compare_runs(whole, {broken.folder, broken.before, broken.after}, run_.steps);
    if (!comparison.is_equal()) {
      out_ << "not equal: uninterrupted run and '" << broken.folder << "': " << comparison.difference << std::endl;
      return false;
    }
    out_ << "equal: " << comparison.losses << " losses and " << comparison.tensors << " tensors of '" << broken.folder
         << "' are bit for bit those of the uninterrupted run" << std::endl;
    return true;
  }

  const RunOptions& run_;
  const LostMachine lost_;
  std::ostream& out_;
  const Kill kill_;
};

}  // namespace

bool demonstrate_memory(const RunOptions& run, const LostMachine& lost, std::ostream& out) {
  return MemoryDemonstration(run, lost, out).run();
}

}  // namespace dcp::examples
