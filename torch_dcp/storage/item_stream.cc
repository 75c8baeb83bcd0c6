#include <algorithm>
#include <string_view>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/io/span_file.h"
#include "torch_dcp/storage/item_stream_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

constexpr std::int64_t kMaxObjectBytes = std::int64_t{64} << 20;
constexpr std::int64_t kObjectBytesPerStored = 16;
/// What a tensor item may have beside its elements.
constexpr std::int64_t kMaxFrameBytes = std::int64_t{1} << 20;
/// A scale and a zero point.
constexpr std::int64_t kQuantizerBytes = 16;
/// What may pass between two transforms beside what comes out at last: a stream that is compressed once more is as
/// long as what it holds.
constexpr std::int64_t kMaxBytesBetween = std::int64_t{64} << 20;

class FileSink : public ByteSink {
 public:
  explicit FileSink(WritableFile& out) : out_(out) {}
  void write(ByteSpan bytes) override { out_.append(bytes); }
  void finish() override {}

 private:
  WritableFile& out_;
};

/// The stored bytes of an item.
class FileSource : public ByteSource {
 public:
  FileSource(std::shared_ptr<const RandomAccessFile> file, std::int64_t offset, std::int64_t length)
      : file_(std::move(file)), at_(static_cast<std::uint64_t>(offset)), left_(static_cast<std::uint64_t>(length)) {}

  std::size_t read(MutableByteSpan out) override {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), left_));
    file_->read_at(at_, out.first(count));
    at_ += count;
    left_ -= count;
    return count;
  }

 private:
  std::shared_ptr<const RandomAccessFile> file_;
  std::uint64_t at_;
  std::uint64_t left_;
};

/// What comes out of a transform that is not the last one. Without an end to it, streams within streams that hold
/// nothing would be read for ever.
class BoundedSource : public ByteSource {
 public:
  BoundedSource(std::unique_ptr<ByteSource> from, std::int64_t max_bytes) : from_(std::move(from)), left_(max_bytes) {}

  std::size_t read(MutableByteSpan out) override {
    const std::size_t count = from_->read(out);
    left_ -= static_cast<std::int64_t>(count);
    DCP_CHECK(left_ >= 0, kCorruptData, "more bytes pass between its transforms than the item can have");
    return count;
  }

 private:
  std::unique_ptr<ByteSource> from_;
  std::int64_t left_;
};

class OwnedFile : public RandomAccessFile {
 public:
  explicit OwnedFile(Bytes bytes) : bytes_(std::move(bytes)), view_(bytes_) {}
  std::uint64_t size() const override { return view_.size(); }
  void read_at(std::uint64_t offset, MutableByteSpan out) const override { view_.read_at(offset, out); }

 private:
  Bytes bytes_;
  SpanFile view_;
};

/// A descriptor's name and the number before its version's first dot.
std::pair<std::string_view, std::string_view> name_and_major(std::string_view descriptor) {
  const std::size_t slash = std::min(descriptor.find('/'), descriptor.size());
  std::string_view version = descriptor.substr(std::min(slash + 1, descriptor.size()));
  version = version.substr(0, version.find('.'));
  return {descriptor.substr(0, slash), version};
}

const StreamTransform* find_transform(const std::string& descriptor, const StreamTransforms& known) {
  for (const auto& transform : known) {
    if (name_and_major(transform->descriptor()) == name_and_major(descriptor)) return transform.get();
  }
  return nullptr;
}

std::string spell_known(const StreamTransforms& known) {
  std::string text;
  for (const auto& transform : known) text += (text.empty() ? "" : ", ") + transform->descriptor();
  return text.empty() ? "none" : text;
}

}  // namespace

std::int64_t most_object_bytes(std::int64_t stored_bytes) {
  return std::max(kMaxObjectBytes, checked_mul(stored_bytes, kObjectBytesPerStored).value_or(INT64_MAX));
}

std::vector<std::string> descriptors_of(const StreamTransforms& transforms) {
  std::vector<std::string> descriptors;
  for (auto transform = transforms.rbegin(); transform != transforms.rend(); ++transform) {
    descriptors.push_back((*transform)->descriptor());
  }
  return descriptors;
}

TransformedItem::TransformedItem(WritableFile& out, const StreamTransforms& transforms)
    : end_(std::make_unique<FileSink>(out)) {
  for (auto transform = transforms.rbegin(); transform != transforms.rend(); ++transform) {
    encoders_.push_back((*transform)->encode(encoders_.empty() ? *end_ : *encoders_.back()));
  }
}

