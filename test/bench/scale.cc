#include <cmath>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "test/bench/contests.h"
#include "test/bench/peak_memory.h"
#include "test/bench/plan_layouts.h"
#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/format/metadata_pickle.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/plan/validate.h"
#include "torch_dcp/plan/wire.h"

namespace dcp::bench {
namespace {

/// The metadata of larger jobs is planned, but not written: the pickle alone would take what memory is left.
constexpr std::int64_t kMostMetadataRanks = 2048;

/// One layout at one number of ranks: what the coordinator does with the plans of all, phase by phase.
class Scale {
 public:
  Scale(const PlanLayout& layout, std::int64_t ranks, Report& report)
      : layout_(layout), ranks_(ranks), report_(report) {}

  double items() const { return static_cast<double>(ranks_ * layout_.items_per_rank); }
  std::string title() const { return "planning, " + layout_.name + ", " + std::to_string(ranks_) + " ranks"; }
  /// Seconds of each phase.
  const std::map<std::string, double>& seconds() const { return seconds_; }

  void run() {
    std::vector<Bytes> offered;
    std::int64_t offered_bytes = 0;
    double encode_seconds = 0;
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      const SavePlan plan = layout_.make_plan(rank, ranks_);
      encode_seconds += seconds_of([&] { offered.push_back(to_bytes(plan)); });
      offered_bytes += static_cast<std::int64_t>(offered.back().size());
    }
    add("ranks encode", encode_seconds);
    std::optional<Metadata> metadata;
    const auto peak = peak_memory_of([&] { metadata = plan(std::move(offered)); });
    add("validate again", seconds_of([&] { validate_global_plan(*metadata, true); }));
    report_.note(title() + ", bytes sent per item", static_cast<double>(offered_bytes) / items());
    if (peak) report_.note(title() + ", coordinator's memory per item", static_cast<double>(*peak) / items());
    if (ranks_ <= kMostMetadataRanks) store(*std::move(metadata));
  }

 private:
  void add(const std::string& phase, double seconds) {
    seconds_[phase] = seconds;
    report_.add(Times{phase, {seconds}}, title(), items(), "item");
  }

  Metadata plan(std::vector<Bytes> offered) {
    std::vector<SavePlan> plans;
    plans.reserve(offered.size());
    add("coordinator decodes", seconds_of([&] {
          SavePlanDecoder decoder;
          for (Bytes& bytes : offered) plans.push_back(decoder.decode(std::exchange(bytes, {})));
        }));
    DefaultSavePlanner planner;
    SavePlannerContext context;
    context.world_size = static_cast<int>(ranks_);
    const StateDict nothing;
    planner.set_up(nothing, context);
    std::optional<std::pair<std::vector<SavePlan>, Metadata>> planned;
    add("coordinator plans", seconds_of([&] { planned = planner.create_global_plan(std::move(plans)); }));
    add("coordinator encodes", seconds_of([&] {
          for (const SavePlan& plan : planned->first) answered_bytes_ += to_bytes(plan).size();
        }));
    if (answered_bytes_ == 0) throw std::runtime_error("the global plan is empty");
    return std::move(planned->second);
  }

  void store(Metadata metadata) {
    add_storage(metadata, ranks_);
    Bytes bytes;
    add("metadata encode", seconds_of([&] { bytes = encode_metadata(metadata); }));
    const std::size_t chunk_count = metadata.storage_data.size();
    metadata = {};
    std::optional<Metadata> decoded;
    add("metadata decode", seconds_of([&] { decoded = decode_metadata(bytes); }));
    if (decoded->storage_data.size() != chunk_count) {
      throw std::runtime_error("the metadata was not read as it was written");
    }
    report_.note(title() + ", metadata bytes per chunk",
                 static_cast<double>(bytes.size()) / static_cast<double>(chunk_count));
  }

  const PlanLayout& layout_;
  std::int64_t ranks_;
  Report& report_;
  std::map<std::string, double> seconds_;
  std::size_t answered_bytes_ = 0;
};

void compare_with_python(const Scale& ours, const std::string& layout, std::int64_t ranks, const Settings& settings,
                         PythonPeer& python, Report& report) {
  if (layout != "sharded" || ranks > settings.ranks) return;
  const nlohmann::json answer = python.ask(
      {{"do", "plan"}, {"ranks", ranks}, {"sharded", settings.sharded}, {"replicated", settings.replicated}});
  const double python_seconds = answer.at("load_seconds").get<double>() + answer.at("seconds").get<double>() +
                                answer.at("dump_seconds").get<double>();
  report.add(Times{"Python DCP, the coordinator's three", {python_seconds}}, ours.title(), ours.items(), "item");
  report.note(ours.title() + ", bytes sent per item, Python", answer.at("bytes").get<double>() / ours.items());
  const double seconds = ours.seconds().at("coordinator decodes") + ours.seconds().at("coordinator plans") +
                         ours.seconds().at("coordinator encodes");
  const double ratio = python_seconds / seconds;
  // What is to be reached is said of the largest job that Python is asked for.
  report.ratio(ours.title() + ": Python DCP / torch_dcp", ratio, ratio, ranks == settings.ranks ? 100 : 1);
}

}  // namespace

void measure_scale(const Settings& settings, PythonPeer* python, Report& report) {
  for (const PlanLayout& layout : {sharded_layout(settings), flat_layout(), expert_layout()}) {
    std::optional<std::pair<std::int64_t, double>> last;
    for (const std::int64_t ranks : settings.scale_ranks) {
      Scale scale(layout, ranks, report);
      scale.run();
      if (python) compare_with_python(scale, layout.name, ranks, settings, *python, report);
      const double seconds = scale.seconds().at("coordinator plans");
      if (last) {
        const double doublings = std::log2(static_cast<double>(ranks) / static_cast<double>(last->first));
        report.bound(scale.title() + ": time of twice the ranks",
                     std::exp2(std::log2(seconds / last->second) / doublings), 2.2);
      }
      last = {ranks, seconds};
    }
  }
}

}  // namespace dcp::bench
