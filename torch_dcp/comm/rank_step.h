#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch_dcp/comm/codec.h"
#include "torch_dcp/comm/communicator.h"

/// Rank steps: each rank runs a function, and the results meet.
///
/// Every step here is collective: all ranks of the communicator, same order, same label.
/// Either it returns on every rank or it throws the same dcp::CheckpointError on every
/// rank, with `label` as its step; whatever a function throws becomes a failure of its
/// rank, of the coordinator for a global function. No function may start another step of
/// the same communicator. Long functions ask `comm.throw_if_cancelled()` between items.
///
/// Results need `encode` and `decode` (`codec.h`) and a default constructor; in a world of
/// one they are handed over as they are.
namespace dcp {

/// Runs `fn() -> T` on each rank and returns all results, in rank order, on each.
template <typename Explicit = void, typename Fn>
auto all_gather_step(Communicator& comm, const std::string& label, Fn&& fn) {
  using T = std::conditional_t<std::is_void_v<Explicit>, std::decay_t<std::invoke_result_t<Fn&>>, Explicit>;
  std::vector<T> results;
  if (comm.size() == 1) {
    run_alone(label, [&] { results.push_back(fn()); });
    return results;
  }
  StepParts parts;
  parts.local = [&] { return to_bytes<T>(fn()); };
  parts.global = [](std::vector<Bytes> all) { return std::vector<Bytes>{to_bytes(all)}; };
  parts.receive = [&](Bytes bytes) {
    for (const Bytes& one : from_bytes<std::vector<Bytes>>(bytes)) results.push_back(from_bytes<T>(one));
  };
  comm.run_step(label, parts);
  return results;
}

namespace internal {

// What local and global functions of a reducing step have in common.
template <typename L, typename GlobalFn>
auto merge_locals(GlobalFn& global_fn, std::vector<Bytes> all) {
  std::vector<L> locals;
  locals.reserve(all.size());
  // Each is freed when it is decoded: there is not room for everything twice.
  for (Bytes& one : all) locals.push_back(from_bytes<L>(std::exchange(one, {})));
  return global_fn(std::move(locals));
}

template <typename L>
std::vector<L> just(L local) {
  std::vector<L> locals;
  locals.push_back(std::move(local));
  return locals;
}

}  // namespace internal

/// Runs `local_fn() -> L` on each rank, `global_fn(std::vector<L>) -> G` on the coordinator
/// with all results in rank order, and returns its result on each rank.
template <typename LocalFn, typename GlobalFn>
auto reduce_step(Communicator& comm, const std::string& label, LocalFn&& local_fn, GlobalFn&& global_fn) {
  using L = std::decay_t<std::invoke_result_t<LocalFn&>>;
  using G = std::decay_t<std::invoke_result_t<GlobalFn&, std::vector<L>>>;
  std::optional<G> result;
  if (comm.size() == 1) {
    run_alone(label, [&] { result.emplace(global_fn(internal::just<L>(local_fn()))); });
    return std::move(*result);
  }
  StepParts parts;
  parts.local = [&] { return to_bytes<L>(local_fn()); };
  parts.global = [&](std::vector<Bytes> all) {
    return std::vector<Bytes>{to_bytes<G>(internal::merge_locals<L>(global_fn, std::move(all)))};
  };
  parts.receive = [&](Bytes bytes) { result.emplace(from_bytes<G>(bytes)); };
  comm.run_step(label, parts);
  return std::move(*result);
}

/// As reduce_step, but `global_fn(std::vector<L>) -> std::vector<G>` gives one result for each
/// rank, and each rank gets its own.
template <typename LocalFn, typename GlobalFn>
auto reduce_scatter_step(Communicator& comm, const std::string& label, LocalFn&& local_fn, GlobalFn&& global_fn) {
  using L = std::decay_t<std::invoke_result_t<LocalFn&>>;
  using G = typename std::decay_t<std::invoke_result_t<GlobalFn&, std::vector<L>>>::value_type;
  std::optional<G> result;
  if (comm.size() == 1) {
    run_alone(label, [&] {
      std::vector<G> results = global_fn(internal::just<L>(local_fn()));
      DCP_CHECK(results.size() == 1, kInvalidArgument, "the coordinator's part of the step gave ", results.size(),
                " answers instead of 1");
      result.emplace(std::move(results.front()));
    });
    return std::move(*result);
  }
  StepParts parts;
  parts.local = [&] { return to_bytes<L>(local_fn()); };
  parts.global = [&](std::vector<Bytes> all) {
    std::vector<Bytes> answers;
    for (auto&& one : internal::merge_locals<L>(global_fn, std::move(all))) {
      answers.push_back(to_bytes<G>(G(std::move(one))));
    }
    return answers;
  };
  parts.answer_per_rank = true;
  parts.receive = [&](Bytes bytes) { result.emplace(from_bytes<G>(bytes)); };
  comm.run_step(label, parts);
  return std::move(*result);
}

/// Runs `fn() -> T` on the coordinator alone and returns its result on each rank.
template <typename Fn>
auto broadcast_step(Communicator& comm, const std::string& label, Fn&& fn) {
  using T = std::decay_t<std::invoke_result_t<Fn&>>;
  std::optional<T> result;
  if (comm.size() == 1) {
    run_alone(label, [&] { result.emplace(fn()); });
    return std::move(*result);
  }
  StepParts parts;
  parts.global = [&](std::vector<Bytes>) { return std::vector<Bytes>{to_bytes<T>(fn())}; };
  parts.receive = [&](Bytes bytes) { result.emplace(from_bytes<T>(bytes)); };
  comm.run_step(label, parts);
  return std::move(*result);
}

/// Runs `fn()` on each rank; returns when it has succeeded on all.
template <typename Fn>
void status_step(Communicator& comm, const std::string& label, Fn&& fn) {
  StepParts parts;
  parts.local = [&] {
    fn();
    return Bytes();
  };
  comm.run_step(label, parts);
}

}  // namespace dcp
