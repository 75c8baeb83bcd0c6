#pragma once

#include <optional>

#include "torch_dcp/examples/launch_environment.h"
#include "torch_dcp/examples/step_report.h"

namespace dcp::examples {

/// Set by the launcher for rank 0: the socket of its link.
inline constexpr const char* kLinkDescriptorVariable = "TORCH_DCP_TRAIN_LINK_FD";

/// One end of the line between rank 0 and the launcher that started it: a socket that keeps messages apart.
class ProgressLink {
 public:
  /// Takes over a connected socket of type SOCK_SEQPACKET.
  explicit ProgressLink(int descriptor) : descriptor_(descriptor) {}
  ~ProgressLink();
  ProgressLink(ProgressLink&& other) noexcept;
  ProgressLink& operator=(ProgressLink&&) = delete;

  /// Rank 0's end, if this process inherited one.
  static std::optional<ProgressLink> inherited(const Variables& variables);

  int descriptor() const { return descriptor_; }

  /// Rank 0: tells a step and waits for the answer, so that what the launcher does about it comes before the next step.
  /// \throws std::runtime_error if the launcher is gone.
  void report(const StepReport& report);

  /// Launcher: waits for a report; nothing when rank 0 has gone.
  std::optional<StepReport> receive();
  /// Launcher: lets rank 0 go on. Does nothing if it has gone.
  void answer();

 private:
  int descriptor_;
};

}  // namespace dcp::examples
