#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>

#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/value_digest_internal.h"
#include "torch_dcp/tensor/box_pieces.h"
#include "torch_dcp/tensor/quantized.h"

namespace dcp {
namespace {

constexpr std::int64_t kCopyBytes = std::int64_t{16} << 20;

/// Four sums side by side, so that the multiplications do not wait for each other. Each step can be undone, and so
/// keeps every difference there was.
class Digest {
 public:
  void number(std::uint64_t value) {
    std::uint64_t& lane = lanes_[next_++ % lanes_.size()];
    lane = step(lane, value);
  }

  /// A run of bytes, in one or more parts: how it is divided makes no difference. Ended by `end_run`.
  void run(ByteSpan bytes) {
    if (bytes.empty()) return;
    if (pending_count_ > 0) {
      const std::size_t count = std::min(bytes.size(), pending_.size() - pending_count_);
      std::memcpy(pending_.data() + pending_count_, bytes.data(), count);
      pending_count_ += count;
      bytes = bytes.subspan(count);
      if (pending_count_ < pending_.size()) return;
      block(pending_.data());
      pending_count_ = 0;
    }
    for (; bytes.size() >= kBlockBytes; bytes = bytes.subspan(kBlockBytes)) block(bytes.data());
    if (!bytes.empty()) std::memcpy(pending_.data(), bytes.data(), bytes.size());
    pending_count_ = bytes.size();
  }

  void end_run() {
    if (pending_count_ == 0) return;
    std::fill(pending_.begin() + static_cast<std::ptrdiff_t>(pending_count_), pending_.end(), std::uint8_t{0});
    block(pending_.data());
    pending_count_ = 0;
  }

  void text(ByteSpan bytes) {
    number(bytes.size());
    run(bytes);
    end_run();
  }
  void text(std::string_view value) { text(as_bytes(value)); }

  std::uint64_t result() const {
    std::uint64_t result = step(kStart, next_);
    for (const std::uint64_t lane : lanes_) result = step(result, lane);
    return step(result, result >> 32);
  }

 private:
  static constexpr std::size_t kBlockBytes = 4 * sizeof(std::uint64_t);
  static constexpr std::uint64_t kStart = 0x9e3779b97f4a7c15;
  static constexpr std::uint64_t kFactor = 0xff51afd7ed558ccd;  // odd: the product can be undone

  /// One product leaves a difference in the topmost bits there, for the next word to undo: these go into low ones
  /// first, and are spread from there.
  static std::uint64_t step(std::uint64_t sum, std::uint64_t word) {
    const std::uint64_t product = (sum ^ word) * kFactor;
    return std::rotl((product ^ (product >> 32)) * kFactor, 29);
  }

  void block(const std::uint8_t* bytes) {
    std::array<std::uint64_t, 4> words;
    std::memcpy(words.data(), bytes, kBlockBytes);
    for (std::size_t i = 0; i < words.size(); ++i) lanes_[i] = step(lanes_[i], words[i]);
  }

  std::array<std::uint64_t, 4> lanes_ = {kStart, kStart + 1, kStart + 2, kStart + 3};
  std::uint64_t next_ = 0;
  std::array<std::uint8_t, kBlockBytes> pending_ = {};  ///< of the run, less than a block
  std::size_t pending_count_ = 0;
};

void add_plain(Digest& digest, const at::Tensor& tensor) {
  digest.run({static_cast<const std::uint8_t*>(tensor.const_data_ptr()), tensor.nbytes()});
}

void add_elements(Digest& digest, const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  if (tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
    return add_plain(digest, tensor);
  }
  const auto element_bytes = static_cast<std::int64_t>(tensor.element_size());
  for (const Box& piece : cut_into_pieces(Sizes(tensor.sizes()), element_bytes, kCopyBytes)) {
    at::Tensor view = tensor;
    for (std::size_t dim = 0; dim < piece.ndim(); ++dim) {
      view = view.narrow(static_cast<std::int64_t>(dim), piece.offsets[dim], piece.sizes[dim]);
    }
    add_plain(digest, view.cpu().resolve_conj().resolve_neg().contiguous());
  }
}

void add_tensor(Digest& digest, const at::Tensor& tensor) {
  DCP_CHECK(tensor.defined(), kInvalidArgument, "the tensor is undefined");
  digest.number(static_cast<std::uint64_t>(tensor.scalar_type()));
  digest.number(static_cast<std::uint64_t>(tensor.dim()));
  for (const std::int64_t size : tensor.sizes()) digest.number(static_cast<std::uint64_t>(size));
  if (!tensor.is_quantized()) {
    add_elements(digest, tensor.detach());
    return digest.end_run();
  }
  const Quantizer quantizer = quantizer_of(tensor);
  digest.number(std::bit_cast<std::uint64_t>(quantizer.scale));
  digest.number(static_cast<std::uint64_t>(quantizer.zero_point));
  digest.number(static_cast<std::uint64_t>(quantizer.axis));
  if (quantizer.is_per_channel()) {
    add_tensor(digest, quantizer.scales);
    add_tensor(digest, quantizer.zero_points);
  }
  add_elements(digest, integers_of(tensor));
  digest.end_run();
}

void add_key(Digest& digest, const Key& key) {
  digest.number(key.index());
  if (const auto* text = std::get_if<std::string>(&key)) {
    digest.text(*text);
  } else {
    digest.number(static_cast<std::uint64_t>(std::get<std::int64_t>(key)));
  }
}

void add_value(Digest& digest, const Value& value);

void add_sequence(Digest& digest, const std::vector<Value>& values) {
  digest.number(values.size());
  for (const Value& value : values) add_value(digest, value);
}

void add_value(Digest& digest, const Value& value) {
  digest.number(static_cast<std::uint64_t>(value.kind()));
  switch (value.kind()) {
    case ValueKind::kNone:
      return;
    case ValueKind::kBool:
      return digest.number(value.as_bool() ? 1 : 0);
    case ValueKind::kInt:
      return digest.number(static_cast<std::uint64_t>(value.as_int()));
    case ValueKind::kDouble:
      return digest.number(std::bit_cast<std::uint64_t>(value.as_double()));
    case ValueKind::kString:
      return digest.text(value.as_string());
    case ValueKind::kBytes:
      return digest.text(ByteSpan(value.as_bytes()));
    case ValueKind::kTensor:
      return add_tensor(digest, value.as_tensor());
    case ValueKind::kDict:
      digest.number(value.as_dict().size());
      for (const auto& [key, child] : value.as_dict()) {
        add_key(digest, key);
        add_value(digest, child);
      }
      return;
    case ValueKind::kList:
      return add_sequence(digest, value.as_list());
    case ValueKind::kTuple:
      return add_sequence(digest, value.as_tuple());
    case ValueKind::kOpaque:
      digest.text(value.as_opaque().type_name);
      return digest.text(ByteSpan(*value.as_opaque().item));
    case ValueKind::kDTensor:
    case ValueKind::kShardedTensor:
    case ValueKind::kStateful:
      break;
  }
  DCP_THROW(kUnsupported, "a ", value_kind_name(value.kind()), " is no object that can be saved");
}

}  // namespace

std::uint64_t digest_of(const at::Tensor& tensor) {
  Digest digest;
  add_tensor(digest, tensor);
  return digest.result();
}

std::uint64_t digest_of(const Value& value) {
  Digest digest;
  add_value(digest, value);
  return digest.result();
}

}  // namespace dcp
