#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <vector>

#include "torch_dcp/comm/bounded_call_internal.h"
#include "torch_dcp/comm/envelope_internal.h"

namespace c10d {
class ProcessGroup;
}

namespace dcp {

/// Says which step a rank is in, so that ranks whose calls differ notice.
struct StepStamp {
  std::uint64_t step = 0;
  std::uint64_t label_hash = 0;
};

StepStamp make_stamp(std::int64_t step, const std::string& label);

/// Moves envelopes between the ranks of a group that belongs to it alone.
///
/// Each call is collective: all ranks of the group, same order. An envelope travels as
/// a head of fixed size, which holds a small body, and else as a second message of
/// exactly the body's length: nothing is padded or multiplied by the world size. Works
/// on CPU tensors, which own their bytes, so a call that is left behind harms nobody.
///
/// Calls throw what the group throws, and after that the group must be dropped. `until`
/// ends each wait if the group's backend honours time-outs.
class ByteExchange {
 public:
  ByteExchange(c10::intrusive_ptr<c10d::ProcessGroup> group, int rank, int size, int coordinator);
  ~ByteExchange();
  ByteExchange(const ByteExchange&) = delete;
  ByteExchange& operator=(const ByteExchange&) = delete;

  /// \returns On the coordinator one envelope for each rank, elsewhere none.
  /// \throws dcp::Error kState on the coordinator if a rank's stamp differs from its own.
  std::vector<Envelope> gather(Envelope mine, const StepStamp& stamp, TimePoint until);
  /// \param from_coordinator  Counts on the coordinator alone.
  Envelope broadcast(Envelope from_coordinator, TimePoint until);
  /// \param from_coordinator  On the coordinator one envelope for each rank, elsewhere none.
  Envelope scatter(std::vector<Envelope> from_coordinator, TimePoint until);

 private:
  bool is_coordinator() const { return rank_ == coordinator_; }

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  int rank_;
  int size_;
  int coordinator_;
};

}  // namespace dcp
