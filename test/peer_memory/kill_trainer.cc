#include "test/peer_memory/kill_trainer.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "test/checkpoint/call_probe.h"
#include "test/checkpoint/checkpoint_support.h"
#include "test/peer_memory/probed_vault.h"
#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/checkpoint/save.h"
#include "torch_dcp/memory/memory_client.h"
#include "torch_dcp/peer_memory/file_note_internal.h"
#include "torch_dcp/peer_memory/file_owner_internal.h"
#include "torch_dcp/peer_memory/process_group_storage.h"

namespace dcp::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t kBudgetBytes = std::uint64_t{64} << 20;

at::Tensor weight(std::int64_t step) { return counted({2000, 74}) + static_cast<double>(step); }

DTensor part(const at::Tensor& whole, int rank, int size, std::int64_t dim) {
  return DTensor::distribute(whole, DeviceMesh::make({size}, rank), {Placement::shard(dim)});
}

StateDict state_at(int rank, int size, std::int64_t step) {
  return {{"w", part(weight(step), rank, size, 0)},
          {"column", part(weight(step) * 2, rank, size, 1)},
          {"replicated", counted({5}) + static_cast<double>(step)},
          {"step", step},
          {"name", "of step " + std::to_string(step)}};
}

StateDict empty_state(int rank, int size) {
  const auto blank = [&](std::int64_t dim) {
    return pattern_on(DeviceMesh::make({size}, rank), {Placement::shard(dim)}, {2000, 74});
  };
  return {
      {"w", blank(0)}, {"column", blank(1)}, {"replicated", pattern({5})}, {"step", std::int64_t{-1}}, {"name", ""}};
}

/// Fields of a line; '|' and newlines in the last are taken out.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream in(line);
  for (std::string field; std::getline(in, field, '|');) fields.push_back(field);
  return fields;
}

std::string plain(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::replace(text.begin(), text.end(), '|', '/');
  return text;
}

/// A writer whose commit can be interrupted.
template <typename Writer>
class ProbedMemoryWriter final : public Writer {
 public:
  template <typename... Args>
  explicit ProbedMemoryWriter(CallProbe& probe, Args&&... args) : Writer(std::forward<Args>(args)...), probe_(probe) {}

  std::vector<WriteResult> write_data(const SavePlan& plan, const SavePlanner& planner) override {
    return probe_.around("writer.write_data", [&] { return Writer::write_data(plan, planner); });
  }
  Metadata finish(Metadata metadata, const std::vector<std::vector<WriteResult>>& results) override {
    return probe_.around("writer.finish", [&] { return Writer::finish(std::move(metadata), results); });
  }
  void committed() noexcept override {
    probe_.around("writer.committed", [&] { Writer::committed(); });
  }

 private:
  CallProbe& probe_;
};

template <typename Reader>
class ProbedMemoryReader final : public Reader {
 public:
  template <typename... Args>
  explicit ProbedMemoryReader(CallProbe& probe, Args&&... args) : Reader(std::forward<Args>(args)...), probe_(probe) {}

  std::optional<Metadata> read_metadata() override {
    return probe_.around("reader.read_metadata", [&] { return Reader::read_metadata(); });
  }
  void check(const LoadPlan& plan, LoadPlanner& planner) override {
    probe_.around("reader.check", [&] { Reader::check(plan, planner); });
  }
  void read_data(const LoadPlan& plan, LoadPlanner& planner) override {
    probe_.around("reader.read_data", [&] { Reader::read_data(plan, planner); });
  }

 private:
  CallProbe& probe_;
};

std::string outcome_of_call(const std::function<void()>& call) {
  try {
    call();
    return "ok";
  } catch (const CheckpointError& error) {
    return plain("CheckpointError " + error.step() + ": " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    return plain(std::string("no CheckpointError: ") + error.what());
  }
}

}  // namespace

std::string to_line(const Order& order) {
  return c10::str(order.verb, "|", order.meeting, "|", order.rank, "|", order.size, "|", order.reopens, "|", order.step,
                  "|", order.deadline_ms, "\n");
}

