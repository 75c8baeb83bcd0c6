// Fuzz target of the reader of torch.save files, zip and older form: whatever the bytes, it returns or throws an Error
// of ours.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "test/fuzz/expected_error.h"
#include "torch_dcp/format/torch_save_file.h"
#include "torch_dcp/io/span_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  returns_or_refuses([&] {
    const dcp::TorchSaveFile file(std::make_shared<dcp::SpanFile>(dcp::ByteSpan(data, size)));
    for (const dcp::SavedTensor& tensor : file.tensors()) {
      must(tensor.item.sizes.size() == tensor.item.strides.size());
      must(tensor.item.data_bytes >= 0 && tensor.item.data_position >= 0);
    }
    file.read();
  });
  return 0;
}
