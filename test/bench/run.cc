#include "test/bench/run.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>

#include "test/bench/contests.h"

namespace dcp::bench {

Report run(const Settings& settings, std::ostream& out) {
  std::filesystem::create_directories(settings.disk);
  if (!settings.memory.empty()) std::filesystem::create_directories(settings.memory);
  std::unique_ptr<PythonPeer> peer;
  if (!settings.peer_script.empty()) peer = std::make_unique<PythonPeer>(settings.peer_script);
  PythonPeer* const python = peer && peer->is_there() ? peer.get() : nullptr;
  Report report;
  report.note("PyTorch for Python", python ? nlohmann::json(python->version()) : nlohmann::json("none here: left out"));
  report.note("rounds", settings.rounds);
  report.note("threads", settings.threads);
  const auto measure = [&](const char* name, auto section) {
    if (!settings.sections.contains(name)) return;
    out << "measuring: " << name << std::endl;
    section(settings, python, report);
  };
  measure("large", measure_large);
  measure("small", measure_small);
  measure("slice", measure_slice);
  measure("planning", measure_planning);
  measure("metadata", measure_metadata);
  measure("scale", measure_scale);
  measure("memory", measure_peer_memory);
  report.print(out);
  if (!settings.json.empty()) {
    std::ofstream file(settings.json);
    file << report.json().dump(1) << "\n";
    if (!file.flush()) throw std::runtime_error("cannot write " + settings.json);
  }
  return report;
}

}  // namespace dcp::bench
