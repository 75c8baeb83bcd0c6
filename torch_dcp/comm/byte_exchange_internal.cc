#include "torch_dcp/comm/byte_exchange_internal.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

namespace dcp {
namespace {

constexpr std::size_t kHeadBytes = 512;
constexpr std::size_t kFixedBytes = 1 + 8 + 8 + 8;
constexpr std::size_t kInlineBytes = kHeadBytes - kFixedBytes;
constexpr int kBodyTag = 1;
// The group's own time-out should end an operation: it also ends the others' waits.
constexpr std::chrono::milliseconds kSlack{100};

using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

// A tensor of the bytes, which it owns together with the caller.
at::Tensor tensor_over(const std::shared_ptr<Bytes>& bytes) {
  return at::from_blob(
      bytes->data(), {static_cast<std::int64_t>(bytes->size())}, [bytes](void*) {}, at::TensorOptions(at::kByte));
}

at::Tensor new_head() { return at::zeros({static_cast<std::int64_t>(kHeadBytes)}, at::TensorOptions(at::kByte)); }

at::Tensor encode_head(const Envelope& envelope, const StepStamp& stamp) {
  ByteWriter writer;
  writer.boolean(envelope.failed);
  writer.u64(envelope.body.size());
  writer.u64(stamp.step);
  writer.u64(stamp.label_hash);
  Bytes fixed = std::move(writer).take();
  at::Tensor head = new_head();
  auto* data = head.data_ptr<std::uint8_t>();
  data = std::copy(fixed.begin(), fixed.end(), data);
  if (envelope.body.size() <= kInlineBytes) std::copy(envelope.body.begin(), envelope.body.end(), data);
  return head;
}

struct Head {
  Envelope envelope;  // with its body, or room for it
  bool body_follows = false;
  StepStamp stamp;
};

Head decode_head(const at::Tensor& tensor) {
  const ByteSpan bytes(tensor.data_ptr<std::uint8_t>(), kHeadBytes);
  ByteReader reader(bytes);
  Head head;
  head.envelope.failed = reader.boolean();
  const std::uint64_t body_bytes = reader.u64();
  head.stamp.step = reader.u64();
  head.stamp.label_hash = reader.u64();
  head.body_follows = body_bytes > kInlineBytes;
  head.envelope.body.resize(body_bytes);
  if (!head.body_follows) std::copy_n(bytes.data() + kFixedBytes, body_bytes, head.envelope.body.data());
  return head;
}

void wait(const c10::intrusive_ptr<c10d::Work>& work, TimePoint until) {
  DCP_CHECK(work->wait(time_left(until) + kSlack), kComm, "the group's operation was aborted");
}

// Bodies that travel from one rank to another, each at its exact length.
class Bodies {
 public:
  explicit Bodies(c10d::ProcessGroup& group) : group_(group) {}

  void send(Bytes body, int rank) {
    std::vector<at::Tensor> tensors{tensor_over(std::make_shared<Bytes>(std::move(body)))};
    works_.push_back(group_.send(tensors, rank, kBodyTag));
  }

  void receive(Envelope& into, int rank) {
    auto bytes = std::make_shared<Bytes>(std::move(into.body));
    std::vector<at::Tensor> tensors{tensor_over(bytes)};
    works_.push_back(group_.recv(tensors, rank, kBodyTag));
    arriving_.emplace_back(&into, std::move(bytes));
  }

  void wait_all(TimePoint until) {
    for (const auto& work : works_) {
      DCP_CHECK(work->wait(time_left(until)), kComm, "the group's operation was aborted");
    }
    for (auto& [envelope, bytes] : arriving_) envelope->body = std::move(*bytes);
  }