TransformedItem::~TransformedItem() = default;

void TransformedItem::append(ByteSpan bytes) {
  (encoders_.empty() ? *end_ : *encoders_.back()).write(bytes);
  size_ += bytes.size();
}

void TransformedItem::sync() { DCP_THROW(kInternal, "an item is synced with its file"); }
void TransformedItem::close() { DCP_THROW(kInternal, "an item is closed with its file"); }

void TransformedItem::finish() { (encoders_.empty() ? *end_ : *encoders_.back()).finish(); }

ItemBytes open_object(std::shared_ptr<const RandomAccessFile> file, const StorageInfo& info,
                      const StreamTransforms& known, const ParseLimits& limits) {
  if (info.transform_descriptors.empty()) return {std::move(file), info.offset, info.length};
  const auto most = static_cast<std::int64_t>(limits.max_string_bytes);
  file = decode_item(std::move(file), info, known, std::min(most, most_object_bytes(info.length)));
  const auto length = static_cast<std::int64_t>(file->size());
  return {std::move(file), 0, length};
}

ItemBytes open_chunk(std::shared_ptr<const RandomAccessFile> file, const Metadata& metadata, const MetadataIndex& index,
                     const StorageInfo& info, const StreamTransforms& known) {
  if (info.transform_descriptors.empty()) return {std::move(file), info.offset, info.length};
  const std::optional<Box> chunk = find_chunk(metadata, index);
  DCP_CHECK(chunk, kInternal, to_string(index), " is no stored chunk");
  const auto& tensor = std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find(index.fqn));
  const auto numel = checked_numel(chunk->sizes);
  const auto bytes = numel ? checked_mul(*numel, element_bytes(tensor.properties.dtype)) : std::nullopt;
  auto most = bytes ? checked_add(*bytes, kMaxFrameBytes) : std::nullopt;
  if (most && c10::isQIntType(tensor.properties.dtype) && !chunk->sizes.empty()) {
    const std::int64_t longest = *std::max_element(chunk->sizes.begin(), chunk->sizes.end());
    const auto quantizer_bytes = checked_mul(longest, kQuantizerBytes);
    most = quantizer_bytes ? checked_add(*most, *quantizer_bytes) : std::nullopt;
  }
  DCP_CHECK(most, kCorruptData, "the bytes of chunk ", to_string(*chunk), " overflow");
  file = decode_item(std::move(file), info, known, *most);
  const auto length = static_cast<std::int64_t>(file->size());
  return {std::move(file), 0, length};
}

std::shared_ptr<const RandomAccessFile> decode_item(std::shared_ptr<const RandomAccessFile> file,
                                                    const StorageInfo& info, const StreamTransforms& known,
                                                    std::int64_t max_bytes) {
  DCP_CHECK(info.transform_descriptors.size() <= kMaxTransforms, kUnsupported, "its bytes went through ",
            info.transform_descriptors.size(), " transforms, more than ", kMaxTransforms);
  std::unique_ptr<ByteSource> source = std::make_unique<FileSource>(std::move(file), info.offset, info.length);
  for (const std::string& descriptor : info.transform_descriptors) {
    const StreamTransform* transform = find_transform(descriptor, known);
    DCP_CHECK(transform, kUnsupported, "its bytes went through '", descriptor, "'; this reader undoes ",
              spell_known(known));
    source = transform->decode(std::move(source));
    if (&descriptor == &info.transform_descriptors.back()) break;
    source = std::make_unique<BoundedSource>(std::move(source),
                                             checked_add(max_bytes, kMaxBytesBetween).value_or(INT64_MAX));
  }
  Bytes bytes;
  for (std::size_t count = kPieceBytes; count == kPieceBytes;) {
    const std::size_t begin = bytes.size();
    // Doubles, so that the copies stay few, but never reaches far beyond what may come.
    if (bytes.capacity() - begin < kPieceBytes) {
      const auto most = static_cast<std::size_t>(max_bytes) + kPieceBytes;
      bytes.reserve(std::max(begin + kPieceBytes, std::min(2 * bytes.capacity(), most)));
    }
    bytes.resize(begin + kPieceBytes);
    count = source->read(MutableByteSpan(bytes).subspan(begin));
    bytes.resize(begin + count);
    DCP_CHECK(bytes.size() <= static_cast<std::size_t>(max_bytes), kCorruptData, "more than ", max_bytes,
              " bytes come out of its transforms, which is more than the item can have");
  }
  return std::make_shared<OwnedFile>(std::move(bytes));
}

}  // namespace dcp
