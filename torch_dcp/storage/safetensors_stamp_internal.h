#pragma once

#include <cstdint>
#include <string>

#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/format/safetensors.h"

namespace dcp {

/// What every file of a save says of this in its `__metadata__`, so that files of two saves, or some files of one, are
/// never taken for a checkpoint.
struct SafetensorsStamp {
  std::string save_id;  ///< the same in all files of a save, shards and whole ones, and in no others; empty: none
  std::int64_t file_count = 0;  ///< of the save, in the file's folder; 0: the file does not say

  friend bool operator==(const SafetensorsStamp&, const SafetensorsStamp&) = default;
};

/// The entries of a file's metadata.
OrderedMap<std::string, std::string> stamp_metadata(const SafetensorsStamp& stamp);

/// The reverse. \throws dcp::Error kCorruptData.
SafetensorsStamp stamp_of(const SafetensorsHeader& header);

/// As one text, in which the coordinator tells it to all ranks.
std::string encode_stamp(const SafetensorsStamp& stamp);

/// \throws dcp::Error kState if the text is none.
SafetensorsStamp decode_stamp(const std::string& text);

/// Spells "save ID" or "no save that says so".
std::string spell_save(const std::string& save_id);

}  // namespace dcp
