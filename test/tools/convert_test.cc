// Conversions in parts: tensors of any layout, cut as small as can be.

#include "tools/dcp/convert.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/expect_error.h"
#include "tools/dcp/printable.h"
#include "torch_dcp/checkpoint/by_checkpoint_id.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/storage/torch_save.h"
#include "torch_dcp/tensor/box_pieces.h"

namespace dcp::tool {
namespace {

namespace fs = std::filesystem;
using test::counted;
using test::Place;

TEST(Pieces, FollowEachOtherInRowMajorOrder) {
  const std::vector<Sizes> all_sizes = {{}, {0}, {7}, {1, 5}, {3, 4}, {2, 3, 5}, {1, 2, 1, 6}, {4, 0, 2}};
  for (const Sizes& sizes : all_sizes) {
    const at::Tensor tensor = counted(sizes, at::kLong);
    for (const std::int64_t most : {1, 8, 16, 24, 100, 1000}) {
      SCOPED_TRACE(to_string(sizes) + " in " + std::to_string(most));
      std::int64_t next = 0;
      for (const Box& box : cut_into_pieces(sizes, 8, most)) {
        at::Tensor piece = tensor;
        for (std::size_t d = 0; d < box.ndim(); ++d) {
          piece = piece.narrow(static_cast<std::int64_t>(d), box.offsets[d], box.sizes[d]);
        }
        EXPECT_LE(piece.numel() * 8, std::max<std::int64_t>(most, 8));
        const at::Tensor flat = piece.contiguous().view(-1);
        for (std::int64_t i = 0; i < flat.numel(); ++i) EXPECT_EQ(flat[i].item<std::int64_t>(), next++);
      }
      EXPECT_EQ(next, tensor.numel());
    }
  }
  EXPECT_EQ(cut_into_pieces({4, 3}, 8, 48).size(), 2u);
}

class ConvertTest : public ::testing::Test {
 protected:
  ConvertTest() : folder_(fs::path(::testing::TempDir()) / "convert_test") {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~ConvertTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }

  ConvertReport convert(const std::string& from, const std::string& to, ConvertOptions options = {}) const {
    options.max_chunk_bytes = 100;
    options.max_piece_bytes = 50;
    return convert_checkpoint(path(from), path(to), options);
  }

  StateDict load(const std::string& name) const { return load_keys(path(name)); }

