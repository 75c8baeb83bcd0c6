// Fuzz target of the reader of safetensors headers: whatever the bytes, it returns or throws an Error of ours, and the
// tensors that it tells of lie in the file.

#include <cstddef>
#include <cstdint>

#include "test/fuzz/expected_error.h"
#include "torch_dcp/format/safetensors.h"
#include "torch_dcp/io/span_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const dcp::SpanFile file({data, size});
  returns_or_refuses([&] {
    const dcp::SafetensorsHeader header = dcp::read_safetensors_header(file);
    const auto file_bytes = static_cast<std::int64_t>(size);
    must(header.data_position >= 0 && header.data_position <= file_bytes);
    for (const dcp::SafetensorsTensor& tensor : header.tensors) {
      must(tensor.position >= 0 && tensor.byte_count >= 0);
      must(tensor.position <= file_bytes - header.data_position);
      must(tensor.byte_count <= file_bytes - header.data_position - tensor.position);
      must(!tensor.global_size || tensor.saved_offsets);
      for (std::size_t d = 0; tensor.global_size && d < tensor.sizes.size(); ++d) {
        must(tensor.sizes[d] <= (*tensor.global_size)[d] - (*tensor.saved_offsets)[d]);
      }
    }
  });
  return 0;
}
