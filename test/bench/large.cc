#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "test/bench/contests.h"
#include "test/bench/raw_io.h"
#include "test/bench/subjects.h"

namespace dcp::bench {
namespace {

constexpr double kOfLimit = 0.90;

/// The fastest of several contestants, by its best run; null if none is there.
const Times* fastest(const Contest& contest, std::initializer_list<const char*> names) {
  const Times* best = nullptr;
  for (const char* name : names) {
    const Times* times = contest.find(name);
    if (times && (!best || times->best() < best->best())) best = times;
  }
  return best;
}

/// All that happens to one large state.
class Large {
 public:
  Large(const Settings& settings, PythonPeer* python, Report& report)
      : settings_(settings),
        python_(python),
        report_(report),
        state_(make_state(settings.large_count, settings.large_bytes / settings.large_count, 1)),
        loaded_(make_state(settings.large_count, settings.large_bytes / settings.large_count, 2)) {
    if (python_) {
      python_->ask({{"do", "make"},
                    {"count", settings.large_count},
                    {"bytes_each", settings.large_bytes / settings.large_count}});
    }
  }

  void run() {
    measure_processor();
    const std::string disk = settings_.disk + "/large";
    measure_durable(disk);
    measure_cached(disk, "page cache", 1.3);
    measure_loads(disk, "disk", true);
    remove_and_settle(disk);
    if (settings_.memory.empty()) return;
    const std::string memory = settings_.memory + "/large";
    measure_cached(memory, "memory file system", 2.0);
    measure_loads(memory, "memory file system", false);
    remove_and_settle(memory);
  }

 private:
  double bytes() const { return static_cast<double>(settings_.large_bytes); }

  void finish(Contest& contest) {
    contest.run(settings_.rounds);
    report_.add(contest, bytes(), "B");
  }

  void measure_processor() {
    const std::vector<ByteSpan> from = parts_of(state_);
    const std::vector<MutableByteSpan> to = mutable_parts_of(loaded_);
    Contest contest("large tensors, processor");
    contest.add("memcpy", [&] { return raw_copy(from, to, settings_.threads); });
    contest.add("CRC-32", [&] { return raw_crc32(from, settings_.threads); });
    finish(contest);
    crc_best_ = contest.find("CRC-32")->best();
    crc_median_ = contest.find("CRC-32")->median();
  }

  /// Adds a save contestant that begins with an empty folder and an idle medium.
  template <typename Save>
  void add_save(Contest& contest, const std::string& name, const std::string& folder, Save save) {
    contest.add(name, std::move(save), [folder] { remove_and_settle(folder); });
  }

  void add_savers(Contest& contest, const std::string& folder, bool is_durable) {
    const std::string ours = folder + "/ours";
    for (const bool checksums : {true, false}) {
      add_save(contest, checksums ? "torch_dcp" : "torch_dcp, no checksums", folder,
               [this, ours, is_durable, checksums] {
                 return save_ours(state_, ours, {is_durable, checksums, settings_.threads});
               });
    }
    if (python_) {
      add_save(contest, "Python DCP", folder, [this, folder, is_durable] {
        return python_->seconds(
            {{"do", "save"}, {"path", folder + "/python"}, {"durable", is_durable}, {"threads", settings_.threads}});
      });
    }
    add_save(contest, "LibTorch archive", folder,
             [this, folder, is_durable] { return save_libtorch(state_, folder + "/libtorch/state.pt", is_durable); });
  }

  void add_raw(Contest& contest, const std::string& name, const std::string& folder, RawWrite how) {
    add_save(contest, name, folder,
             [this, folder, how] { return raw_write(folder + "/raw", parts_of(state_), settings_.threads, how); });
  }

  void measure_durable(const std::string& folder) {
    Contest contest("large tensors, durable save");
    add_raw(contest, "raw write + fsync", folder, RawWrite::kSynced);
    add_raw(contest, "raw early write-back", folder, RawWrite::kEarly);
    add_raw(contest, "raw early, allocated", folder, RawWrite::kAllocatedEarly);
    if (has_direct_writes(folder)) {
      add_raw(contest, "raw O_DIRECT", folder, RawWrite::kDirect);
      add_raw(contest, "raw O_DIRECT, allocated", folder, RawWrite::kAllocatedDirect);
    }
    add_savers(contest, folder, true);
    finish(contest);
    const Times* ours = contest.find("torch_dcp");
    const Times* limit = fastest(contest, {"raw write + fsync", "raw early write-back", "raw early, allocated",
                                           "raw O_DIRECT", "raw O_DIRECT, allocated"});
    report_.ratio("durable save: best raw (" + limit->name + ") / torch_dcp", limit, ours, kOfLimit);
    report_.ratio("durable save: Python DCP / torch_dcp", contest.find("Python DCP"), ours, 1.3);
    report_.ratio("durable save: LibTorch / torch_dcp", contest.find("LibTorch archive"), ours, 1.0);
    report_.ratio("durable save: checksums off / on", contest.find("torch_dcp, no checksums"), ours, 1 / 1.1);
  }

