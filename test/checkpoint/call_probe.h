#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/plan/default_load_planner.h"
#include "torch_dcp/plan/default_save_planner.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/filesystem_writer.h"

// Planners, a writer and a reader that note each call, and of which any call can be made to throw.

namespace dcp::test {

enum class Throws : std::uint8_t { kError, kStandard, kOther };
enum class When : std::uint8_t { kBefore, kAfter };  ///< the call has done its work

/// A call, such as "writer.finish", that throws on one rank.
struct CallFault {
  std::string call;
  int rank = 0;
  When when = When::kBefore;
  Throws throws = Throws::kError;
};

inline std::string to_string(const CallFault& fault) {
  const char* what[] = {"dcp::Error", "std::exception", "42"};
  return std::string(what[static_cast<int>(fault.throws)]) + (fault.when == When::kBefore ? " before " : " after ") +
         fault.call + " on rank " + std::to_string(fault.rank);
}

/// What one rank is asked for in one save or load. Safe to use from many threads.
class CallProbe {
 public:
  CallProbe() = default;
  /// \param fault  Throws if it is of this rank; the first time its call is reached.
  CallProbe(int rank, CallFault fault) {
    if (fault.rank == rank) fault_ = std::move(fault);
  }

  /// \param on_call  Called around each call, on whatever thread makes it.
  explicit CallProbe(std::function<void(const std::string& call, When when)> on_call) : on_call_(std::move(on_call)) {}

  template <typename Call>
  decltype(auto) around(const char* name, const Call& call) {
    note(name);
    throw_if_due(name, When::kBefore);
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
      throw_if_due(name, When::kAfter);
    } else {
      decltype(auto) result = call();
      throw_if_due(name, When::kAfter);
      return static_cast<decltype(call())>(result);
    }
  }

  void note(const char* name) {
    const std::lock_guard lock(mutex_);
    if (calls_.empty() || calls_.back() != name) calls_.emplace_back(name);
  }

  /// In order; calls of one name that follow each other count once.
  std::vector<std::string> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  bool has_thrown() const { return has_thrown_; }

 private:
  void throw_if_due(const char* name, When when) {
    if (on_call_) on_call_(name, when);
    if (!fault_ || fault_->call != name || fault_->when != when || has_thrown_.exchange(true)) return;
    switch (fault_->throws) {
      case Throws::kError:
        DCP_THROW(kUnsupported, "probed: ", name);
      case Throws::kStandard:
        throw std::runtime_error(std::string("probed: ") + name);
      case Throws::kOther:
        throw 42;
    }
  }

  std::optional<CallFault> fault_;
  std::function<void(const std::string& call, When when)> on_call_;
  mutable std::mutex mutex_;
  std::vector<std::string> calls_;
  std::atomic<bool> has_thrown_ = false;
};

class ProbedSavePlanner final : public DefaultSavePlanner {
 public:
  explicit ProbedSavePlanner(CallProbe& probe) : probe_(probe) {}

  using DefaultSavePlanner::set_up;
  void set_up(const StateDict& state, const SavePlannerContext& context) override {
    probe_.around("planner.set_up", [&] { DefaultSavePlanner::set_up(state, context); });
  }
  SavePlan create_local_plan() override {
    return probe_.around("planner.create_local_plan", [&] { return DefaultSavePlanner::create_local_plan(); });
  }
  std::pair<std::vector<SavePlan>, Metadata> create_global_plan(std::vector<SavePlan> plans) override {
    return probe_.around("planner.create_global_plan",
                         [&] { return DefaultSavePlanner::create_global_plan(std::move(plans)); });
  }
  SavePlan finish_plan(SavePlan plan) override {
    return probe_.around("planner.finish_plan", [&] { return DefaultSavePlanner::finish_plan(std::move(plan)); });
  }
  std::optional<Bytes> fingerprint() const override {
    return probe_.around("planner.fingerprint", [&] { return std::optional<Bytes>(default_fingerprint()); });
  }
  at::Tensor resolve_tensor(const WriteItem& item) const override {
    return probe_.around("planner.resolve_tensor", [&] { return DefaultSavePlanner::resolve_tensor(item); });
  }
  const Value& resolve_object(const WriteItem& item) const override {
    return probe_.around("planner.resolve_object",
                         [&]() -> const Value& { return DefaultSavePlanner::resolve_object(item); });
  }

 private:
  CallProbe& probe_;
};

class ProbedWriter final : public FileSystemWriter {
 public:
  ProbedWriter(std::string path, FileSystemWriterOptions options, CallProbe& probe)
      : FileSystemWriter(std::move(path), std::move(options)), probe_(probe) {}

