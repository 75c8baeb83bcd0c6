#include "torch_dcp/examples/rank_group.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/comm/group_factory.h"

namespace dcp::examples {
namespace {

c10::intrusive_ptr<c10d::Store> connect_store(const LaunchEnvironment& environment, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = environment.master_port;
  options.isServer = environment.rank_0_hosts_store && environment.rank == 0;
  options.numWorkers = static_cast<std::size_t>(environment.world_size);
  options.waitWorkers = environment.rank_0_hosts_store;
  options.timeout = timeout;
  options.masterListenFd = environment.store_listen_descriptor;
  options.useLibUV = false;  // which cannot take over a socket of ours
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::TCPStore>(environment.master_address, options);
  if (environment.store_prefix.empty()) return store;
  return c10::make_intrusive<c10d::PrefixStore>(environment.store_prefix, store);
}

}  // namespace

RankGroup::RankGroup(const LaunchEnvironment& environment, std::chrono::milliseconds timeout)
    : rank_(environment.rank), size_(environment.world_size) {
  if (size_ == 1) {
    communicator_ = std::make_shared<Communicator>(Communicator::single());
    return;
  }
  const c10::intrusive_ptr<c10d::Store> store = connect_store(environment, timeout);
  const c10::intrusive_ptr<c10d::Store> training_store = c10::make_intrusive<c10d::PrefixStore>("training", store);
  group_ = gloo_group_factory()(training_store, rank_, size_, timeout);
  options_.deadline = timeout;
  options_.store = store;
  communicator_ = std::make_shared<Communicator>(Communicator::create(group_.get(), options_));
}

RankGroup::~RankGroup() = default;

at::Tensor RankGroup::all_gather(const at::Tensor& mine) const {
  if (size_ == 1) return mine.unsqueeze(0);
  std::vector<std::int64_t> sizes = mine.sizes().vec();
  sizes.insert(sizes.begin(), size_);
  at::Tensor gathered = at::empty(sizes, mine.options());
  std::vector<std::vector<at::Tensor>> outputs{gathered.unbind(0)};
  std::vector<at::Tensor> inputs{mine};
  group_.get()->allgather(outputs, inputs)->wait();
  return gathered;
}

std::string RankGroup::tell_all(const std::string& from_first) const {
  const ByteSpan bytes = as_bytes(from_first);
  return std::string(as_text(communicator_->broadcast(Bytes(bytes.begin(), bytes.end()))));
}

void RankGroup::leave() {
  communicator_.reset();
  if (group_) group_.get()->barrier()->wait();
}

}  // namespace dcp::examples