  /// A contest whose limit is `raw`: without checksums it is that, with them the two times one after the other.
  void add_ratios(const Contest& contest, const std::string& what, double of_python) {
    const Times* raw = contest.find("raw");
    const Times* ours = contest.find("torch_dcp");
    report_.ratio(what + ": raw / torch_dcp without checksums", raw, contest.find("torch_dcp, no checksums"), kOfLimit);
    report_.ratio(what + ": (raw + CRC) / torch_dcp", (raw->best() + crc_best_) / ours->best(),
                  (raw->median() + crc_median_) / ours->median(), kOfLimit);
    report_.ratio(what + ": Python DCP / torch_dcp", contest.find("Python DCP"), ours, of_python);
    report_.ratio(what + ": LibTorch / torch_dcp", contest.find("LibTorch archive"), ours, 1.0);
  }

  void measure_cached(const std::string& folder, const std::string& where, double of_python) {
    Contest contest("large tensors, save into the " + where);
    add_raw(contest, "raw", folder, RawWrite::kPageCache);
    add_savers(contest, folder, false);
    finish(contest);
    add_ratios(contest, where + " save", of_python);
  }

  void add_loaders(Contest& contest, const std::string& folder, bool is_cold) {
    const auto add = [&](const std::string& name, const std::string& sub_folder, std::function<double()> load) {
      contest.add(name, std::move(load), [is_cold, path = folder + sub_folder] {
        if (is_cold) drop_from_cache(path);
      });
    };
    add("raw", "/raw",
        [this, folder] { return raw_read(folder + "/raw", mutable_parts_of(loaded_), settings_.threads); });
    for (const bool checksums : {true, false}) {
      add(checksums ? "torch_dcp" : "torch_dcp, no checksums", "/ours",
          [this, folder, checksums] { return load_ours(loaded_, folder + "/ours", checksums, settings_.threads); });
    }
    if (python_) {
      add("Python DCP", "/python",
          [this, folder] { return python_->seconds({{"do", "load"}, {"path", folder + "/python"}}); });
    }
    add("LibTorch archive", "/libtorch",
        [this, folder] { return load_libtorch(loaded_, folder + "/libtorch/state.pt"); });
  }

  void measure_loads(const std::string& folder, const std::string& where, bool has_cold) {
    remove_and_settle(folder);
    raw_write(folder + "/raw", parts_of(state_), settings_.threads, RawWrite::kSynced);
    save_ours(state_, folder + "/ours", {true, true, settings_.threads});
    save_libtorch(state_, folder + "/libtorch/state.pt", true);
    if (python_) {
      python_->ask({{"do", "save"}, {"path", folder + "/python"}, {"durable", true}, {"threads", settings_.threads}});
    }
    Contest warm("large tensors, warm load, " + where);
    add_loaders(warm, folder, false);
    finish(warm);
    add_ratios(warm, where + " warm load", has_cold ? 1.3 : 2.0);
    load_ours(loaded_, folder + "/ours", true, settings_.threads);
    if (!have_equal_bytes(state_, loaded_)) throw std::runtime_error("what was loaded is not what was saved");
    if (!has_cold) return;
    Contest cold("large tensors, cold load, " + where);
    add_loaders(cold, folder, true);
    finish(cold);
    report_.ratio("cold load: raw / torch_dcp", cold.find("raw"), cold.find("torch_dcp"), kOfLimit);
    report_.ratio("cold load: Python DCP / torch_dcp", cold.find("Python DCP"), cold.find("torch_dcp"), 1.3);
    report_.ratio("cold load: checksums off / on", cold.find("torch_dcp, no checksums"), cold.find("torch_dcp"),
                  1 / 1.1);
  }

  const Settings& settings_;
  PythonPeer* python_;
  Report& report_;
  StateDict state_;
  StateDict loaded_;
  double crc_best_ = 0;
  double crc_median_ = 0;
};

}  // namespace

void measure_large(const Settings& settings, PythonPeer* python, Report& report) {
  Large(settings, python, report).run();
  if (python) python->ask({{"do", "drop"}});
}

}  // namespace dcp::bench
