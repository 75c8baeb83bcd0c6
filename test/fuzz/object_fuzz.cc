// Fuzz target of the reader of object items: whatever the bytes, it returns or throws an Error of ours, and what it
// returns can be written.

#include <cstddef>
#include <cstdint>

#include "test/fuzz/expected_error.h"
#include "torch_dcp/format/object_item.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  returns_or_refuses([&] {
    const dcp::Value value = dcp::decode_object_item(dcp::Bytes(data, data + size));
    must(!dcp::encode_object_item(value).empty());
  });
  return 0;
}