Order order_of(const std::string& line) {
  const std::vector<std::string> fields = fields_of(line);
  DCP_CHECK(fields.size() == 7, kInternal, "no order: ", line);
  return {.verb = fields[0],
          .meeting = std::stoi(fields[1]),
          .rank = std::stoi(fields[2]),
          .size = std::stoi(fields[3]),
          .reopens = fields[4] == "1",
          .step = std::stoll(fields[5]),
          .deadline_ms = std::stoll(fields[6])};
}

std::string to_line(const Answer& answer) {
  return c10::str(answer.outcome, "|", answer.elapsed_ms, "|", answer.held, "|", answer.step, "|", plain(answer.said),
                  " \n");
}

Answer answer_of(const std::string& line) {
  const std::vector<std::string> fields = fields_of(line);
  DCP_CHECK(fields.size() == 5, kInternal, "no answer: ", line);
  return {.outcome = fields[0],
          .elapsed_ms = std::stoll(fields[1]),
          .held = std::stoll(fields[2]),
          .step = std::stoll(fields[3]),
          .said = fields[4]};
}

Trainer::Trainer(const Cell& cell, Strike& strike, int slot, c10::intrusive_ptr<c10d::Store> store, std::string server)
    : cell_(cell), strike_(strike), slot_(slot), store_(std::move(store)), server_(std::move(server)) {
  strike_.trainers[slot_] = ::getpid();
}

void Trainer::run(const Pipe& orders, const Pipe& told) {
  for (;;) told.write(to_line(obey(order_of(orders.read_line(kKillLimit)))));
}

Answer Trainer::obey(const Order& order) {
  Answer answer;
  answer.outcome = outcome_of_call([&] {
    if (order.verb == "meet") meet(order, answer);
    if (order.verb == "save") save(order);
    if (order.verb == "load") load(answer);
  });
  answer.elapsed_ms = strike_.elapsed().count();
  set_part("");
  return answer;
}

CommunicatorOptions Trainer::communicator_options(bool is_of_attach) {
  CommunicatorOptions options;
  options.deadline = seconds(20);
  const GroupFactory make = gloo_group_factory({.hostname = "127.0.0.1", .interface = ""});
  if (!is_of_attach) {
    options.group_factory = make;
    return options;
  }
  // Attaching makes two: for its steps, and for the link.
  options.group_factory = [this, make](const auto& store, int rank, int size, milliseconds timeout) {
    {
      std::unique_lock lock(mutex_);
      const std::string event = part_ + " group " + std::to_string(++groups_);
      lock.unlock();
      reach(event);
    }
    auto group = make(store, rank, size, timeout);
    ++strike_.groups;
    return group;
  };
  return options;
}

std::int64_t Trainer::newest_held() const {
  std::int64_t newest = 0;
  for (const VaultGeneration& generation : vault_->list()) {
    for (const VaultFile& file : generation.files) {
      if (file.name == peer::kMetadataName) newest = std::max(newest, peer::from_note(file.note).step);
    }
  }
  return newest;
}

void Trainer::meet(const Order& order, Answer& answer) {
  communicator_.reset();
  memory_.reset();
  if (!vault_ || order.reopens) {
    MemoryVaultOptions own;
    own.budget_bytes = kBudgetBytes;
    vault_ = server_.empty() ? make_memory_vault(own) : open_memory_vault("mem://" + server_);
  }
  answer.held = newest_held();
  rank_ = order.rank;
  size_ = order.size;
  set_part("attach");
  const auto store = c10::make_intrusive<c10d::PrefixStore>(c10::str("meeting ", order.meeting), store_);
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank_, size_);
  PeerMemoryOptions options;
  options.copies = std::min(cell_.copies, size_ - 1);
  options.host = "host " + std::to_string(cell_.host_of(slot_));
  options.deadline = milliseconds(order.deadline_ms);
  options.communicator_options = communicator_options(true);
  const auto probed = std::make_shared<ProbedVault>(
      vault_, [this](const std::string& call, const std::string& name) { on_vault_call(call, name); });
  memory_ = PeerMemory::attach(probed, group, options);
  set_part("");
  answer.step = memory_->newest() ? memory_->newest()->step : 0;
  for (const std::string& lost : memory_->report().lost) answer.said += lost + "; ";
  communicator_ = std::make_shared<Communicator>(Communicator::create(group, communicator_options(false)));
  communicator_->all_gather({});
}

