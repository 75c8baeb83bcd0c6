// Items that go through stream transforms: zstd and ones of a program's own.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/expect_error.h"
#include "test/support/memory_counter.h"
#include "torch_dcp/io/span_file.h"
#include "torch_dcp/storage/item_stream_internal.h"
#include "torch_dcp/storage/stream_transforms.h"

namespace dcp::test {
namespace {

/// Flips all bits, and says so under a name and version of its own.
class Flip : public StreamTransform {
 public:
  explicit Flip(std::string descriptor = "stream.flip/1") : descriptor_(std::move(descriptor)) {}

  std::string descriptor() const override { return descriptor_; }
  std::unique_ptr<ByteSink> encode(ByteSink& to) const override { return std::make_unique<Sink>(to); }
  std::unique_ptr<ByteSource> decode(std::unique_ptr<ByteSource> from) const override {
    return std::make_unique<Source>(std::move(from));
  }

 private:
  struct Sink : ByteSink {
    explicit Sink(ByteSink& to) : to(to) {}
    void write(ByteSpan bytes) override {
      Bytes flipped(bytes.begin(), bytes.end());
      for (std::uint8_t& byte : flipped) byte = ~byte;
      to.write(flipped);
    }
    void finish() override { to.finish(); }
    ByteSink& to;
  };
  struct Source : ByteSource {
    explicit Source(std::unique_ptr<ByteSource> from) : from(std::move(from)) {}
    std::size_t read(MutableByteSpan out) override {
      const std::size_t count = from->read(out);
      for (std::uint8_t& byte : out.first(count)) byte = ~byte;
      return count;
    }
    std::unique_ptr<ByteSource> from;
  };

  std::string descriptor_;
};

/// Gives bytes without end.
class Endless : public StreamTransform {
 public:
  std::string descriptor() const override { return "endless/1"; }
  std::unique_ptr<ByteSink> encode(ByteSink& to) const override { return Flip().encode(to); }
  std::unique_ptr<ByteSource> decode(std::unique_ptr<ByteSource>) const override { return std::make_unique<Source>(); }

 private:
  struct Source : ByteSource {
    std::size_t read(MutableByteSpan out) override {
      std::fill(out.begin(), out.end(), 0);
      return out.size();
    }
  };
};

/// Reads all that comes and lets nothing out.
class Swallow : public StreamTransform {
 public:
  std::string descriptor() const override { return "swallow/1"; }
  std::unique_ptr<ByteSink> encode(ByteSink& to) const override { return Flip().encode(to); }
  std::unique_ptr<ByteSource> decode(std::unique_ptr<ByteSource> from) const override {
    return std::make_unique<Source>(std::move(from));
  }

