#include "torch_dcp/comm/communicator.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/comm/group_store_internal.h"
#include "torch_dcp/comm/step_engine_internal.h"

namespace dcp {
namespace {

using std::chrono::milliseconds;

std::shared_ptr<StepStore> open_store(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank,
                                      milliseconds deadline) {
  auto opened = std::make_shared<std::shared_ptr<StepStore>>();
  const auto until = std::chrono::steady_clock::now() + deadline;
  bool answered = false;
  try {
    answered = run_bounded([=] { *opened = StepStore::open(store, name, rank); }, until);
  } catch (const std::exception& error) {
    DCP_THROW(kComm, "the group's store failed: ", error.what());
  }
  DCP_CHECK(answered, kDeadline, "the group's store did not answer within ", deadline.count(), " ms");
  return *opened;
}

StepEngineOptions engine_options(const CommunicatorOptions& options, int rank, int size) {
  // Larger groups look less often, and so wait longer for signs: a store serves all ranks.
  return {rank,
          size,
          options.coordinator,
          options.deadline,
          options.deadlines,
          options.grace + milliseconds(2) * size,
          milliseconds(100) + milliseconds(1) * size};
}

// What the group's operations have for want of one of their own; each has its step's.
milliseconds longest_deadline(const StepEngineOptions& options) {
  milliseconds longest = options.deadline;
  for (const auto& [step, deadline] : options.deadlines.by_step) longest = std::max(longest, deadline);
  return longest;
}

StepEngine::MakeExchange exchange_maker(GroupFactory factory, std::shared_ptr<StepStore> store,
                                        const StepEngineOptions& options) {
  return [factory = std::move(factory), store = std::move(store), options](std::int64_t generation,
                                                                           RendezvousLimits limits) {
    auto group = factory(store->rendezvous(generation, std::move(limits)), options.rank, options.size,
                         longest_deadline(options));
    return std::make_shared<ByteExchange>(std::move(group), options.rank, options.size, options.coordinator);
  };
}

Bytes pack(const std::vector<Bytes>& parts) {
  ByteWriter writer;
  for (const Bytes& part : parts) writer.bytes(part);
  return std::move(writer).take();
}

std::vector<Bytes> unpack(const Bytes& packed, int count) {
  ByteReader reader(packed);
  std::vector<Bytes> parts(count);
  for (Bytes& part : parts) part = reader.bytes();
  reader.expect_end();
  return parts;
}

std::function<Bytes()> bring(Bytes& bytes) {
  return [&bytes] { return std::move(bytes); };
}

}  // namespace

CommunicatorOptions::CommunicatorOptions() = default;
CommunicatorOptions::CommunicatorOptions(const CommunicatorOptions&) = default;
CommunicatorOptions& CommunicatorOptions::operator=(const CommunicatorOptions&) = default;
CommunicatorOptions::CommunicatorOptions(CommunicatorOptions&&) noexcept = default;
CommunicatorOptions& CommunicatorOptions::operator=(CommunicatorOptions&&) noexcept = default;
CommunicatorOptions::~CommunicatorOptions() = default;

Communicator Communicator::single() { return Communicator(nullptr); }

Communicator Communicator::create(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                  const CommunicatorOptions& options) {
  DCP_CHECK(group, kInvalidArgument, "there is no group; a single process uses Communicator::single()");
  const int size = group->getSize();
  DCP_CHECK(options.coordinator >= 0 && options.coordinator < size, kInvalidArgument, "rank ", options.coordinator,
            " of a group of ", size, " cannot be the coordinator");
  DCP_CHECK(options.deadline.count() > 0 && options.grace.count() > 0, kInvalidArgument,
            "a communicator's deadline and grace must be positive");
  for (const auto& [step, deadline] : options.deadlines.by_step) {
    DCP_CHECK(deadline.count() > 0, kInvalidArgument, "the deadline of step '", step, "' must be positive");
  }
  if (size == 1) return single();
  DCP_CHECK(options.group_factory, kInvalidArgument, "a communicator needs a group factory");
  const c10::intrusive_ptr<c10d::Store> store = options.store ? options.store : store_of(group);
  DCP_CHECK(store, kInvalidArgument, "the group has no store that can be found; set CommunicatorOptions::store");
  const StepEngineOptions engine = engine_options(options, group->getRank(), size);
  std::shared_ptr<StepStore> keys = open_store(store, options.name, engine.rank, options.deadline);
  auto maker = exchange_maker(options.group_factory, keys, engine);
  return Communicator(std::make_unique<StepEngine>(engine, std::move(keys), std::move(maker)));
}

Communicator::Communicator(std::unique_ptr<StepEngine> engine) : engine_(std::move(engine)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

int Communicator::rank() const { return engine_ ? engine_->options().rank : 0; }
int Communicator::size() const { return engine_ ? engine_->options().size : 1; }
int Communicator::coordinator() const { return engine_ ? engine_->options().coordinator : 0; }

std::vector<Bytes> Communicator::gather(Bytes mine) {
  std::vector<Bytes> gathered;
  StepParts parts;
  parts.local = bring(mine);
  parts.global = [&](std::vector<Bytes> all) {
    gathered = std::move(all);
    return std::vector<Bytes>(1);
  };
  run_step("gather", parts);
  return gathered;
}

std::vector<Bytes> Communicator::all_gather(Bytes mine) {
  std::vector<Bytes> gathered;
  StepParts parts;
  parts.local = bring(mine);
  parts.global = [](std::vector<Bytes> all) { return std::vector<Bytes>{pack(all)}; };
  parts.receive = [&](Bytes packed) { gathered = unpack(packed, size()); };
  run_step("all_gather", parts);
  return gathered;
}

Bytes Communicator::broadcast(Bytes from_coordinator) {
  Bytes received;
  StepParts parts;
  parts.global = [&](std::vector<Bytes>) { return std::vector<Bytes>{std::move(from_coordinator)}; };
  parts.receive = [&](Bytes bytes) { received = std::move(bytes); };
  run_step("broadcast", parts);
  return received;
}

Bytes Communicator::scatter(std::vector<Bytes> from_coordinator) {
  Bytes received;
  StepParts parts;
  parts.global = [&](std::vector<Bytes>) { return std::move(from_coordinator); };
  parts.answer_per_rank = true;
  parts.receive = [&](Bytes bytes) { received = std::move(bytes); };
  run_step("scatter", parts);
  return received;
}

void Communicator::run_step(const std::string& label, const StepParts& parts) {
  if (engine_) {
    engine_->run(label, parts);
    return;
  }
  run_alone(label, [&] {
    std::vector<Bytes> answers;
    answers.push_back(parts.local ? parts.local() : Bytes());
    answers = parts.global ? parts.global(std::move(answers)) : std::vector<Bytes>(1);
    DCP_CHECK(answers.size() == 1, kInvalidArgument, "the coordinator's part of the step gave ", answers.size(),
              " answers instead of 1");
    if (parts.receive) parts.receive(std::move(answers.front()));
  });
}

bool Communicator::cancelled() const noexcept { return engine_ && engine_->session().cancelled(); }

void Communicator::throw_if_cancelled() const {
  DCP_CHECK(!cancelled(), kCancelled, "stopped, since another rank failed");
}

void run_alone(const std::string& label, const std::function<void()>& work) {
  std::vector<RankFailure> failures;
  try {
    work();
  } catch (...) {
    failures.push_back(current_failure(0));
  }
  if (!failures.empty()) throw CheckpointError(label, std::move(failures), DCP_WHERE);
}

}  // namespace dcp
