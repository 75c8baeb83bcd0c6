// Fuzz target of the reader of `.metadata`: whatever the bytes, it returns or throws an Error of ours, and what it
// returns can be checked and written.

#include <cstddef>
#include <cstdint>
#include <variant>

#include "test/fuzz/expected_error.h"
#include "torch_dcp/format/metadata_pickle.h"
#include "torch_dcp/plan/validate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  returns_or_refuses([&] {
    const dcp::Metadata metadata = dcp::decode_metadata({data, size});
    must(!dcp::encode_metadata(metadata).empty());
    for (const auto& [key, entry] : metadata.state_dict_metadata) {
      if (const auto* tensor = std::get_if<dcp::TensorStorageMetadata>(&entry)) dcp::find_chunk_fault(*tensor, true);
    }
  });
  return 0;
}
