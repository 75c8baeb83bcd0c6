#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/format/object_item.h"
#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/format/torch_save_file.h"
#include "torch_dcp/storage/block_sums_internal.h"
#include "torch_dcp/storage/item_writer_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

/// Small enough that the bytes are still in the cache when the file takes them after the checksum.
constexpr std::int64_t kChecksumBytes = std::int64_t{256} << 10;

ByteSpan elements_of(const at::Tensor& tensor) {
  return {static_cast<const std::uint8_t*>(tensor.const_data_ptr()), tensor.nbytes()};
}

at::Tensor plain(const at::Tensor& view) { return view.cpu().resolve_conj().resolve_neg().contiguous(); }

bool is_plain(const at::Tensor& view) {
  return view.is_cpu() && view.is_contiguous() && !view.is_conj() && !view.is_neg();
}

/// Beside the elements it has its quantizer's numbers, for which the usual form has no place.
void write_quantized(WritableFile& out, const at::Tensor& view) {
  at::Tensor whole = view.cpu().contiguous();
  if (whole.storage().nbytes() != whole.nbytes()) whole = whole.clone();  // The whole storage would be written.
  TorchSaveWriter writer(out, Value(whole));
  writer.finish();
}

}  // namespace

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

ItemWriter::ItemWriter(const SavePlanner& planner, bool checksums, std::int64_t copy_bytes)
    : planner_(planner), checksums_(checksums), copy_bytes_(copy_bytes) {}

std::vector<std::uint32_t> ItemWriter::write_tensor(WritableFile& out, const WriteItem& item, const at::Tensor& view) {
  DCP_CHECK(view.sizes() == c10::IntArrayRef(item.chunk.sizes), kInternal, "the planner resolved a tensor of sizes ",
            to_string(view.sizes()), ", planned was ", to_string(item.chunk.sizes));
  DCP_CHECK(view.scalar_type() == item.properties.dtype, kInternal, "the planner resolved a tensor of dtype ",
            dtype_name(view.scalar_type()), ", planned was ", dtype_name(item.properties.dtype));
  if (view.is_quantized()) {
    write_quantized(out, view);
    return {};
  }
  TensorItemForm& form = forms_.of(view.scalar_type(), view.sizes());
  if (form.data_bytes() <= kChecksumBytes) {
    const at::Tensor whole = is_plain(view) ? view : plain(view);
    const ByteSpan elements = elements_of(whole);
    out.append_all({form.head(), elements, form.tail(checksums_ ? crc32_of(elements) : 0)});
    return {};
  }
  BlockSummer summer;
  out.append(form.head());
  for_each_part(view, copy_bytes_, [&](ByteSpan part) {
    while (!part.empty()) {
      const ByteSpan piece = part.first(std::min({part.size(), std::size_t{kChecksumBytes}, summer.room()}));
      part = part.subspan(piece.size());
      if (checksums_) summer.add(piece);
      out.append(piece);
    }
  });
  out.append(form.tail(checksums_ ? summer.crc32() : 0));
  return summer.sums();
}

std::vector<std::uint32_t> ItemWriter::write(WritableFile& out, const WriteItem& item) {
  if (item.is_tensor()) return write_tensor(out, item, planner_.resolve_tensor(item));
  out.append(encode_object_item(planner_.resolve_object(item)));
  return {};
}

}  // namespace dcp
