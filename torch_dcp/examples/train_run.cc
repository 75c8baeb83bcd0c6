#include "torch_dcp/examples/train_run.h"

#include <chrono>
#include <optional>
#include <stdexcept>

#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/examples/rank_group.h"
#include "torch_dcp/examples/run_folder.h"
#include "torch_dcp/examples/text_data.h"
#include "torch_dcp/examples/trainer.h"

namespace dcp::examples {
namespace {

/// Longer than the slowest step; a rank that was killed is noticed at once.
constexpr std::chrono::seconds kTimeout{120};

/// Loads what the first rank finds. All ranks have found it before any of them can save another.
void start_or_resume(Trainer& trainer, const RunOptions& options, const RankGroup& group) {
  std::string path;
  if (group.is_first()) {
    if (const auto newest = newest_checkpoint(options.folder)) path = newest->path;
  }
  path = group.tell_all(path);
  if (!options.resume) {
    if (path.empty()) return;
    throw std::runtime_error("'" + path + "' is of an earlier run: resume it, or train in another folder");
  }
  if (path.empty()) throw std::runtime_error("no complete checkpoint in '" + options.folder + "' to resume from");
  StateDict state = trainer.state();
  LoadOptions load_options;
  load_options.communicator = group.communicator();
  load(state, path, load_options);
  trainer.restore(state);
}

void save_step(const Trainer& trainer, const RunOptions& options, const RankGroup& group) {
  SaveOptions save_options;
  save_options.communicator = group.communicator();
  save(trainer.state(), checkpoint_path(options.folder, trainer.steps_done()), save_options);
}

}  // namespace

void run_rank(const RunOptions& options, const LaunchEnvironment& environment,
              const std::function<void(const StepReport&)>& on_step) {
  RankGroup group(environment, kTimeout);
  const TextData text(options.text, options.sizes.context);
  Trainer trainer(text, options.sizes, options.sequences, options.seed, group);
  start_or_resume(trainer, options, group);
  while (trainer.steps_done() < options.steps) {
    const double loss = trainer.step();
    const std::int64_t step = trainer.steps_done();
    if (group.is_first()) on_step({step, loss});
    const bool is_due = options.save_every > 0 && step % options.save_every == 0;
    if (is_due || step == options.steps) save_step(trainer, options, group);
  }
  group.leave();
}

}  // namespace dcp::examples
