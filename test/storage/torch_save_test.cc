#include "torch_dcp/storage/torch_save.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/crashing_file_system.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/io/memory_file_system.h"
#include "torch_dcp/state_dict/equal.h"

namespace dcp {
namespace {

using test::counted;
using test::CrashPolicy;
using test::expect_error;
using test::FaultInjectingFileSystem;
using test::FileOp;
using test::pattern;
using test::Place;
using Lines = std::vector<std::string>;

StateDict sample() {
  const at::Tensor w = counted({3, 4});
  return {{"w", w}, {"tied", w}, {"row", w[1]}, {"step", 7}, {"nested", Dict{{"b", counted({5}, at::kBFloat16)}}}};
}

TorchSaveOptions save_in(std::shared_ptr<FileSystem> files, TorchSaveForm form = TorchSaveForm::kZip) {
  TorchSaveOptions options;
  options.file_system = std::move(files);
  options.form = form;
  return options;
}

TorchLoadOptions load_from(std::shared_ptr<FileSystem> files) {
  TorchLoadOptions options;
  options.file_system = std::move(files);
  return options;
}

TEST(TorchSaveTest, WritesBesideSyncsAndRenames) {
  auto base = make_memory_file_system();
  base->create_directories("dir");
  const auto files = std::make_shared<FaultInjectingFileSystem>(base);
  torch_save(sample(), "dir/model.pt", save_in(files));
  const Lines changes = files->changes();
  ASSERT_GE(changes.size(), 6u);
  EXPECT_EQ(changes.front(), "create dir/model.pt.tmp");
  EXPECT_EQ(Lines(changes.end() - 4, changes.end()),
            (Lines{"sync dir/model.pt.tmp", "close dir/model.pt.tmp", "rename dir/model.pt.tmp dir/model.pt",
                   "sync_directory dir"}));
  EXPECT_EQ(files->list_directory("dir"), Lines{"model.pt"});
  files->clear_trace();
  TorchSaveOptions options = save_in(files);
  options.sync = false;
  torch_save(sample(), "dir/model.pt", options);
  EXPECT_EQ(files->changes().back(), "rename dir/model.pt.tmp dir/model.pt");
}

TEST(TorchSaveTest, AFailureLeavesTheOldFile) {
  for (const FileOp op : {FileOp::kCreate, FileOp::kAppend, FileOp::kSync, FileOp::kClose, FileOp::kRename}) {
    const auto files = std::make_shared<FaultInjectingFileSystem>(make_memory_file_system());
    torch_save(Dict{{"a", 1}}, "model.pt", save_in(files));
    files->fail({.op = op, .path_contains = "model.pt.tmp"});
    expect_error(ErrorKind::kIo, "model.pt", [&] { torch_save(sample(), "model.pt", save_in(files)); });
    EXPECT_EQ(torch_load("model.pt", load_from(files)).as_dict().at("a").as_int(), 1) << file_op_name(op);
    EXPECT_EQ(files->file_type("model.pt.tmp"), FileType::kNone) << file_op_name(op);
  }
  // Also what is refused before its first byte, and a writer that is given up.
  const auto files = make_memory_file_system();
  torch_save(Dict{{"a", 1}}, "model.pt", save_in(files));
  expect_error(ErrorKind::kUnsupported, "model.pt",
               [&] { torch_save(Dict{{"s", at::eye(2).to_sparse()}}, "model.pt", save_in(files)); });
  const at::Tensor described = at::empty({2}, at::TensorOptions(at::kMeta));
  expect_error(ErrorKind::kUnsupported, "meta device", [&] { torch_save(described, "model.pt", save_in(files)); });
  {
    TorchFileWriter writer(described, "model.pt", save_in(files));
  }
  EXPECT_EQ(torch_load("model.pt", load_from(files)).as_dict().at("a").as_int(), 1);
  EXPECT_EQ(files->file_type("model.pt.tmp"), FileType::kNone);
}

/// The outcomes of a power cut after `change_count` changes; false once the save runs to its end.
bool power_cut_keeps_old_or_new(std::uint64_t change_count) {
  const std::shared_ptr<test::CrashingFileSystem> disk = test::make_crashing_file_system();
  torch_save(Dict{{"a", 1}}, "model.pt", save_in(disk));
  const auto files = std::make_shared<FaultInjectingFileSystem>(disk);
  files->stop_after_changes(change_count);
  try {
    torch_save(sample(), "model.pt", save_in(files));
  } catch (const Error& error) {
    EXPECT_TRUE(files->is_stopped()) << error.what_without_backtrace();
  }
  for (const CrashPolicy policy : {CrashPolicy::kLoseUnsynced, CrashPolicy::kKeepAll, CrashPolicy::kTornWrites}) {
    const auto found = disk->crash(policy, change_count);
    const Value value = torch_load("model.pt", load_from(found));
    const bool is_new = bit_equal(value, sample());
    EXPECT_TRUE(is_new || bit_equal(value, Dict{{"a", 1}})) << change_count;
    EXPECT_TRUE(is_new || files->is_stopped()) << change_count;
  }
  return files->is_stopped();
}

TEST(TorchSaveTest, APowerCutAtAnyMomentLeavesTheOldOrTheNewFile) {
  std::uint64_t change_count = 0;
  while (power_cut_keeps_old_or_new(change_count)) ++change_count;
  EXPECT_GE(change_count, 6u);
}

TEST(TorchLoadTest, NamesTheFileAndThePlace) {
  const auto files = make_memory_file_system();
  expect_error(ErrorKind::kNotFound, "none.pt", [&] { torch_load("none.pt", load_from(files)); });
  const auto out = files->create_file("text.pt");
  out->append(as_bytes("some text that is no file of torch.save"));
  out->close();
  expect_error(ErrorKind::kCorruptData, "in text.pt", [&] { torch_load("text.pt", load_from(files)); });
  EXPECT_EQ(torch_save_form("text.pt", files), std::nullopt);
  expect_error(ErrorKind::kUnsupported, "in a.pt",
               [&] { torch_save(Dict{{"b", at::empty({2}, at::kBits8)}}, "a.pt", save_in(files)); });
}

TEST(TorchLoadTest, ChecksTheChecksumUnlessTold) {
  const auto files = make_memory_file_system();
  torch_save(Dict{{"w", counted({100})}, {"n", 1}}, "model.pt", save_in(files));
  Bytes bytes = read_whole_file(*files, "model.pt", 1 << 20);
  const TorchFileReader reader("model.pt", load_from(files));
  ASSERT_EQ(reader.tensors().size(), 1u);
  EXPECT_EQ(reader.tensors()[0].storage_bytes, 400);
  bytes[static_cast<std::size_t>(reader.tensors()[0].storage_position) + 2] ^= 1;
  const auto out = files->create_file("bad.pt");
  out->append(bytes);
  out->close();
  expect_error(ErrorKind::kCorruptData, "['w']", [&] { torch_load("bad.pt", load_from(files)); });
  TorchLoadOptions options = load_from(files);
  options.verify_checksums = false;
  EXPECT_FALSE(bit_equal(torch_load("bad.pt", options).as_dict().at("w"), counted({100})));
}

TEST(TorchLoadTest, LeavesUnknownObjectsOutWhenTold) {
  const auto files = make_memory_file_system();
  // A dict whose key is a float, which no Dict can have.
  const Bytes known = [&] {
    torch_save(Dict{{"a", Dict{{std::int64_t{7}, 8}}}}, "known.pt", save_in(files, TorchSaveForm::kBeforeZip));
    return read_whole_file(*files, "known.pt", 1 << 20);
  }();
  const std::string text(as_text(known));
  const std::size_t at = text.find("K\x07K\x08");
  ASSERT_NE(at, std::string::npos);
  const std::string changed = text.substr(0, at) + std::string("G\0\0\0\0\0\0\0\0", 9) + text.substr(at + 2);
  const auto out = files->create_file("odd.pt");
  out->append(as_bytes(changed));
  out->close();
  expect_error(ErrorKind::kUnsupported, "['a']: dict", [&] { torch_load("odd.pt", load_from(files)); });
  TorchLoadOptions options = load_from(files);
  options.skip_unknown = true;
  const TorchFileReader reader("odd.pt", options);
  EXPECT_EQ(reader.skipped(), Lines{"['a']: dict"});
  EXPECT_TRUE(reader.read_all().as_dict().at("a").is_none());
}

TEST(TorchFiles, CopiedTensorByTensor) {
  const auto files = make_memory_file_system();
  for (const TorchSaveForm form : {TorchSaveForm::kZip, TorchSaveForm::kBeforeZip}) {
    const StateDict state = sample();
    torch_save(state, "a.pt", save_in(files, form));
    const TorchFileReader reader("a.pt", load_from(files));
    EXPECT_EQ(reader.form(), form);
    EXPECT_EQ(torch_save_form("a.pt", files), form);
    ASSERT_EQ(reader.tensors().size(), 4u);
    EXPECT_EQ(describe(reader.tensors()[3].path), "['nested']['b']");
    EXPECT_EQ(reader.tensors()[3].dtype, at::kBFloat16);
    EXPECT_EQ(reader.tensors()[3].sizes, Sizes{5});
    EXPECT_EQ(reader.tensors()[0].storage_key, reader.tensors()[2].storage_key);

    TorchFileWriter writer(reader.structure(), "b.pt", save_in(files, form));
    std::size_t written = 0;
    for (const std::size_t number : {0, 2, 3}) {  // 1 is tied to 0
      ASSERT_NE(writer.awaited(), nullptr);
      EXPECT_EQ(writer.awaited()->sizes(), c10::IntArrayRef(reader.tensors()[number].sizes));
      writer.write(reader.read(number));
      ++written;
    }
    EXPECT_EQ(written, 3u);
    EXPECT_EQ(writer.awaited(), nullptr);
    EXPECT_EQ(files->file_type("b.pt"), FileType::kNone);
    writer.commit();
    EXPECT_EQ(first_difference(Value(state), torch_load("b.pt", load_from(files))), "");
    files->remove_file("b.pt");
  }
}

// ---- quantized tensors in checkpoints ---------------------------------------------------------------------

StateDict quantized() {
  const at::Tensor values = counted({4, 3}) - 5;
  return {{"tensor", at::quantize_per_tensor(values, 0.25, 3, at::kQInt8)},
          {"view", at::quantize_per_tensor(counted({10, 3}), 0.5, 1, at::kQInt32).narrow(0, 2, 4).t()},
          {"channel", at::quantize_per_channel(values, at::tensor({0.5, 0.25, 0.125}, at::kDouble),
                                               at::tensor({1, 2, 3}, at::kLong), 1, at::kQUInt8)},
          {"empty", at::quantize_per_tensor(at::empty({0, 2}), 0.5, 1, at::kQInt8)},
          {"pair", Tuple{1, at::quantize_per_tensor(counted({2}), 0.5, 0, at::kQInt8)}}};
}

TEST(QuantizedItems, LoadWithTheQuantizerOfTheFile) {
  const Place place;
  const StateDict saved = quantized();
  place.save(saved, "c");
  StateDict loaded;
  for (const auto& [key, value] : saved) {
    if (!value.is_tensor()) continue;
    const at::Tensor& tensor = value.as_tensor();
    loaded.insert_or_assign(key, at::quantize_per_tensor(at::zeros(tensor.sizes()), 9, 9, tensor.scalar_type()));
  }
  loaded["pair"] = None();
  const at::Tensor live = loaded.at("channel").as_tensor();
  place.load(loaded, "c");
  for (const auto& [key, value] : saved) {
    // Nothing is read of a tensor without elements, and its quantizer says nothing.
    if (key == Key("empty")) continue;
    EXPECT_EQ(first_difference(value, loaded.at(key)), "") << to_string(key);
  }
  EXPECT_TRUE(live.is_same(loaded.at("channel").as_tensor()));
}

TEST(QuantizedItems, OtherDestinations) {
  const Place place;
  const at::Tensor tensor = at::quantize_per_tensor(counted({4}), 0.5, 0, at::kQInt8);
  place.save({{"q", tensor}, {"f", counted({4})}}, "c");
  StateDict as_integers = {{"q", pattern({4}, at::kChar)}};
  expect_error(ErrorKind::kType, "stored dtype qint8", [&] { place.load(as_integers, "c"); });
  StateDict from_floats = {{"f", tensor.clone()}};
  expect_error(ErrorKind::kType, "dtype of the destination qint8", [&] { place.load(from_floats, "c"); });
}

}  // namespace
}  // namespace dcp
