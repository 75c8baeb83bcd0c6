#include <stdexcept>
#include <string>

#include "test/bench/contests.h"
#include "test/bench/raw_io.h"
#include "test/bench/subjects.h"

namespace dcp::bench {
namespace {

constexpr double kOfPython = 50;

void measure_place(const Settings& settings, PythonPeer* python, Report& report, const std::string& folder,
                   const std::string& where, bool is_durable) {
  const StateDict state = make_state(settings.small_count, settings.small_bytes, 3);
  StateDict loaded = make_state(settings.small_count, settings.small_bytes, 4);
  // One file: the threads of a load share it.
  const SaveForm form{is_durable, true, 1};
  const auto python_save = [&] {
    return python->seconds({{"do", "save"}, {"path", folder + "/python"}, {"durable", is_durable}, {"threads", 1}});
  };

  Contest saves("small tensors, save, " + where);
  const auto clear = [&folder] { remove_and_settle(folder); };
  saves.add("torch_dcp", [&] { return save_ours(state, folder + "/ours", form); }, clear);
  if (python) saves.add("Python DCP", python_save, clear);
  saves.add("LibTorch archive", [&] { return save_libtorch(state, folder + "/libtorch/state.pt", is_durable); }, clear);
  saves.run(settings.rounds);
  report.add(saves, static_cast<double>(settings.small_count), "tensor");
  report.ratio("small tensors, " + where + ": Python DCP / torch_dcp, save", saves.find("Python DCP"),
               saves.find("torch_dcp"), kOfPython);

  clear();
  save_ours(state, folder + "/ours", form);
  save_libtorch(state, folder + "/libtorch/state.pt", is_durable);
  if (python) python_save();
  Contest loads("small tensors, warm load, " + where);
  loads.add("torch_dcp", [&] { return load_ours(loaded, folder + "/ours", true, 1); });
  if (python) {
    loads.add("Python DCP", [&] { return python->seconds({{"do", "load"}, {"path", folder + "/python"}}); });
  }
  loads.add("LibTorch archive", [&] { return load_libtorch(loaded, folder + "/libtorch/state.pt"); });
  loads.run(settings.rounds);
  report.add(loads, static_cast<double>(settings.small_count), "tensor");
  report.ratio("small tensors, " + where + ": Python DCP / torch_dcp, load", loads.find("Python DCP"),
               loads.find("torch_dcp"), kOfPython);
  load_ours(loaded, folder + "/ours", true, 1);
  if (!have_equal_bytes(state, loaded)) throw std::runtime_error("what was loaded is not what was saved");
  clear();
}

}  // namespace

void measure_small(const Settings& settings, PythonPeer* python, Report& report) {
  if (python) {
    python->ask({{"do", "make"}, {"count", settings.small_count}, {"bytes_each", settings.small_bytes}});
  }
  measure_place(settings, python, report, settings.disk + "/small", "disk, durable", true);
  if (!settings.memory.empty()) {
    measure_place(settings, python, report, settings.memory + "/small", "memory file system", false);
  }
  if (python) python->ask({{"do", "drop"}});
}

}  // namespace dcp::bench
