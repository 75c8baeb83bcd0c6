#include "torch_dcp/format/zstd_stream.h"

#include <zstd.h>
#include <zstd_errors.h>

#include <cstdint>
#include <string>
#include <utility>

#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

/// Levels up to this one choose windows of at most 2^kPlainWindowLog bytes.
constexpr int kMaxPlainLevel = 19;
constexpr int kPlainWindowLog = 23;

struct FreeStream {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

/// Checks what a call that cannot fail for the bytes' sake returned.
std::size_t expect_ok(std::size_t result, const char* call) {
  DCP_CHECK(!ZSTD_isError(result), kIo, "zstd, ", call, ": ", ZSTD_getErrorName(result));
  return result;
}

class ZstdEncoder : public ByteSink {
 public:
  ZstdEncoder(ByteSink& to, int level, int max_window_log)
      : to_(to), context_(ZSTD_createCCtx()), out_(ZSTD_CStreamOutSize()) {
    DCP_CHECK(context_, kIo, "zstd: out of memory");
    expect_ok(ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, level), "level");
    if (level > kMaxPlainLevel || max_window_log < kPlainWindowLog) {
      expect_ok(ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_windowLog, max_window_log), "window");
    }
  }

  void write(ByteSpan bytes) override {
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    while (in.pos < in.size) compress(in, ZSTD_e_continue);
  }

  void finish() override {
    ZSTD_inBuffer in{nullptr, 0, 0};
    while (compress(in, ZSTD_e_end) != 0) continue;
    to_.finish();
  }

 private:
  std::size_t compress(ZSTD_inBuffer& in, ZSTD_EndDirective directive) {
    ZSTD_outBuffer out{out_.data(), out_.size(), 0};
    const std::size_t left = expect_ok(ZSTD_compressStream2(context_.get(), &out, &in, directive), "compressing");
    if (out.pos > 0) to_.write(ByteSpan(out_).first(out.pos));
    return left;
  }

  ByteSink& to_;
  std::unique_ptr<ZSTD_CCtx, FreeStream> context_;
  Bytes out_;
};

class ZstdDecoder : public ByteSource {
 public:
  ZstdDecoder(std::unique_ptr<ByteSource> from, int max_window_log)
      : from_(std::move(from)),
        max_window_log_(max_window_log),
        context_(ZSTD_createDCtx()),
        buffer_(ZSTD_DStreamInSize()) {
    DCP_CHECK(context_, kIo, "zstd: out of memory");
    expect_ok(ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, max_window_log), "window");
  }

  std::size_t read(MutableByteSpan bytes) override {
    ZSTD_outBuffer out{bytes.data(), bytes.size(), 0};
    if (taken_ == 0) refill();
    while (out.pos < out.size && !is_at_end_) {
      const std::size_t left = ZSTD_decompressStream(context_.get(), &out, &in_);
      check(left);
      if (left == 0) {
        end();
      } else if (in_.pos == in_.size && out.pos < out.size) {  // it has given all that it held back
        refill();
      }
    }
    return out.pos;
  }

 private:
  void refill() {
    in_ = {buffer_.data(), from_->read(buffer_), 0};
    taken_ += in_.size;
    DCP_CHECK(in_.size > 0, kCorruptData, "the zstd frame is cut after ", taken_, " bytes");
  }

  void check(std::size_t result) const {
    if (!ZSTD_isError(result)) return;
    const std::size_t at = taken_ - (in_.size - in_.pos);
    const ZSTD_ErrorCode code = ZSTD_getErrorCode(result);
    DCP_CHECK(code != ZSTD_error_frameParameter_windowTooLarge, kUnsupported,
              "a zstd frame with a window of more than ", std::uint64_t{1} << max_window_log_, " bytes");
    DCP_CHECK(code != ZSTD_error_memory_allocation, kIo, "zstd: out of memory");
    DCP_THROW(kCorruptData, "not a sound zstd frame, at byte ", at, ": ", ZSTD_getErrorName(result));
  }

  void end() {
    is_at_end_ = true;
    if (in_.pos == in_.size) in_ = {buffer_.data(), from_->read(MutableByteSpan(buffer_).first(1)), 0};
    DCP_CHECK(in_.pos == in_.size, kCorruptData, "bytes follow the zstd frame");
  }

  std::unique_ptr<ByteSource> from_;
  int max_window_log_;
  std::unique_ptr<ZSTD_DCtx, FreeStream> context_;
  Bytes buffer_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  std::uint64_t taken_ = 0;  ///< bytes read of the frame
  bool is_at_end_ = false;
};

class ZstdTransform : public StreamTransform {
 public:
  ZstdTransform(int level, int max_window_log) : level_(level), max_window_log_(max_window_log) {}

  std::string descriptor() const override { return "stream.zstd/1"; }

  std::unique_ptr<ByteSink> encode(ByteSink& to) const override {
    return std::make_unique<ZstdEncoder>(to, level_, max_window_log_);
  }

  std::unique_ptr<ByteSource> decode(std::unique_ptr<ByteSource> from) const override {
    return std::make_unique<ZstdDecoder>(std::move(from), max_window_log_);
  }

 private:
  int level_;
  int max_window_log_;
};

}  // namespace

std::shared_ptr<const StreamTransform> make_zstd_transform(int level, int max_window_log) {
  const ZSTD_bounds levels = ZSTD_cParam_getBounds(ZSTD_c_compressionLevel);
  const ZSTD_bounds windows = ZSTD_dParam_getBounds(ZSTD_d_windowLogMax);
  DCP_CHECK(level >= levels.lowerBound && level <= levels.upperBound, kInvalidArgument, "zstd has no level ", level);
  DCP_CHECK(max_window_log >= windows.lowerBound && max_window_log <= windows.upperBound, kInvalidArgument,
            "zstd has no window of 2^", max_window_log, " bytes; it has 2^", windows.lowerBound, " to 2^",
            windows.upperBound);
  return std::make_shared<ZstdTransform>(level, max_window_log);
}

}  // namespace dcp
