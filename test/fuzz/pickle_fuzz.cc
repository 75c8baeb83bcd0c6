// Fuzz target of the pickle reader: whatever the bytes, it returns or throws an Error of ours.

#include <cstddef>
#include <cstdint>

#include "test/fuzz/expected_error.h"
#include "torch_dcp/pickle/reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  returns_or_refuses([&] {
    std::size_t consumed = 0;
    const dcp::pickle::Pickle pickle = dcp::pickle::parse({data, size}, {}, &consumed);
    must(pickle.root != nullptr && consumed > 0 && consumed <= size);
  });
  return 0;
}