 private:
  struct Source : ByteSource {
    explicit Source(std::unique_ptr<ByteSource> from) : from(std::move(from)) {}
    std::size_t read(MutableByteSpan out) override {
      while (from->read(out) > 0) continue;
      return 0;
    }
    std::unique_ptr<ByteSource> from;
  };
};

std::shared_ptr<const StreamTransform> flip() { return std::make_shared<Flip>(); }

StateDict all_kinds() {
  return {{"w", counted({5, 4})},
          {"turned", counted({4, 6}).t()},
          {"scalar", counted({}) + 7},
          {"none", counted({0, 3})},
          {"bits", counted({9}, at::kBFloat16)},
          {"large", counted({1 << 19})},
          {"n", 5},
          {"text", "a text"},
          {"dict", Dict{{"a", 1}, {"b", Tuple{Value(2), Value(counted({3}))}}}}};
}

std::vector<std::string> descriptors_in(const Metadata& metadata) {
  std::vector<std::string> descriptors = metadata.storage_data.begin()->second.transform_descriptors;
  for (const auto& [index, info] : metadata.storage_data) EXPECT_EQ(info.transform_descriptors, descriptors);
  return descriptors;
}

TEST(StreamTransformTest, WhatWentThroughComesBack) {
  const std::vector<StreamTransforms> lists = {{zstd_transform()},
                                               {zstd_transform(-5)},
                                               {zstd_transform(19)},
                                               {flip()},
                                               {flip(), zstd_transform()},
                                               {zstd_transform(), flip()},
                                               {zstd_transform(), zstd_transform(1), flip()}};
  for (const StreamTransforms& transforms : lists) {
    for (const std::size_t threads : {1u, 3u}) {
      const Place place;
      const StateDict state = all_kinds();
      const Metadata metadata = place.save(state, "c", {.thread_count = threads, .transforms = transforms});
      // The last one applied is the first to be undone.
      std::vector<std::string> expected;
      for (const auto& transform : transforms) expected.insert(expected.begin(), transform->descriptor());
      EXPECT_EQ(descriptors_in(metadata), expected);
      FileSystemReaderOptions reader{.thread_count = threads, .transforms = {flip()}, .file_system = place.files};
      EXPECT_EQ(first_difference(load_keys("c", {}, reader), state), "");
    }
  }
}

TEST(StreamTransformTest, SlicesAndOtherWorldSizes) {
  const auto files = make_memory_file_system();
  run_ranks(3, [&](RankContext& ranks) {
    place_of(ranks, files).save({{"w", split(counted({7, 6}), ranks)}}, "c", {.transforms = {zstd_transform()}});
  });
  run_ranks(2, [&](RankContext& ranks) {
    StateDict state = {{"w", split_pattern({7, 6}, ranks, 1)}};
    place_of(ranks, files).load(state, "c");
    const StateDict expected = {{"w", split(counted({7, 6}), ranks, 1)}};
    EXPECT_EQ(first_difference(state, expected), "");
  });
}

TEST(StreamTransformTest, UnknownOnesAreRefusedByName) {
  const Place place;
  const StateDict saved = {{"w", counted({4})}, {"n", 1}};
  const auto load_with = [&](const StreamTransforms& transforms) {
    StateDict state = {{"w", pattern({4})}, {"n", 0}};
    place.load(state, "c", {}, {.transforms = transforms});
    EXPECT_EQ(first_difference(state, saved), "");
  };
  place.save(saved, "c", {.transforms = {zstd_transform(), std::make_shared<Flip>("flip@there/2.1")}});
  for (const char* key : {"key 'w at [0]'", "key 'n'"}) {
    expect_error(ErrorKind::kUnsupported, key, [&] { load_with({}); });
  }
  expect_error(ErrorKind::kUnsupported, "went through 'flip@there/2.1'; this reader undoes stream.zstd/1",
               [&] { load_with({}); });
  expect_error(ErrorKind::kUnsupported, "'flip@there/2.1'", [&] { load_with({std::make_shared<Flip>("flip/2.1")}); });
  expect_error(ErrorKind::kUnsupported, "'flip@there/2.1'",
               [&] { load_with({std::make_shared<Flip>("flip@there/1")}); });
  expect_error(ErrorKind::kUnsupported, "'flip@there/2.1'",
               [&] { load_with({std::make_shared<Flip>("flip@there/21")}); });
  load_with({std::make_shared<Flip>("flip@there/2")});
  load_with({std::make_shared<Flip>("flip@there/2.7")});
  expect_error(ErrorKind::kInvalidArgument, "null", [&] { load_with({nullptr}); });
  expect_error(ErrorKind::kInvalidArgument, "null", [&] { place.save(saved, "d", {.transforms = {nullptr}}); });
  expect_error(ErrorKind::kInvalidArgument, "no level 23", [] { zstd_transform(23); });
  expect_error(ErrorKind::kInvalidArgument, "2^60", [] { zstd_transform(3, 60); });
}

TEST(StreamTransformTest, ADamagedItemIsAnErrorOrStillRight) {
  const Place place;
  place.save({{"w", counted({3})}}, "c", {.transforms = {zstd_transform()}});
  const Bytes data = contents_of(*place.files, "c").at("__0_0.distcp");
  const auto loads = [&] {
    StateDict state = {{"w", pattern({3})}};
    try {
      place.load(state, "c");
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what_without_backtrace()).find("w at [0]"), std::string::npos);
      return false;
    }
    EXPECT_TRUE(bit_equal(state["w"].as_tensor(), counted({3})));
    return true;
  };
  ASSERT_TRUE(loads());
  int refused = 0;
  for (std::size_t at = 0; at < data.size(); ++at) {
    Bytes changed = data;
    changed[at] ^= 0x11;
    write_file(*place.files, "c/__0_0.distcp", changed);
    refused += loads() ? 0 : 1;
  }
  EXPECT_GT(refused, static_cast<int>(data.size() / 2));
}

std::shared_ptr<const RandomAccessFile> decode(ByteSpan bytes, std::vector<std::string> descriptors,
                                               std::int64_t max_bytes = 1000) {
  const StorageInfo info{"f", 0, static_cast<std::int64_t>(bytes.size()), std::move(descriptors)};
  return decode_item(std::make_shared<SpanFile>(bytes), info, {zstd_transform(), std::make_shared<Endless>()},
                     max_bytes);
}

/// The bytes that an item of `size` zero bytes becomes.
Bytes zeros_through(const StreamTransforms& transforms, std::size_t size) {
  const auto files = make_memory_file_system();
  const auto out = files->create_file("f");
  TransformedItem item(*out, transforms);
  const Bytes piece(std::min<std::size_t>(size, 1 << 20));
  for (std::size_t left = size; left > 0; left -= std::min(left, piece.size())) {
    item.append(ByteSpan(piece).first(std::min(left, piece.size())));
  }
  EXPECT_EQ(item.size(), size);
  item.finish();
  out->close();
  return read_whole_file(*files, "f", 1u << 30);
}