  fs::path folder_;
};

/// Of three ranks, cut along its dimension 1, with an uneven last part and an empty one in another tensor.
void save_sharded(const std::string& path, const FileSystemWriterOptions& writer = {}) {
  test::run_ranks(3, [&](test::RankContext& ranks) {
    const Place place = test::place_of(ranks, local_file_system());
    Dict numbered;
    numbered[Key(std::int64_t{3})] = test::split(counted({2, 3}), ranks);
    place.save({{"columns", test::split(counted({9, 8}), ranks, 1)},
                {"rows", test::split(counted({2, 40}, at::kDouble), ranks)},
                {"numbered", numbered},
                {"list", List{counted({3}), Value(7), Value(Dict{{"deep", counted({1})}})}},
                {"step", 5}},
               path, writer);
  });
}

StateDict whole_of_sharded() {
  Dict numbered;
  numbered[Key(std::int64_t{3})] = counted({2, 3});
  return {{"columns", counted({9, 8})},
          {"rows", counted({2, 40}, at::kDouble)},
          {"numbered", numbered},
          {"list", List{counted({3}), Value(7), Value(Dict{{"deep", counted({1})}})}},
          {"step", 5}};
}

TEST_F(ConvertTest, ShardsThroughTorchSave) {
  save_sharded(path("shards"));
  const ConvertReport report = convert("shards", "whole.pt");
  EXPECT_EQ(report.tensor_count, 5);
  EXPECT_EQ(report.object_count, 2);
  EXPECT_EQ(report.byte_count, (9 * 8 + 6 + 3 + 1) * 4 + 80 * 8);
  const Value whole = torch_load(path("whole.pt"));
  for (const auto& [key, value] : whole_of_sharded()) {
    EXPECT_TRUE(bit_equal(whole.as_dict().at(key), value)) << to_string(key);
  }
  convert("whole.pt", "back");
  for (const auto& [key, value] : whole_of_sharded()) {
    EXPECT_TRUE(bit_equal(load("back").at(key), value)) << to_string(key);
  }
  // 640 bytes in chunks of at most 100.
  const Metadata metadata = read_metadata(path("back"));
  const auto& rows = std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find("rows"));
  EXPECT_GE(rows.chunks.size(), 7u);
  for (const Box& chunk : rows.chunks) EXPECT_LE(chunk.numel() * 8, 100);
}

TEST_F(ConvertTest, ShardsThroughSafetensors) {
  save_sharded(path("shards"), {.transforms = {zstd_transform()}});
  const ConvertReport report = convert("shards", "whole.safetensors", {.drop_objects = true});
  EXPECT_EQ(report.dropped, (std::vector<std::string>{"list.1: int", "step: int"}));
  EXPECT_EQ(report.object_count, 0);
  convert("whole.safetensors", "back");
  const StateDict back = load("back");
  EXPECT_TRUE(bit_equal(back.at("columns"), Value(counted({9, 8}))));
  EXPECT_TRUE(bit_equal(back.at("rows"), Value(counted({2, 40}, at::kDouble))));
  EXPECT_TRUE(bit_equal(back.at("numbered.3"), Value(counted({2, 3}))));
  EXPECT_TRUE(bit_equal(back.at("list.2.deep"), Value(counted({1}))));
  EXPECT_EQ(back.size(), 5u);
}

TEST_F(ConvertTest, SharedAndStridedTensorsOfTorchSave) {
  const at::Tensor base = counted({6, 5});
  const at::Tensor conjugate = at::complex(counted({3}), counted({3})).conj();
  StateDict state{{"base", base},
                  {"tied", base},
                  {"columns", base.t()},
                  {"slice", base.narrow(0, 2, 3)},
                  {"conjugate", conjugate},
                  {"pair", Tuple{base.narrow(1, 1, 2), Value("x")}},
                  {"parameter", counted({4}).requires_grad_(true)}};
  torch_save(Value(state), path("state.pt"));
  convert("state.pt", "dcp");
  convert("dcp", "again.pt");
  const StateDict dcp = load("dcp");
  const Value again = torch_load(path("again.pt"));
  for (const auto& [key, value] : state) {
    EXPECT_TRUE(bit_equal(dcp.at(key), value)) << to_string(key);
    EXPECT_TRUE(bit_equal(again.as_dict().at(key), value)) << to_string(key);
  }
  const Metadata metadata = read_metadata(path("dcp"));
  const auto needs_grad = [&](const std::string& key) {
    return std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find(key)).properties.requires_grad;
  };
  EXPECT_TRUE(needs_grad("parameter"));
  EXPECT_FALSE(needs_grad("base"));
}

TEST_F(ConvertTest, TensorsOfDictsInTuples) {
  const StateDict state{{"both", Tuple{Dict{{"w", counted({2, 3})}}, List{Dict{{"step", Tuple{counted({1}), 5}}}}}}};
  torch_save(Value(state), path("state.pt"));
  convert("state.pt", "dcp");
  EXPECT_EQ(first_difference(state, load("dcp")), "");
}

TEST_F(ConvertTest, ASourceThatLiesWhereTheDestinationIsWritten) {
  torch_save(Value(Dict{{"w", counted({3})}}), path("x.pt"));
  fs::rename(path("x.pt"), path("x.pt.tmp"));
  fs::create_hard_link(path("x.pt.tmp"), path("same.pt"));
  for (const std::string source : {"x.pt.tmp", "same.pt"}) {
    test::expect_error(ErrorKind::kInvalidArgument, "which is the source", [&] { convert(source, "x.pt"); });
  }
  EXPECT_TRUE(bit_equal(torch_load(path("x.pt.tmp")).as_dict().at("w"), Value(counted({3}))));
  EXPECT_FALSE(fs::exists(path("x.pt")));
}

TEST_F(ConvertTest, TheOtherKindOfFolderIsNotOverwritten) {
  torch_save(Value(Dict{{"w", counted({3})}}), path("x.pt"));
  ConvertOptions to_safetensors{.to = CheckpointKind::kSafetensors, .overwrite = true};
  convert("x.pt", "tensors", to_safetensors);
  test::expect_error(ErrorKind::kAlreadyExists, "safetensors",
                     [&] { convert("x.pt", "tensors", {.overwrite = true}); });
  EXPECT_FALSE(fs::exists(path("tensors/.metadata")));
  convert("x.pt", "dcp");
  test::expect_error(ErrorKind::kAlreadyExists, ".metadata", [&] { convert("x.pt", "dcp", to_safetensors); });
  convert("x.pt", "dcp", {.overwrite = true});
}

