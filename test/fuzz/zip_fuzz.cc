// Fuzz target of the reader of tensor items: whatever the bytes, it returns or throws an Error of ours, and what it
// returns can be read.

#include <cstddef>
#include <cstdint>

#include "test/fuzz/expected_error.h"
#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/io/span_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const dcp::SpanFile file({data, size});
  returns_or_refuses([&] {
    const dcp::TensorItem item = dcp::open_tensor_item(file, 0, static_cast<std::int64_t>(size));
    const dcp::Bytes storage = dcp::read_storage(file, 0, item);
    must(static_cast<std::int64_t>(storage.size()) == item.data_bytes);
    must(item.sizes.size() == item.strides.size());
  });
  return 0;
}
