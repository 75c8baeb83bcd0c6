#pragma once

#include <chrono>
#include <functional>

namespace dcp {

using TimePoint = std::chrono::steady_clock::time_point;

/// What is left until `until`, at least one millisecond (zero means "no limit" to c10d).
std::chrono::milliseconds time_left(TimePoint until);

/// Runs `work` on a thread of its own and waits for it until `until`, or until
/// `give_up` returns true (asked every few milliseconds; may be empty).
///
/// Calls into a store or a group may hang for ever when a peer is stopped. Only a
/// thread that can be left behind keeps that from its caller.
///
/// \param work  Must own, or share, all that it touches: after false is returned it
///              runs on alone and its exception is dropped with it.
/// \returns true if `work` has ended, false if it was left behind.
/// \throws What `work` threw.
bool run_bounded(std::function<void()> work, TimePoint until, const std::function<bool()>& give_up = {});

}  // namespace dcp