void Trainer::save(const Order& order) {
  set_part(order.step == 2 ? "save" : "");
  CallProbe probe(
      [this](const std::string& call, When when) { reach((when == When::kBefore ? "save " : "save after ") + call); });
  SaveOptions options;
  options.communicator = communicator_;
  options.planner = std::make_shared<ProbedSavePlanner>(probe);
  ProbedMemoryWriter<ProcessGroupStorageWriter> writer(probe, memory_, ProcessGroupWriterOptions{.step = order.step});
  dcp::save(state_at(rank_, size_, order.step), writer, options);
}

void Trainer::load(Answer& answer) {
  CallProbe probe([this](const std::string& call, When when) {
    if (when == When::kBefore) reach("load " + call);
  });
  LoadOptions options;
  options.communicator = communicator_;
  options.planner = std::make_shared<ProbedLoadPlanner>(probe);
  ProbedMemoryReader<ProcessGroupStorageReader> reader(probe, memory_);
  StateDict state = empty_state(rank_, size_);
  dcp::load(state, reader, options);
  answer.said = reader.place();
  answer.step = state.at("step").as_int();
  const std::string difference = first_difference(state, state_at(rank_, size_, answer.step));
  DCP_CHECK(difference.empty(), kInternal, "loaded other bits: ", difference);
}

void Trainer::set_part(const std::string& part) {
  const std::lock_guard lock(mutex_);
  part_ = part;
  lists_ = 0;
  groups_ = 0;
  rooms_.clear();
}

void Trainer::on_vault_call(const std::string& call, const std::string& name) {
  std::string part;
  {
    const std::lock_guard lock(mutex_);
    part = part_;
  }
  if (part == "save") on_vault_call_in_save(call, name);
  if (part == "attach") on_vault_call_in_attach(call, name);
}

void Trainer::on_vault_call_in_save(const std::string& call, const std::string& name) {
  if (name == peer::kMetadataName) return reach(c10::str("save ", call, rank_ == 0 ? "" : " copy of", " metadata"));
  const std::optional<int> owner = peer::owner_of(name);
  if (!owner) return;
  const bool is_own = *owner == rank_;
  int rooms = 0;
  {
    const std::lock_guard lock(mutex_);
    if (call == "room") rooms = ++rooms_[name];
  }
  reach(c10::str("save ", call, is_own ? " own" : " copy", rooms > 1 ? " again" : ""));
}

void Trainer::on_vault_call_in_attach(const std::string& call, const std::string& name) {
  std::string event = "attach ";
  {
    const std::lock_guard lock(mutex_);
    if (call == "list") {
      event += "list " + std::to_string(++lists_);
    } else if (lists_ >= 2) {
      event += "filling " + call;
    } else if (groups_ >= 2 && call == "open" && name == peer::kMetadataName) {
      event += "choosing";
    }
  }
  reach(event);
}

void Trainer::reach(const std::string& event) {
  if (!strike_.is_armed || event != cell_.phase.event) return;
  const bool dies = cell_.kills_trainer(slot_);
  if (cell_.phase.is_everybodys && cell_.kills_trainers()) {
    if (!dies) return;
    if (++strike_.arrived < static_cast<int>(cell_.victims.size())) wait_for_the_end();
  } else if (strike_.has_begun.exchange(true)) {
    if (dies) wait_for_the_end();
    return;
  }
  strike();
}

void Trainer::wait_for_the_end() {
  for (;;) std::this_thread::sleep_for(kKillLimit);
}

void Trainer::strike() {
  // Before the ranks are connected a death cannot be told from being late.
  const int connected = cell_.phase.part == JobPart::kAttach ? size_ : 0;
  while (strike_.groups < connected) std::this_thread::sleep_for(milliseconds(1));
  strike_.at = std::chrono::steady_clock::now().time_since_epoch().count();
  for (int host = 0; host < cell_.host_count(); ++host) {
    if (cell_.kills_server(host)) ::kill(strike_.servers[host], SIGKILL);
  }
  for (const int victim : cell_.victims) {
    if (cell_.kills_trainers() && victim != slot_) ::kill(strike_.trainers[victim], SIGKILL);
  }
  strike_.is_over = true;
  if (cell_.kills_trainer(slot_)) ::raise(SIGKILL);
}

}  // namespace dcp::test
