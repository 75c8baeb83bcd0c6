#include "torch_dcp/examples/train_run.h"

#include <chrono>

#include "torch_dcp/examples/rank_group.h"
#include "torch_dcp/examples/run_checkpoints.h"
#include "torch_dcp/examples/text_data.h"
#include "torch_dcp/examples/trainer.h"

namespace dcp::examples {
namespace {

/// Longer than the slowest step; a rank that was killed is noticed at once.
constexpr std::chrono::seconds kTimeout{120};

}  // namespace

void run_rank(const RunOptions& options, const LaunchEnvironment& environment,
              const std::function<void(const StepReport&)>& on_step) {
  RankGroup group(environment, kTimeout);
  const TextData text(options.text, options.sizes.context);
  Trainer trainer(text, options.sizes, options.sequences, options.seed, group);
  {
    RunCheckpoints checkpoints(options, group);
    StepReport report = checkpoints.start_or_resume(trainer);
    while (trainer.steps_done() < options.steps) {
      report.loss = trainer.step();
      report.step = trainer.steps_done();
      if (group.is_first()) on_step(report);
      checkpoints.save_if_due(trainer);
    }
  }
  group.leave();
}

}  // namespace dcp::examples
