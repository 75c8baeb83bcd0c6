// dcp: looks into checkpoints, checks, copies and converts them.
//
// Exit codes: 0 fine, 1 the checkpoint is bad (or cannot be read or written), 2 wrong use; of `verify`: 0 sound, 1
// faults, 2 it could not be looked at.

#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "tools/dcp/convert_command.h"
#include "tools/dcp/copy.h"
#include "tools/dcp/dump.h"
#include "tools/dcp/printable.h"
#include "tools/dcp/verify_command.h"
#include "torch_dcp/base/error.h"

namespace {

constexpr int kBadCheckpoint = 1;
constexpr int kWrongUse = 2;
constexpr int kCannotLook = 2;

struct Arguments {
  std::string path;
  std::string destination;
  bool has_json = false;
  bool keys_only = false;
  dcp::tool::CopyOptions copy;
  dcp::tool::VerifyCommand verify;
  dcp::tool::ConvertCommand convert;
};

/// expected.json's own form: one line an entry, so that two dumps compare line by line.
void print_dump(const nlohmann::ordered_json& dump) {
  std::cout << "{\n";
  bool is_first = true;
  for (const auto& [field, value] : dump.items()) {
    std::cout << (is_first ? "" : ",\n") << ' ' << nlohmann::ordered_json(field).dump() << ": ";
    is_first = false;
    if (field != "entries" || value.empty()) {
      std::cout << value.dump();
      continue;
    }
    std::cout << "{\n";
    bool is_first_entry = true;
    for (const auto& [key, entry] : value.items()) {
      std::cout << (is_first_entry ? "  " : ",\n  ") << nlohmann::ordered_json(key).dump() << ": " << entry.dump();
      is_first_entry = false;
    }
    std::cout << "\n }";
  }
  std::cout << "\n}\n";
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Looks into PyTorch distributed checkpoints, checks, copies and converts them, without Python and without "
      "running anything "
      "they contain."};
  app.require_subcommand(1);
  app.set_version_flag("--version", "dcp of torch_dcp, with LibTorch " TORCH_VERSION);
  Arguments arguments;

  const auto not_empty = [](const std::string& path) { return path.empty() ? "must not be empty" : ""; };
  CLI::App* list = app.add_subcommand("ls", "Lists keys, dtypes, global shapes, chunks and bytes");
  list->add_option("PATH", arguments.path, "Directory of the checkpoint")->required()->check(not_empty);

  CLI::App* dump = app.add_subcommand("dump", "Prints everything in a checkpoint");
  dump->add_option("PATH", arguments.path, "Directory of the checkpoint")->required()->check(not_empty);
  dump->add_flag("--json", arguments.has_json, "As JSON (the only form)")->required();
  dump->add_flag("--keys-only", arguments.keys_only, "Without the values");

  CLI::App* copy = app.add_subcommand("copy", "Loads a checkpoint on N ranks and saves it from there");
  copy->add_option("SRC", arguments.path, "Directory of the checkpoint")->required()->check(not_empty);
  copy->add_option("DST", arguments.destination, "Directory to save to")->required()->check(not_empty);
  copy->add_option("--ranks", arguments.copy.ranks, "Number of ranks; tensors are sharded over them on dim 0")
      ->required()
      ->check(CLI::Range(1, 256));
  copy->add_option("--threads", arguments.copy.threads, "Writer threads, and files, of each rank")
      ->check(CLI::Range(1, 256));

  copy->add_flag("--zstd", arguments.copy.zstd, "Compresses every item (PyTorch then needs its module zstandard)");

  CLI::App* verify =
      app.add_subcommand("verify", "Reads all of a checkpoint and names everything that is wrong with it");
  verify->add_option("PATH", arguments.verify.path, "The checkpoint")->required()->check(not_empty);
  verify->add_flag("--json", arguments.verify.as_json, "Prints the report as JSON");
  verify->add_option("--threads", arguments.verify.threads, "Items checked at once")->check(CLI::Range(1, 256));
  verify->add_flag("--follow-links", arguments.verify.follow_links, "Reads files that are symbolic links too");

  CLI::App* convert = app.add_subcommand("convert", "Writes a checkpoint as DCP, safetensors or a file of torch.save");
  convert->add_option("SRC", arguments.convert.source, "The checkpoint, of any of these kinds")
      ->required()
      ->check(not_empty);
  convert->add_option("DST", arguments.convert.destination, "Where to; nothing may be there")
      ->required()
      ->check(not_empty);
  convert
      ->add_option("--to", arguments.convert.to,
                   "Its kind. Without it: .safetensors, or .pt, .pth, .bin for torch, else dcp")
      ->check(CLI::IsMember({"dcp", "safetensors", "torch"}));
  convert->add_flag("--drop-objects", arguments.convert.options.drop_objects,
                    "Leaves out what the destination cannot hold, and says so");
  convert->add_flag("--overwrite", arguments.convert.options.overwrite, "Replaces what is there");
  convert->add_flag("--follow-links", arguments.convert.options.follow_links,
                    "Reads files that are symbolic links too");
  convert->add_option("--threads", arguments.convert.options.threads, "Items of the source checked at once")
      ->check(CLI::Range(1, 256));

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUse;
  }

  int status = 0;
  const int failed = verify->parsed() ? kCannotLook : kBadCheckpoint;
  try {
    // `bazel run` starts programs elsewhere; paths are meant from where the user is.
    if (const char* directory = std::getenv("BUILD_WORKING_DIRECTORY")) std::filesystem::current_path(directory);
    if (list->parsed()) std::cout << dcp::tool::list_checkpoint(arguments.path);
    if (dump->parsed()) print_dump(dcp::tool::dump_checkpoint(arguments.path, !arguments.keys_only));
    if (copy->parsed()) dcp::tool::copy_checkpoint(arguments.path, arguments.destination, arguments.copy);
    if (verify->parsed() && !dcp::tool::verify_checkpoint(arguments.verify, std::cout)) status = kBadCheckpoint;
    if (convert->parsed()) dcp::tool::run_conversion(arguments.convert, std::cout);
    if (!std::cout.flush()) throw std::runtime_error("the output could not be written");
  } catch (const c10::Error& error) {
    std::cerr << "dcp: " << dcp::tool::printable_lines(error.what_without_backtrace()) << '\n';
    return failed;
  } catch (const std::exception& error) {
    std::cerr << "dcp: " << dcp::tool::printable_lines(error.what()) << '\n';
    return failed;
  }
  return status;
}
