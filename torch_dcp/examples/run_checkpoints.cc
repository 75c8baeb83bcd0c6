#include "torch_dcp/examples/run_checkpoints.h"

#include <algorithm>
#include <iostream>
#include <stdexcept>
#include <string>

#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/checkpoint/save.h"
#include "torch_dcp/examples/run_folder.h"
#include "torch_dcp/examples/trainer.h"
#include "torch_dcp/memory/memory_client.h"
#include "torch_dcp/memory/memory_vault.h"
#include "torch_dcp/peer_memory/peer_memory.h"
#include "torch_dcp/peer_memory/tiered_storage.h"

namespace dcp::examples {
namespace {

/// How long a rank whose peers are gone still waits for files to be written.
constexpr std::chrono::seconds kCloseDeadline{10};
/// Ranks whose memories hold a copy of a rank's state, beside its own.
constexpr int kCopies = 1;

bool is_due(std::int64_t step, std::int64_t every) { return every > 0 && step % every == 0; }

}  // namespace

RunCheckpoints::RunCheckpoints(const RunOptions& options, const RankGroup& group)
    : options_(options), group_(group), begin_(std::chrono::steady_clock::now()) {
  if (options.memory_every > 0) join_memory();
}

RunCheckpoints::~RunCheckpoints() = default;

void RunCheckpoints::join_memory() {
  PeerMemoryOptions options;
  options.copies = std::min(kCopies, group_.size() - 1);
  options.communicator_options = group_.communicator_options();
  options.deadline = options.communicator_options.deadline;
  std::shared_ptr<MemoryVault> vault;
  if (options_.vaults.empty()) {
    vault = make_memory_vault({.job = kMemoryJob});
  } else {
    const auto rank = static_cast<std::size_t>(group_.rank());
    if (rank >= options_.vaults.size()) throw std::runtime_error("there is no --vault for this rank");
    vault = open_memory_vault(options_.vaults[rank], {.job = kMemoryJob});
    // Each server stands for a machine: copies are to lie on others.
    options.host = options_.vaults[rank];
  }
  memory_ = PeerMemory::attach(vault, group_.process_group(), options);

  TieredWriterOptions writer;
  writer.disk_every = options_.save_every;
  writer.folder = kFolderOfStep;
  writer.close_deadline = kCloseDeadline;
  writer.communicator_options = group_.communicator_options();
  writer_ = std::make_unique<TieredWriter>(memory_, group_.process_group(), options_.folder, writer);
}

StepReport RunCheckpoints::start_or_resume(Trainer& trainer) {
  // The first rank looks. All have loaded what it finds before any of them can save another.
  std::string place;
  if (group_.is_first()) {
    if (const auto newest = newest_checkpoint(options_.folder)) place = newest->path;
    if (memory_ && memory_->newest()) place = "the ranks' memory";
  }
  place = group_.tell_all(place);
  StepReport report;
  if (!options_.resume) {
    if (place.empty()) return report;
    throw std::runtime_error("'" + place + "' is of an earlier run: resume it, or train in another folder");
  }
  if (place.empty()) throw std::runtime_error("no complete checkpoint in '" + options_.folder + "' to resume from");

  TieredReader reader(memory_, options_.folder, {.folder = kFolderOfStep, .reader = {}});
  StateDict state = trainer.state();
  LoadOptions load_options;
  load_options.communicator = group_.communicator();
  load(state, reader, load_options);
  trainer.restore(state);
  report.resumed_from = trainer.steps_done();
  report.from_memory = reader.source()->is_memory;
  report.load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  return report;
}

void RunCheckpoints::save_if_due(const Trainer& trainer) {
  const std::int64_t step = trainer.steps_done();
  const bool is_last = step == options_.steps;
  const bool is_due_for_files = is_due(step, options_.save_every);
  if (!writer_) {
    if (is_last || is_due_for_files) save_to_files(trainer);
    return;
  }
  if (is_due_for_files || is_due(step, options_.memory_every)) save_to_memory(trainer);
  if (!is_last) return;
  writer_->wait_for_flush();
  if (!is_due_for_files) save_to_files(trainer);
}

void RunCheckpoints::save_to_memory(const Trainer& trainer) {
  writer_->set_step(trainer.steps_done());
  SaveOptions options;
  options.communicator = group_.communicator();
  save(trainer.state(), *writer_, options);
  for (const std::string& warning : writer_->warnings()) {
    std::cerr << "rank " << group_.rank() << ": " << warning << std::endl;
  }
}

void RunCheckpoints::save_to_files(const Trainer& trainer) {
  SaveOptions options;
  options.communicator = group_.communicator();
  save(trainer.state(), checkpoint_path(options_.folder, trainer.steps_done()), options);
}

}  // namespace dcp::examples