 private:
  c10d::ProcessGroup& group_;
  Works works_;
  std::vector<std::pair<Envelope*, std::shared_ptr<Bytes>>> arriving_;
};

template <typename Options>
Options options_until(TimePoint until) {
  Options options;
  options.timeout = time_left(until);
  return options;
}

}  // namespace

StepStamp make_stamp(std::int64_t step, const std::string& label) {
  // FNV-1a: the same on every machine, which std::hash need not be.
  std::uint64_t hash = 14695981039346656037ull;
  for (const char c : label) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return {static_cast<std::uint64_t>(step), hash};
}

ByteExchange::ByteExchange(c10::intrusive_ptr<c10d::ProcessGroup> group, int rank, int size, int coordinator)
    : group_(std::move(group)), rank_(rank), size_(size), coordinator_(coordinator) {
  DCP_CHECK(group_ && group_->getRank() == rank && group_->getSize() == size, kInvalidArgument,
            "the group factory did not make a group with this rank as ", rank, " of ", size);
}

ByteExchange::~ByteExchange() = default;

std::vector<Envelope> ByteExchange::gather(Envelope mine, const StepStamp& stamp, TimePoint until) {
  std::vector<at::Tensor> inputs{encode_head(mine, stamp)};
  std::vector<std::vector<at::Tensor>> outputs;
  if (is_coordinator()) {
    outputs.emplace_back();
    for (int rank = 0; rank < size_; ++rank) outputs[0].push_back(new_head());
  }
  auto options = options_until<c10d::GatherOptions>(until);
  options.rootRank = coordinator_;
  wait(group_->gather(outputs, inputs, options), until);

  Bodies bodies(*group_);
  if (!is_coordinator()) {
    if (mine.body.size() > kInlineBytes) bodies.send(std::move(mine.body), coordinator_);
    bodies.wait_all(until);
    return {};
  }
  std::vector<Envelope> envelopes(size_);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) {
      envelopes[rank] = std::move(mine);
      continue;
    }
    Head head = decode_head(outputs[0][rank]);
    DCP_CHECK(head.stamp.step == stamp.step && head.stamp.label_hash == stamp.label_hash, kState,
              "the ranks' calls differ: rank ", rank, " is in step number ", head.stamp.step,
              ", the coordinator in number ", stamp.step,
              head.stamp.step == stamp.step ? ", and their names differ" : "");
    envelopes[rank] = std::move(head.envelope);
    if (head.body_follows) bodies.receive(envelopes[rank], rank);
  }
  bodies.wait_all(until);
  return envelopes;
}

Envelope ByteExchange::broadcast(Envelope from_coordinator, TimePoint until) {
  std::vector<at::Tensor> tensors{is_coordinator() ? encode_head(from_coordinator, {}) : new_head()};
  auto options = options_until<c10d::BroadcastOptions>(until);
  options.rootRank = coordinator_;
  wait(group_->broadcast(tensors, options), until);

  Envelope envelope = std::move(from_coordinator);
  bool body_follows = envelope.body.size() > kInlineBytes;
  if (!is_coordinator()) {
    Head head = decode_head(tensors[0]);
    envelope = std::move(head.envelope);
    body_follows = head.body_follows;
  }
  if (!body_follows) return envelope;
  auto body = std::make_shared<Bytes>(std::move(envelope.body));
  tensors = {tensor_over(body)};
  options.timeout = time_left(until);
  wait(group_->broadcast(tensors, options), until);
  envelope.body = std::move(*body);
  return envelope;
}

Envelope ByteExchange::scatter(std::vector<Envelope> from_coordinator, TimePoint until) {
  std::vector<at::Tensor> outputs{new_head()};
  std::vector<std::vector<at::Tensor>> inputs;
  if (is_coordinator()) {
    inputs.emplace_back();
    for (const Envelope& envelope : from_coordinator) inputs[0].push_back(encode_head(envelope, {}));
  }
  auto options = options_until<c10d::ScatterOptions>(until);
  options.rootRank = coordinator_;
  wait(group_->scatter(outputs, inputs, options), until);

  Bodies bodies(*group_);
  if (!is_coordinator()) {
    Head head = decode_head(outputs[0]);
    if (head.body_follows) bodies.receive(head.envelope, coordinator_);
    bodies.wait_all(until);
    return std::move(head.envelope);
  }
  for (int rank = 0; rank < size_; ++rank) {
    Bytes& body = from_coordinator[rank].body;
    if (rank != rank_ && body.size() > kInlineBytes) bodies.send(std::move(body), rank);
  }
  bodies.wait_all(until);
  return std::move(from_coordinator[rank_]);
}

}  // namespace dcp
