#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/format/object_item.h"
#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/storage/item_writer_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

/// Small enough that the bytes are still in the cache when the file takes them after the checksum.
constexpr std::int64_t kChecksumBytes = std::int64_t{1} << 20;

ByteSpan elements_of(const at::Tensor& tensor) {
  return {static_cast<const std::uint8_t*>(tensor.const_data_ptr()), tensor.nbytes()};
}

at::Tensor plain(const at::Tensor& view) { return view.cpu().resolve_conj().resolve_neg().contiguous(); }

bool is_plain(const at::Tensor& view) {
  return view.is_cpu() && view.is_contiguous() && !view.is_conj() && !view.is_neg();
}

/// Calls `use` with the tensor's elements in row-major order, in one or more parts.
void for_each_part(const at::Tensor& view, std::int64_t copy_bytes, const std::function<void(ByteSpan)>& use) {
  if (is_plain(view)) return use(elements_of(view));
  const auto bytes = static_cast<std::int64_t>(view.nbytes());
  if (bytes <= copy_bytes || view.dim() == 0) return use(elements_of(plain(view)));
  // Cut along the first dimension that can be; dimensions of size 1 before it change nothing in the order.
  std::int64_t dim = 0;
  while (dim < view.dim() && view.size(dim) == 1) ++dim;
  if (dim == view.dim()) return use(elements_of(plain(view)));
  const std::int64_t rows = view.size(dim);
  const std::int64_t step = std::max<std::int64_t>(1, copy_bytes / std::max<std::int64_t>(1, bytes / rows));
  for (std::int64_t row = 0; row < rows; row += step) {
    for_each_part(view.narrow(dim, row, std::min(step, rows - row)), copy_bytes, use);
  }
}

void write_tensor(WritableFile& out, const WriteItem& item, const at::Tensor& view, std::int64_t copy_bytes) {
  DCP_CHECK(view.sizes() == c10::IntArrayRef(item.chunk.sizes), kInternal, "the planner resolved a tensor of sizes ",
            to_string(view.sizes()), ", planned was ", to_string(item.chunk.sizes));
  DCP_CHECK(view.scalar_type() == item.properties.dtype, kInternal, "the planner resolved a tensor of dtype ",
            dtype_name(view.scalar_type()), ", planned was ", dtype_name(item.properties.dtype));
  const TensorItemFrame frame = begin_tensor_item(view.scalar_type(), view.sizes());
  if (frame.data_bytes <= kChecksumBytes) {
    const at::Tensor whole = is_plain(view) ? view : plain(view);
    const ByteSpan elements = elements_of(whole);
    const Bytes tail = finish_tensor_item(frame, crc32_of(elements));
    out.append_all({frame.head, elements, tail});
    return;
  }
  std::uint32_t crc32 = 0;
  out.append(frame.head);
  for_each_part(view, copy_bytes, [&](ByteSpan part) {
    while (!part.empty()) {
      const ByteSpan piece = part.first(std::min(part.size(), std::size_t{kChecksumBytes}));
      part = part.subspan(piece.size());
      crc32 = crc32_of(piece, crc32);
      out.append(piece);
    }
  });
  out.append(finish_tensor_item(frame, crc32));
}

}  // namespace

void write_item(WritableFile& out, const WriteItem& item, const SavePlanner& planner, std::int64_t copy_bytes) {
  if (item.is_tensor()) {
    write_tensor(out, item, planner.resolve_tensor(item), copy_bytes);
  } else {
    out.append(encode_object_item(planner.resolve_object(item)));
  }
}

}  // namespace dcp