  void set_up(const StorageWriterContext& context) override {
    probe_.around("writer.set_up", [&] { FileSystemWriter::set_up(context); });
  }
  StorageMeta storage_meta() const override {
    return probe_.around("writer.storage_meta", [&] { return FileSystemWriter::storage_meta(); });
  }
  SavePlan prepare_local_plan(SavePlan plan) override {
    return probe_.around("writer.prepare_local_plan",
                         [&] { return FileSystemWriter::prepare_local_plan(std::move(plan)); });
  }
  std::vector<SavePlan> prepare_global_plan(std::vector<SavePlan> plans) override {
    return probe_.around("writer.prepare_global_plan",
                         [&] { return FileSystemWriter::prepare_global_plan(std::move(plans)); });
  }
  std::vector<WriteResult> write_data(const SavePlan& plan, const SavePlanner& planner) override {
    return probe_.around("writer.write_data", [&] { return FileSystemWriter::write_data(plan, planner); });
  }
  Metadata finish(Metadata metadata, const std::vector<std::vector<WriteResult>>& results) override {
    return probe_.around("writer.finish", [&] { return FileSystemWriter::finish(std::move(metadata), results); });
  }
  void committed() noexcept override {
    probe_.note("writer.committed");
    FileSystemWriter::committed();
  }
  void abort() noexcept override {
    probe_.note("writer.abort");
    FileSystemWriter::abort();
  }

 private:
  CallProbe& probe_;
};

class ProbedLoadPlanner final : public DefaultLoadPlanner {
 public:
  explicit ProbedLoadPlanner(CallProbe& probe) : probe_(probe) {}

  void set_up(StateDict& state, const Metadata& metadata, const LoadPlannerContext& context) override {
    probe_.around("planner.set_up", [&] { DefaultLoadPlanner::set_up(state, metadata, context); });
  }
  LoadPlan create_local_plan() override {
    return probe_.around("planner.create_local_plan", [&] { return DefaultLoadPlanner::create_local_plan(); });
  }
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> plans) override {
    return probe_.around("planner.create_global_plan",
                         [&] { return DefaultLoadPlanner::create_global_plan(std::move(plans)); });
  }
  LoadPlan finish_plan(LoadPlan plan) override {
    return probe_.around("planner.finish_plan", [&] { return DefaultLoadPlanner::finish_plan(std::move(plan)); });
  }
  at::Tensor resolve_tensor(const ReadItem& item) override {
    return probe_.around("planner.resolve_tensor", [&] { return DefaultLoadPlanner::resolve_tensor(item); });
  }
  void commit_tensor(const ReadItem& item, const at::Tensor& tensor) override {
    probe_.around("planner.commit_tensor", [&] { DefaultLoadPlanner::commit_tensor(item, tensor); });
  }
  void load_object(const ReadItem& item, Value value) override {
    probe_.around("planner.load_object", [&] { DefaultLoadPlanner::load_object(item, std::move(value)); });
  }
  void commit_objects() override {
    probe_.around("planner.commit_objects", [&] { DefaultLoadPlanner::commit_objects(); });
  }

 private:
  CallProbe& probe_;
};

class ProbedReader final : public FileSystemReader {
 public:
  ProbedReader(std::string path, FileSystemReaderOptions options, CallProbe& probe)
      : FileSystemReader(std::move(path), std::move(options)), probe_(probe) {}

  std::optional<Metadata> read_metadata() override {
    return probe_.around("reader.read_metadata", [&] { return FileSystemReader::read_metadata(); });
  }
  void set_up(const Metadata& metadata, const StorageReaderContext& context) override {
    probe_.around("reader.set_up", [&] { FileSystemReader::set_up(metadata, context); });
  }
  LoadPlan prepare_local_plan(LoadPlan plan) override {
    return probe_.around("reader.prepare_local_plan",
                         [&] { return FileSystemReader::prepare_local_plan(std::move(plan)); });
  }
  std::vector<LoadPlan> prepare_global_plan(std::vector<LoadPlan> plans) override {
    return probe_.around("reader.prepare_global_plan",
                         [&] { return FileSystemReader::prepare_global_plan(std::move(plans)); });
  }
  void check(const LoadPlan& plan, LoadPlanner& planner) override {
    probe_.around("reader.check", [&] { FileSystemReader::check(plan, planner); });
  }
  void read_data(const LoadPlan& plan, LoadPlanner& planner) override {
    probe_.around("reader.read_data", [&] { FileSystemReader::read_data(plan, planner); });
  }

 private:
  CallProbe& probe_;
};

}  // namespace dcp::test