TEST(Printable, LinesStayLines) {
  EXPECT_EQ(printable("a\x1b[2J\nb"), "a\\x1b[2J\\x0ab");
  EXPECT_EQ(printable_lines("a\x1b[2J\n\n b\x7f\n"), "a\\x1b[2J\n\n b\\x7f\n");
  EXPECT_EQ(printable_lines(""), "");
}

TEST_F(ConvertTest, ProgressAddsUp) {
  save_sharded(path("shards"));
  for (const std::string name : {"x.pt", "x"}) {
    std::int64_t last = 0;
    std::int64_t last_total = 0;
    ConvertOptions options;
    options.on_convert = [&](std::int64_t done, std::int64_t total) {
      EXPECT_GT(done, last);
      last = done;
      last_total = total;
    };
    const ConvertReport report = convert("shards", name, options);
    EXPECT_EQ(last, report.byte_count);
    EXPECT_EQ(last_total, report.byte_count);
  }
}

TEST_F(ConvertTest, FailureOnTheWayLeavesNothing) {
  save_sharded(path("shards"));
  for (const std::string name : {"x.pt", "x.safetensors", "x", "y/z/x"}) {
    ConvertOptions options;
    options.drop_objects = true;
    options.on_convert = [&](std::int64_t done, std::int64_t) {
      if (done > 200) DCP_THROW(kIo, "stop here");
    };
    test::expect_error(ErrorKind::kIo, "stop here", [&] { convert("shards", name, options); });
    EXPECT_FALSE(fs::exists(path(name))) << name;
    options.to = CheckpointKind::kSafetensors;
    test::expect_error(ErrorKind::kIo, "stop here", [&] { convert("shards", name, options); });
    EXPECT_FALSE(fs::exists(path(name))) << name;
  }
  fs::remove_all(path("y"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(ConvertTest, ASourceThatIsReplacedMeanwhile) {
  for (const std::string name : {"x.pt", "x.safetensors", "x"}) {
    save_sharded(path("shards"));
    ConvertOptions options;
    options.drop_objects = true;
    bool is_replaced = false;
    options.on_convert = [&](std::int64_t done, std::int64_t) {
      if (done <= 200 || std::exchange(is_replaced, true)) return;
      save_sharded(path("shards"));
    };
    test::expect_error(ErrorKind::kState, "was replaced", [&] { convert("shards", name, options); });
    EXPECT_TRUE(is_replaced) << name;
    EXPECT_FALSE(fs::exists(path(name))) << name;
  }
}

TEST_F(ConvertTest, FailureOnTheWayKeepsWhatWasThere) {
  save_sharded(path("shards"));
  const Place place{.files = local_file_system()};
  place.save({{"old", counted({3})}}, path("dcp"));
  torch_save(Value(Dict{{"old", counted({3})}}), path("old.pt"));
  ConvertOptions options;
  options.overwrite = true;
  options.on_convert = [&](std::int64_t done, std::int64_t) {
    if (done > 200) DCP_THROW(kIo, "stop here");
  };
  for (const std::string name : {"dcp", "old.pt"}) {
    test::expect_error(ErrorKind::kIo, "stop here", [&] { convert("shards", name, options); });
  }
  EXPECT_TRUE(bit_equal(load("dcp").at("old"), Value(counted({3}))));
  EXPECT_TRUE(bit_equal(torch_load(path("old.pt")).as_dict().at("old"), Value(counted({3}))));
}

TEST_F(ConvertTest, WhatIsNoStateDictIsRefused) {
  torch_save(Value(List{counted({2})}), path("list.pt"));
  test::expect_error(ErrorKind::kUnsupported, "not a state dict", [&] { convert("list.pt", "x"); });
  test::expect_error(ErrorKind::kUnsupported, "key 'scaled'", [&] {
    torch_save(Value(Dict{{"scaled", at::quantize_per_tensor(counted({4}), 0.5, 3, at::kQUInt8)}}), path("q.pt"));
    convert("q.pt", "x");
  });
  EXPECT_FALSE(fs::exists(path("x")));
}

TEST(Destination, KindBySuffix) {
  EXPECT_EQ(kind_of_destination("a/b.safetensors"), CheckpointKind::kSafetensors);
  EXPECT_EQ(kind_of_destination("b.pt"), CheckpointKind::kTorchSave);
  EXPECT_EQ(kind_of_destination("b.pth"), CheckpointKind::kTorchSave);
  EXPECT_EQ(kind_of_destination("pytorch_model.bin"), CheckpointKind::kTorchSave);
  EXPECT_EQ(kind_of_destination("run/step-5"), CheckpointKind::kDcp);
}

}  // namespace
}  // namespace dcp::tool
