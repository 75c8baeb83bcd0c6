#include "tools/dcp/verify_command.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "tools/dcp/printable.h"
#include "tools/dcp/terminal_progress.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/storage/verify.h"

namespace dcp::tool {
namespace {

using Json = nlohmann::ordered_json;

Json report_json(const std::string& path, const VerifyReport& report) {
  Json json;
  json["path"] = path;
  json["kind"] = checkpoint_kind_name(report.kind);
  json["is_sound"] = report.is_sound();
  json["files"] = report.file_count;
  json["tensors"] = report.tensor_count;
  json["chunks"] = report.chunk_count;
  json["objects"] = report.object_count;
  json["bytes"] = report.byte_count;
  json["faults"] = Json::array();
  for (const VerifyFault& fault : report.faults) {
    json["faults"].push_back(
        {{"file", fault.file}, {"key", fault.key}, {"kind", error_kind_name(fault.kind)}, {"cause", fault.cause}});
  }
  json["strays"] = report.strays;
  if (!report.not_united.empty()) json["not_united"] = report.not_united;
  json["opaque_objects"] = Json::array();
  for (const OpaqueObject& object : report.opaque_objects) {
    json["opaque_objects"].push_back({{"key", object.key}, {"type", object.type_name}});
  }
  return json;
}

void print_text(const std::string& path, const VerifyReport& report, std::ostream& out) {
  for (const VerifyFault& fault : report.faults) {
    std::string line = fault.file;
    if (!fault.key.empty()) line += (line.empty() ? "" : ": ") + fault.key;
    out << "fault: " << printable(line + ": " + error_kind_name(fault.kind) + ": " + fault.cause) << '\n';
  }
  for (const OpaqueObject& object : report.opaque_objects) {
    out << "opaque: " << printable(object.key + ": " + object.type_name) << '\n';
  }
  if (!report.not_united.empty()) out << "note: " << printable(report.not_united) << '\n';
  for (const std::string& stray : report.strays) out << "stray: " << printable(stray) << '\n';
  out << printable(path) << " (" << checkpoint_kind_name(report.kind) << "): " << report.tensor_count << " tensors in "
      << report.chunk_count << " chunks, " << report.object_count << " objects, " << report.byte_count << " bytes, "
      << report.file_count << " files: ";
  if (report.is_sound()) {
    out << "sound\n";
  } else {
    out << report.faults.size() << (report.faults.size() == 1 ? " fault\n" : " faults\n");
  }
}

}  // namespace

bool verify_checkpoint(const VerifyCommand& command, std::ostream& out) {
  TerminalProgress progress("verify");
  VerifyOptions options;
  options.thread_count = command.threads;
  options.follow_links = command.follow_links;
  options.on_progress = progress.callback();
  const VerifyReport report = verify(command.path, options);
  progress.finish();
  if (command.as_json) {
    // Names of files need not be UTF-8.
    out << report_json(command.path, report).dump(1, ' ', false, Json::error_handler_t::replace) << '\n';
  } else {
    print_text(command.path, report, out);
  }
  return report.is_sound();
}

}  // namespace dcp::tool