TEST(StreamTransformTest, AFrameMustBeWholeAndAlone) {
  const Bytes frame = zeros_through({zstd_transform()}, 1000);
  EXPECT_EQ(decode(frame, {"stream.zstd/1"})->size(), 1000u);
  for (std::size_t cut = 0; cut < frame.size(); ++cut) {
    expect_error(ErrorKind::kCorruptData, "cut", [&] { decode(ByteSpan(frame).first(cut), {"stream.zstd/1"}); });
  }
  Bytes twice = frame;
  twice.insert(twice.end(), frame.begin(), frame.end());
  expect_error(ErrorKind::kCorruptData, "bytes follow the zstd frame", [&] { decode(twice, {"stream.zstd/1"}); });
  twice.resize(frame.size() + 1);
  expect_error(ErrorKind::kCorruptData, "bytes follow the zstd frame", [&] { decode(twice, {"stream.zstd/1"}); });
  expect_error(ErrorKind::kCorruptData, "not a sound zstd frame", [&] { decode(Bytes(100, 1), {"stream.zstd/1"}); });
}

TEST(StreamTransformTest, WhatComesOutIsBounded) {
  const Bytes bomb = zeros_through({zstd_transform()}, std::size_t{256} << 20);
  EXPECT_LT(bomb.size(), 100'000u);
  const testing::PeakMemory peak;
  expect_error(ErrorKind::kCorruptData, "more than 1000 bytes", [&] { decode(bomb, {"stream.zstd/1"}); });
  expect_error(ErrorKind::kCorruptData, "more than 5000000", [&] { decode(bomb, {"endless/1"}, 5'000'000); });
  EXPECT_LT(peak.bytes(), 24 << 20);
  expect_error(ErrorKind::kUnsupported, "9 transforms",
               [&] { decode(bomb, std::vector<std::string>(9, "stream.zstd/1")); });

  const Place place;
  place.save({{"w", counted({4})}, {"n", 1}}, "c", {.transforms = {std::make_shared<Endless>()}});
  const FileSystemReaderOptions reader{.transforms = {std::make_shared<Endless>()}, .file_system = place.files};
  for (const char* key : {"w", "n"}) {
    expect_error(ErrorKind::kCorruptData, key, [&] { load_keys("c", {key}, reader); });
  }
}

TEST(StreamTransformTest, WhatPassesBetweenTransformsIsBounded) {
  StorageInfo info{"f", 0, 4, {"endless/1", "swallow/1"}};
  const StreamTransforms known = {std::make_shared<Endless>(), std::make_shared<Swallow>()};
  expect_error(ErrorKind::kCorruptData, "pass between its transforms",
               [&] { decode_item(std::make_shared<SpanFile>(as_bytes("abcd")), info, known, 1 << 20); });
}

TEST(StreamTransformTest, WhatNoReaderTakesIsNotSaved) {
  const Place place;
  place.save({{"n", 1}}, "c");
  const std::string text =
      error_of([&] { place.save({{"text", std::string(65 << 20, 'a')}}, "c", {.transforms = {zstd_transform()}}); });
  EXPECT_NE(text.find("which readers refuse"), std::string::npos) << text;
  EXPECT_NE(text.find("text"), std::string::npos) << text;
  EXPECT_EQ(place.rebuild("c").at("n").as_int(), 1) << "the earlier checkpoint stays";
  const StreamTransforms many(9, flip());
  expect_error(ErrorKind::kUnsupported, "at most 8", [&] { FileSystemWriter("c", {.transforms = many}); });
}

TEST(StreamTransformTest, LargeWindowsAreReadOnlyWhereAllowed) {
  const Place place;
  const StateDict saved = {{"w", counted({4})}};
  place.save(saved, "c", {.transforms = {zstd_transform(22, 27)}});
  expect_error(ErrorKind::kUnsupported, "window of more than 8388608 bytes", [&] { place.rebuild("c"); });
  const FileSystemReaderOptions allowing{.transforms = {zstd_transform(3, 27)}, .file_system = place.files};
  EXPECT_EQ(first_difference(load_keys("c", {}, allowing), saved), "");
  place.save(saved, "d", {.transforms = {zstd_transform(22)}});
  EXPECT_EQ(first_difference(place.rebuild("d"), saved), "");
}

TEST(StreamTransformTest, WritingTakesFixedBuffers) {
  const Place place;
  const StateDict state = {{"w", at::zeros({std::int64_t{32} << 20})}};
  const testing::PeakMemory peak;
  const Metadata metadata = place.save(state, "c", {.transforms = {zstd_transform()}});
  EXPECT_LT(metadata.storage_data.begin()->second.length, 100'000);
  EXPECT_LT(peak.bytes(), 16 << 20) << "of 128 MiB";
}

}  // namespace
}  // namespace dcp::test
