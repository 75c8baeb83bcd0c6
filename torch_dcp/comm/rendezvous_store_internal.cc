#include "torch_dcp/comm/rendezvous_store_internal.h"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

using std::chrono::milliseconds;

class RendezvousStore final : public c10d::Store {
 public:
  RendezvousStore(c10::intrusive_ptr<c10d::Store> store, std::string prefix, RendezvousLimits limits)
      : c10d::Store(limits.default_wait),
        store_(std::move(store)),
        prefix_(std::move(prefix)),
        limits_(std::move(limits)) {}

  // Pure virtual in newer LibTorch, absent in older: no `override` serves both.
  c10::intrusive_ptr<c10d::Store> clone() {  // NOLINT
    return c10::make_intrusive<RendezvousStore>(store_, prefix_, limits_);
  }

  using c10d::Store::compareSet;
  using c10d::Store::set;

  void set(const std::string& key, const Bytes& value) override { store_->set(prefix_ + key, value); }

  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return store_->compareSet(prefix_ + key, expected, desired);
  }

  Bytes get(const std::string& key) override {
    wait({key});
    return store_->get(prefix_ + key);
  }

  std::int64_t add(const std::string& key, std::int64_t value) override { return store_->add(prefix_ + key, value); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(prefix_ + key); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(prefixed(keys)); }
  std::int64_t getNumKeys() override { return store_->getNumKeys(); }

  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }

  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    constexpr milliseconds kLongestPause{20};
    const std::vector<std::string> names = prefixed(keys);
    const TimePoint until = std::chrono::steady_clock::now() + timeout;
    for (milliseconds pause{1}; !store_->check(names); pause = std::min(2 * pause, kLongestPause)) {
      DCP_CHECK(limits_.check() || std::chrono::steady_clock::now() < until, kDeadline, "no rank wrote '",
                names.front(), "' in ", timeout.count(), " ms");
      std::this_thread::sleep_for(pause);
    }
  }

  void append(const std::string& key, const Bytes& value) override { store_->append(prefix_ + key, value); }

  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override {
    wait(keys);
    return store_->multiGet(prefixed(keys));
  }

  void multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) override {
    store_->multiSet(prefixed(keys), values);
  }

  bool hasExtendedApi() const override { return store_->hasExtendedApi(); }

 private:
  std::vector<std::string> prefixed(const std::vector<std::string>& keys) const {
    std::vector<std::string> names;
    names.reserve(keys.size());
    for (const std::string& key : keys) names.push_back(prefix_ + key);
    return names;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
  RendezvousLimits limits_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> make_rendezvous_store(c10::intrusive_ptr<c10d::Store> store, std::string prefix,
                                                      RendezvousLimits limits) {
  return c10::make_intrusive<RendezvousStore>(std::move(store), std::move(prefix), std::move(limits));
}

}  // namespace dcp
