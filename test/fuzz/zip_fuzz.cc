// Fuzz target of the reader of tensor items: whatever the bytes, it returns or throws an Error of ours, and what it
// returns can be read.

#include <cstddef>
#include <cstdint>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/io/span_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const dcp::SpanFile file({data, size});
  try {
    const dcp::TensorItem item = dcp::open_tensor_item(file, 0, static_cast<std::int64_t>(size));
    const dcp::Bytes storage = dcp::read_storage(file, 0, item);
    if (static_cast<std::int64_t>(storage.size()) != item.data_bytes) __builtin_trap();
    if (item.sizes.size() != item.strides.size()) __builtin_trap();
  } catch (const dcp::Error& error) {
    const bool is_expected =
        error.kind() == dcp::ErrorKind::kCorruptData || error.kind() == dcp::ErrorKind::kUnsupported;
    if (!is_expected) __builtin_trap();
  }
  return 0;
}
