// Fuzz target of the pickle reader: whatever the bytes, it returns or throws an Error of ours.

#include <cstddef>
#include <cstdint>

#include "torch_dcp/base/error.h"
#include "torch_dcp/pickle/reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    std::size_t consumed = 0;
    const dcp::pickle::Pickle pickle = dcp::pickle::parse({data, size}, {}, &consumed);
    if (pickle.root == nullptr || consumed == 0 || consumed > size) __builtin_trap();
  } catch (const dcp::Error& error) {
    const bool is_expected =
        error.kind() == dcp::ErrorKind::kCorruptData || error.kind() == dcp::ErrorKind::kUnsupported;
    if (!is_expected) __builtin_trap();
  }
  return 0;
}
