#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "test/bench/contests.h"
#include "test/bench/plan_layouts.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/metadata_pickle.h"
#include "torch_dcp/plan/default_save_planner.h"

namespace dcp::bench {
namespace {

double plan_ours(const std::vector<SavePlan>& offered, const std::vector<std::int64_t>& expected_chunks) {
  std::vector<SavePlan> plans = offered;
  DefaultSavePlanner planner;
  SavePlannerContext context;
  context.world_size = static_cast<int>(plans.size());
  const StateDict nothing;
  planner.set_up(nothing, context);
  std::optional<std::pair<std::vector<SavePlan>, Metadata>> planned;
  const double seconds = seconds_of([&] { planned = planner.create_global_plan(std::move(plans)); });
  std::vector<std::int64_t> chunks;
  for (const auto& entry : planned->second.state_dict_metadata) {
    chunks.push_back(static_cast<std::int64_t>(std::get<TensorStorageMetadata>(entry.second).chunks.size()));
  }
  if (chunks != expected_chunks) throw std::runtime_error("the global plan has other chunks than were offered");
  return seconds;
}

Times measure_ranks(const Settings& settings, std::int64_t ranks, Report& report) {
  std::vector<SavePlan> plans;
  const PlanLayout layout = sharded_layout(settings);
  for (std::int64_t rank = 0; rank < ranks; ++rank) plans.push_back(layout.make_plan(rank, ranks));
  std::vector<std::int64_t> chunks(static_cast<std::size_t>(settings.sharded), ranks);
  chunks.resize(static_cast<std::size_t>(settings.sharded + settings.replicated), 1);
  Contest contest("global plan of " + std::to_string(ranks) + " ranks");
  contest.add("torch_dcp", [&] { return plan_ours(plans, chunks); });
  contest.run(settings.rounds);
  report.add(contest, static_cast<double>(ranks * (settings.sharded + settings.replicated)), "item");
  return contest.times()[0];
}

/// Metadata of many keys, one chunk each.
Metadata make_metadata(std::int64_t keys) {
  Metadata metadata;
  OrderedMap<std::string, Path>& paths = metadata.planner_data.emplace();
  for (std::int64_t i = 0; i < keys; ++i) {
    const std::string layer = std::to_string(i / 16);
    const std::string part = "part" + std::to_string(i % 16);
    const std::string key = "model.layers." + layer + "." + part + ".weight";
    TensorStorageMetadata tensor;
    tensor.size = {1024, 64};
    tensor.chunks = {Box{{0, 0}, tensor.size}};
    metadata.state_dict_metadata.insert(key, std::move(tensor));
    paths.insert(key, {PathItem::dict_key("model"), PathItem::dict_key("layers." + layer + "." + part + ".weight")});
    StorageInfo info;
    info.relative_path = "__" + std::to_string(i % 8) + "_0.distcp";
    info.offset = i * 263'104;
    info.length = 263'104;
    metadata.storage_data.insert({key, Sizes{0, 0}, 0}, std::move(info));
  }
  metadata.version = "1.0.0";
  return metadata;
}

}  // namespace

void measure_planning(const Settings& settings, PythonPeer* python, Report& report) {
  const Times half = measure_ranks(settings, settings.ranks / 2, report);
  const Times all = measure_ranks(settings, settings.ranks, report);
  report.bound("global plan: time of twice the ranks", all.best() / half.best(), 2.2);
  if (!python) return;
  Times peer{"Python DCP", {}};
  for (int round = 0; round < settings.python_slow_rounds; ++round) {
    peer.seconds.push_back(python->seconds({{"do", "plan"},
                                            {"ranks", settings.ranks},
                                            {"sharded", settings.sharded},
                                            {"replicated", settings.replicated}}));
  }
  report.add(peer, "global plan of " + std::to_string(settings.ranks) + " ranks");
  report.ratio("global plan alone: Python DCP / torch_dcp", &peer, &all, 100);
}

void measure_metadata(const Settings& settings, PythonPeer* python, Report& report) {
  const Metadata metadata = make_metadata(settings.keys);
  Bytes bytes;
  std::optional<Metadata> decoded;
  const std::string name = "metadata of " + std::to_string(settings.keys) + " keys";
  Contest contest(name);
  contest.add("torch_dcp, encode", [&] { return seconds_of([&] { bytes = encode_metadata(metadata); }); });
  contest.add(
      "torch_dcp, decode", [&] { return seconds_of([&] { decoded = decode_metadata(bytes); }); },
      [&] { decoded.reset(); });
  contest.run(settings.rounds);
  if (!(decoded->storage_data.size() == metadata.storage_data.size())) {
    throw std::runtime_error("the metadata was not read as it was written");
  }
  report.add(contest, static_cast<double>(settings.keys), "key");
  report.note(name + ", bytes", bytes.size());
  report.bound(name + ": encode, seconds", contest.times()[0].best(), 1.0);
  report.bound(name + ": decode, seconds", contest.times()[1].best(), 2.0);
  if (!python) return;
  const std::string path = settings.disk + "/many_keys.metadata";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  Times dump{"Python, pickle.dumps", {}};
  Times load{"Python, pickle.loads", {}};
  for (int round = 0; round < settings.python_slow_rounds; ++round) {
    const nlohmann::json answer = python->ask({{"do", "metadata"}, {"path", path}});
    dump.seconds.push_back(answer.at("dump_seconds"));
    load.seconds.push_back(answer.at("load_seconds"));
  }
  report.add(dump, name);
  report.add(load, name);
  report.ratio(name + ": Python / torch_dcp, encode", &dump, &contest.times()[0], 1.0);
  report.ratio(name + ": Python / torch_dcp, decode", &load, &contest.times()[1], 1.0);
}

}  // namespace dcp::bench
