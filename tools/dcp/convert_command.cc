#include "tools/dcp/convert_command.h"

#include <ostream>

#include "tools/dcp/printable.h"
#include "tools/dcp/terminal_progress.h"
#include "torch_dcp/base/error.h"

namespace dcp::tool {
namespace {

CheckpointKind kind_of_name(const std::string& name) {
  for (const CheckpointKind kind : {CheckpointKind::kDcp, CheckpointKind::kSafetensors, CheckpointKind::kTorchSave}) {
    if (name == checkpoint_kind_name(kind)) return kind;
  }
  DCP_THROW(kInvalidArgument, "no kind of checkpoint is called '", name, "'");
}

}  // namespace

void run_conversion(const ConvertCommand& command, std::ostream& out) {
  TerminalProgress check("check  ");
  TerminalProgress conversion("convert");
  ConvertOptions options = command.options;
  if (!command.to.empty()) options.to = kind_of_name(command.to);
  options.on_check = check.callback();
  if (const auto on_convert = conversion.callback()) {
    options.on_convert = [&check, on_convert](std::int64_t done, std::int64_t total) {
      check.finish();
      on_convert(done, total);
    };
  }
  const ConvertReport report = convert_checkpoint(command.source, command.destination, options);
  check.finish();
  conversion.finish();
  for (const std::string& dropped : report.dropped) out << "dropped: " << printable(dropped) << '\n';
  out << printable(command.source) << " (" << checkpoint_kind_name(report.from) << ") -> "
      << printable(command.destination) << " (" << checkpoint_kind_name(report.to) << "): " << report.tensor_count
      << " tensors, " << report.byte_count << " bytes, " << report.object_count << " objects\n";
}

}  // namespace dcp::tool
