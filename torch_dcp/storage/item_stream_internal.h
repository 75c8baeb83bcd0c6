#pragma once

#include <memory>
#include <string>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/limits.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/plan/metadata.h"
#include "torch_dcp/storage/stream_transforms.h"

// Items that go through stream transforms on their way into a data file and out of it.

namespace dcp {

/// Each takes memory of its own, and a file may name any number.
inline constexpr std::size_t kMaxTransforms = 8;

/// How many bytes an object may have that takes `stored_bytes` after its transforms: the metadata do not say how many
/// there are. 64 MiB, or 16 times those that are stored.
std::int64_t most_object_bytes(std::int64_t stored_bytes);

/// What an item's `transform_descriptors` say after these transforms, applied in this order: the last one first.
std::vector<std::string> descriptors_of(const StreamTransforms& transforms);

/// The front of a data file, seen by what writes one item: what is appended here goes through the transforms into
/// `out`. `sync` and `close` are not for an item: they throw kInternal.
class TransformedItem : public WritableFile {
 public:
  TransformedItem(WritableFile& out, const StreamTransforms& transforms);
  ~TransformedItem() override;

  void append(ByteSpan bytes) override;
  std::uint64_t size() const override { return size_; }  // before the transforms
  void sync() override;
  void close() override;

  /// Ends the item: all of it has been appended to `out`.
  void finish();

 private:
  std::unique_ptr<ByteSink> end_;
  std::vector<std::unique_ptr<ByteSink>> encoders_;  // the last one applied first
  std::uint64_t size_ = 0;
};

/// Where an item's bytes are to be read: in its data file, or in memory once its transforms are undone.
struct ItemBytes {
  std::shared_ptr<const RandomAccessFile> file;
  std::int64_t offset = 0;  ///< of the item in `file`
  std::int64_t length = 0;
};

/// An object's bytes, at most `most_object_bytes`.
ItemBytes open_object(std::shared_ptr<const RandomAccessFile> file, const StorageInfo& info,
                      const StreamTransforms& known, const ParseLimits& limits);

/// A chunk's bytes, at most those of its elements, of a quantizer's numbers for its longest dimension, and 1 MiB.
ItemBytes open_chunk(std::shared_ptr<const RandomAccessFile> file, const Metadata& metadata, const MetadataIndex& index,
                     const StorageInfo& info, const StreamTransforms& known);

/// Undoes an item's transforms.
///
/// \param known      Transforms that may have been applied; of two for one descriptor the first counts.
/// \param max_bytes  How much may come out of it. Memory is taken as bytes come out, never for what a header says.
/// \returns          The item as it was before, as a file of its own.
/// \throws dcp::Error kUnsupported for a descriptor that no known transform has, naming it; kCorruptData for bytes
///         that the transforms refuse, and for more than `max_bytes`.
std::shared_ptr<const RandomAccessFile> decode_item(std::shared_ptr<const RandomAccessFile> file,
                                                    const StorageInfo& info, const StreamTransforms& known,
                                                    std::int64_t max_bytes);

}  // namespace dcp
