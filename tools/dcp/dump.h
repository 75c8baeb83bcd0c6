#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace dcp::tool {

/// Describes everything in a checkpoint as JSON: the form of the golden fixtures' expected.json, with the fields that a
/// folder can tell (test/golden/fixtures/README.md). Values are read with the library's own load. Of a folder saved
/// without collectives: what each rank saved, and all ranks together, or in `no_entries` why they do not fit together.
///
/// \param with_values  Off: names, kinds, dtypes, shapes and places only.
/// \throws dcp::Error, naming file, key and cause.
nlohmann::ordered_json dump_checkpoint(const std::string& path, bool with_values = true);

/// One line per key: kind, dtype, global shape, chunks, bytes.
std::string list_checkpoint(const std::string& path);

}  // namespace dcp::tool
