#include "torch_dcp/comm/step_store_internal.h"

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "torch_dcp/comm/group_store_internal.h"

namespace dcp {

std::shared_ptr<StepStore> StepStore::open(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name,
                                           int rank) {
  c10::intrusive_ptr<c10d::Store> own = own_connection(store);
  const std::string root = c10::str("torch_dcp/", name, "/");
  const std::int64_t number = own->add(c10::str(root, "creations/", rank), 1);
  return std::make_shared<StepStore>(std::move(own), c10::str(root, number, "/"));
}

StepStore::StepStore(c10::intrusive_ptr<c10d::Store> store, std::string prefix)
    : store_(std::move(store)), prefix_(std::move(prefix)) {}

StepStore::~StepStore() = default;

Decision StepStore::decide(const Position& at, const Decision& decision) {
  return decode_decision(store_->compareSet(key(at, "decision"), Bytes(), encode_decision(decision)));
}

std::optional<Decision> StepStore::decision(const Position& at) {
  const std::string name = key(at, "decision");
  if (!has(name)) return std::nullopt;
  return decode_decision(store_->get(name));
}

void StepStore::cancel(const Position& at) { mark(key(at, "cancel")); }
bool StepStore::is_cancelled(const Position& at) { return has(key(at, "cancel")); }

void StepStore::announce_break(std::int64_t generation) { mark(c10::str(prefix_, "g", generation, "/break")); }
bool StepStore::is_broken(std::int64_t generation) { return has(c10::str(prefix_, "g", generation, "/break")); }

void StepStore::write_report(std::int64_t generation, int rank, const Report& report) {
  store_->set(key(generation, "report", rank), encode_report(report));
}

void StepStore::write_alive(std::int64_t generation, int rank, const Report& report) {
  store_->set(key(generation, "alive", rank), encode_report(report));
}

RankSign StepStore::sign(std::int64_t generation, int rank) {
  RankSign sign;
  const std::string left = c10::str(prefix_, "left/", rank);
  for (const char* what : {"report", "alive"}) {
    const std::string name = key(generation, what, rank);
    if (!has(name)) continue;
    sign.report = decode_report(store_->get(name));
    break;
  }
  // A rank may report a failure and then leave: the failure says more.
  if (!sign.report) sign.left = has(left);
  return sign;
}

void StepStore::count_settled(std::int64_t generation) {
  store_->add(c10::str(prefix_, "g", generation, "/settled"), 1);
}

std::int64_t StepStore::settled_count(std::int64_t generation) {
  return store_->add(c10::str(prefix_, "g", generation, "/settled"), 0);
}

bool StepStore::elect(const Position& at, int round) {
  return store_->add(c10::str(key(at, "judges"), "/", round), 1) == 1;
}

void StepStore::leave(int rank) {
  mark(c10::str(prefix_, "left/", rank));
  mark(c10::str(prefix_, "left"));
}

bool StepStore::anyone_left() { return has(c10::str(prefix_, "left")); }

c10::intrusive_ptr<c10d::Store> StepStore::rendezvous(std::int64_t generation, RendezvousLimits limits) {
  return make_rendezvous_store(store_, c10::str(prefix_, "g", generation, "/gloo/"), std::move(limits));
}

std::string StepStore::key(const Position& at, const char* what) const {
  return c10::str(prefix_, "g", at.generation, "/s", at.step, "/", what);
}

std::string StepStore::key(std::int64_t generation, const char* what, int rank) const {
  return c10::str(prefix_, "g", generation, "/", what, "/", rank);
}

bool StepStore::has(const std::string& key) { return store_->check({key}); }

void StepStore::mark(const std::string& key) { store_->set(key, Bytes{1}); }

}  // namespace dcp
