#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/export.h"

namespace dcp {

/// Bytes that are pulled one after another.
class DCP_API ByteSource {
 public:
  virtual ~ByteSource();

  /// Fills `out` from its front. Returns how many bytes it gave: fewer than asked for only at the end.
  virtual std::size_t read(MutableByteSpan out) = 0;
};

/// Bytes that are pushed one after another.
class DCP_API ByteSink {
 public:
  virtual ~ByteSink();

  virtual void write(ByteSpan bytes) = 0;

  /// Hands on all that was held back; no bytes come after it.
  virtual void finish() = 0;
};

/// What an item's bytes go through on their way to a data file, such as a compression, and back. Derive from it for
/// one of your own; the descriptor in the metadata tells a reader, also Python's, which one it needs.
///
/// Thread safety: one transform serves several threads; each stream that it makes belongs to one.
/// Source: torch/distributed/checkpoint/_extension.py, StreamTransformExtension (2.14.1).
class DCP_API StreamTransform {
 public:
  virtual ~StreamTransform();

  /// `NAME/VERSION`, such as "stream.zstd/1". A reader takes items of the same name and the same number before the
  /// version's first dot.
  virtual std::string descriptor() const = 0;

  /// A stream that passes on to `to` what is written to it, transformed; `finish` finishes `to` too. `to` must
  /// outlive it. Should hold back no more than a fixed number of bytes.
  virtual std::unique_ptr<ByteSink> encode(ByteSink& to) const = 0;

  /// A stream of what `encode` was given, from one that gives what it passed on. The bytes may come from a hostile
  /// file: whoever reads bounds how many it takes, the stream how much memory it needs for them.
  ///
  /// Its `read` throws dcp::Error kCorruptData for bytes that are no such stream, that end before it does or go on
  /// behind it; kUnsupported for one that needs more memory than it allows.
  virtual std::unique_ptr<ByteSource> decode(std::unique_ptr<ByteSource> from) const = 0;
};

}  // namespace dcp
