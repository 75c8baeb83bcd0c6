// Checks of whole checkpoints: sound ones of every kind, and one fault at a time, made by damaging a saved one.

#include "torch_dcp/storage/verify.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "test/support/expect_error.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/format/metadata_pickle.h"
#include "torch_dcp/format/zip_internal.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/io/memory_file_system.h"
#include "torch_dcp/io/span_file.h"
#include "torch_dcp/pickle/writer.h"
#include "torch_dcp/storage/safetensors_file_writer.h"

namespace dcp {
namespace {

namespace fs = std::filesystem;
using test::counted;
using test::Place;

constexpr const char* kPath = "ckpt";

std::string text_of(const VerifyReport& report) {
  std::string text;
  for (const VerifyFault& fault : report.faults) {
    text += fault.file + " | " + fault.key + " | " + error_kind_name(fault.kind) + " | " + fault.cause + "\n";
  }
  return text.empty() ? "no faults" : text;
}

/// A checkpoint in memory, and what is done to it.
class VerifyTest : public ::testing::Test {
 protected:
  VerifyTest() {
    Dict inner;
    inner[Key(std::int64_t{7})] = counted({2, 2});  // an integer key: there is a side file
    inner["text"] = "abc";
    state_ = StateDict{{"w", counted({3, 4})},
                       {"ids", counted({40}, at::kLong)},
                       {"zero", at::tensor(2.5)},
                       {"none", at::empty({0, 3})},
                       {"number", 3},
                       {"pair", Tuple{counted({5}), Value("x")}},
                       {"inner", inner}};
    metadata_ = place_.save(state_, kPath);
  }

  VerifyReport check(VerifyOptions options = {}) const {
    options.file_system = place_.files;
    return verify(kPath, options);
  }

  std::string path(const std::string& name) const { return join_path(kPath, name); }
  Bytes read(const std::string& name) const { return read_whole_file(*place_.files, path(name), 1u << 30); }
  void write(const std::string& name, ByteSpan bytes) const { test::write_file(*place_.files, path(name), bytes); }
  void write_metadata(const Metadata& metadata) const { write(".metadata", encode_metadata(metadata)); }

  StorageInfo stored(const std::string& key, Sizes offsets) const {
    return *metadata_.storage_data.find({key, offsets, {}});
  }

  TensorStorageMetadata& tensor(Metadata& metadata, const std::string& key) const {
    return std::get<TensorStorageMetadata>(*metadata.state_dict_metadata.find(key));
  }

  /// Expects exactly one fault, as told.
  void expect_fault(const std::string& file, const std::string& key, ErrorKind kind, const std::string& cause) const {
    const VerifyReport report = check();
    ASSERT_EQ(report.faults.size(), 1u) << text_of(report);
    const VerifyFault& fault = report.faults[0];
    EXPECT_EQ(fault.file, file);
    EXPECT_EQ(fault.key, key);
    EXPECT_STREQ(error_kind_name(fault.kind), error_kind_name(kind)) << fault.cause;
    EXPECT_NE(fault.cause.find(cause), std::string::npos) << "\"" << cause << "\" is not in: " << fault.cause;
    EXPECT_FALSE(report.is_sound());
  }

  Place place_;
  StateDict state_;
  Metadata metadata_;
};

TEST_F(VerifyTest, SoundCheckpoint) {
  const VerifyReport report = check();
  EXPECT_TRUE(report.is_sound()) << text_of(report);
  EXPECT_TRUE(report.strays.empty());
  EXPECT_TRUE(report.opaque_objects.empty());
  EXPECT_EQ(report.tensor_count, 5);
  EXPECT_EQ(report.chunk_count, 5);
  EXPECT_EQ(report.object_count, 3);
  EXPECT_EQ(report.file_count, 3);  // .metadata, the side file, one data file
  EXPECT_EQ(report.byte_count, static_cast<std::int64_t>(read("__0_0.distcp").size()));
}

TEST_F(VerifyTest, ChangesNothing) {
  const auto before = test::contents_of(*place_.files, kPath);
  check();
  EXPECT_EQ(test::contents_of(*place_.files, kPath), before);
}

TEST_F(VerifyTest, FlippedByteInEachMember) {
  const Bytes sound = read("__0_0.distcp");
  const SpanFile file(sound);
  std::set<std::string> members;
  for (const auto& [index, info] : metadata_.storage_data) {
    for (const zip::Member& member : zip::read_archive(file, info.offset, info.length, {}).members) {
      if (member.bytes == 0) continue;
      SCOPED_TRACE(to_string(index) + ": " + member.name);
      members.insert(member.name);
      Bytes damaged = sound;
      damaged[static_cast<std::size_t>(info.offset + member.data_position + member.bytes / 2)] ^= 0x10;
      write("__0_0.distcp", damaged);
      expect_fault("__0_0.distcp", to_string(index), ErrorKind::kCorruptData, "CRC-32");
    }
  }
  EXPECT_TRUE(members.contains("data/0"));
  EXPECT_TRUE(members.contains("data.pkl"));
  EXPECT_TRUE(members.contains(".data/serialization_id"));
}

TEST_F(VerifyTest, AnyFlippedByteIsAtMostAFaultOfItsItem) {
  const Bytes sound = read("__0_0.distcp");
  std::size_t found = 0;
  for (std::size_t at = 0; at < sound.size(); at += 3) {
    Bytes damaged = sound;
    damaged[at] ^= 0x41;
    write("__0_0.distcp", damaged);
    const VerifyReport report = check();
    ASSERT_LE(report.faults.size(), 1u) << "byte " << at << "\n" << text_of(report);
    found += report.faults.size();
  }
  // Padding, times and the like are covered by nothing.
  EXPECT_GT(found, sound.size() / 3 / 4);
}

TEST_F(VerifyTest, AnyFlippedByteOfTheMetadataIsNoError) {
  const Bytes sound = read(".metadata");
  std::size_t found = 0;
  for (std::size_t at = 0; at < sound.size(); at += 5) {
    Bytes damaged = sound;
    damaged[at] ^= 0x04;
    write(".metadata", damaged);
    found += check().is_sound() ? 0 : 1;
  }
  EXPECT_GT(found, sound.size() / 5 / 2);
}

TEST_F(VerifyTest, CutFile) {
  const Bytes sound = read("__0_0.distcp");
  for (const std::size_t left : {std::size_t{0}, std::size_t{1}, sound.size() / 2, sound.size() - 1}) {
    SCOPED_TRACE(left);
    write("__0_0.distcp", ByteSpan(sound).first(left));
    const VerifyReport report = check();
    std::set<std::string> expected;
    for (const auto& [index, info] : metadata_.storage_data) {
      if (static_cast<std::size_t>(info.offset + info.length) > left) expected.insert(to_string(index));
    }
    std::set<std::string> keys;
    for (const VerifyFault& fault : report.faults) {
      keys.insert(fault.key);
      EXPECT_EQ(fault.file, "__0_0.distcp");
      EXPECT_NE(fault.cause.find("the file was cut"), std::string::npos) << fault.cause;
    }
    EXPECT_EQ(keys, expected);
  }
}

TEST_F(VerifyTest, MissingDataFile) {
  place_.files->remove_file(path("__0_0.distcp"));
  const VerifyReport report = check();
  EXPECT_EQ(report.faults.size(), metadata_.storage_data.size());
  for (const VerifyFault& fault : report.faults) {
    EXPECT_EQ(fault.file, "__0_0.distcp");
    EXPECT_NE(fault.cause.find("is missing"), std::string::npos) << fault.cause;
  }
}

TEST_F(VerifyTest, MissingMetadata) {
  place_.files->remove_file(path(".metadata"));
  expect_fault(".metadata", "", ErrorKind::kNotFound, "incomplete checkpoint");
}

TEST_F(VerifyTest, CutMetadata) {
  write(".metadata", ByteSpan(read(".metadata")).first(40));
  expect_fault(".metadata", "", ErrorKind::kCorruptData, ".metadata");
  EXPECT_TRUE(check().strays.empty());  // Nobody can tell.
}

TEST_F(VerifyTest, ItemWithoutPlace) {
  Metadata metadata = metadata_;
  metadata.storage_data.erase({"w", Sizes{0, 0}, {}});
  write_metadata(metadata);
  expect_fault(".metadata", "w at [0, 0]", ErrorKind::kCorruptData, "does not say where it is stored");
}

TEST_F(VerifyTest, LengthsBeyondCounting) {
  Metadata metadata = metadata_;
  for (auto [index, info] : metadata_.storage_data) {
    info.offset = 0;
    info.length = INT64_MAX;
    metadata.storage_data.insert_or_assign(index, info);
  }
  write_metadata(metadata);
  std::int64_t last = 0;
  const VerifyReport report = check({.on_progress = [&](std::int64_t done, std::int64_t) {
    EXPECT_GE(done, last);
    last = done;
  }});
  EXPECT_EQ(report.byte_count, INT64_MAX);
  EXPECT_EQ(report.faults.size(), metadata.storage_data.size()) << text_of(report);
}

TEST_F(VerifyTest, PlaceWithoutItem) {
  Metadata metadata = metadata_;
  metadata.storage_data.insert({"ghost", Sizes{0}, {}}, stored("w", {0, 0}));
  write_metadata(metadata);
  expect_fault(".metadata", "ghost at [0]", ErrorKind::kCorruptData, "no tensor or object has it");
}

TEST_F(VerifyTest, ChunksThatDoNotTile) {
  Metadata metadata = metadata_;
  tensor(metadata, "w").size = {4, 4};
  write_metadata(metadata);
  expect_fault(".metadata", "w", ErrorKind::kCorruptData, "12 of 16 elements");

  tensor(metadata, "w").size = {3, 3};
  write_metadata(metadata);
  expect_fault(".metadata", "w", ErrorKind::kCorruptData, "out of bounds");
}

TEST_F(VerifyTest, OverlappingChunks) {
  Metadata metadata = metadata_;
  TensorStorageMetadata& ids = tensor(metadata, "ids");
  ids.size = {60};
  ids.chunks = {{{0}, {40}}, {{20}, {40}}};
  metadata.storage_data.insert({"ids", Sizes{20}, 1}, stored("ids", {0}));
  write_metadata(metadata);
  expect_fault(".metadata", "ids", ErrorKind::kCorruptData, "overlap");
}

TEST_F(VerifyTest, ItemsOfAnotherDtypeOrSize) {
  Metadata metadata = metadata_;
  tensor(metadata, "w").properties.dtype = at::kInt;
  write_metadata(metadata);
  expect_fault("__0_0.distcp", "w at [0, 0]", ErrorKind::kCorruptData, "float32, the metadata says int32");

  metadata = metadata_;
  tensor(metadata, "w").size = {4, 3};
  tensor(metadata, "w").chunks.replace(0, whole_box({4, 3}));
  write_metadata(metadata);
  expect_fault("__0_0.distcp", "w at [0, 0]", ErrorKind::kCorruptData, "sizes [3, 4], the metadata says [4, 3]");
}

TEST_F(VerifyTest, UnknownTransform) {
  Metadata metadata = metadata_;
  StorageInfo info = *metadata.storage_data.find({"number", {}, {}});
  info.transform_descriptors = {"stream.rot13/1"};
  metadata.storage_data.insert_or_assign({"number", {}, {}}, info);
  write_metadata(metadata);
  expect_fault("__0_0.distcp", "number", ErrorKind::kUnsupported, "stream.rot13/1");
}

TEST_F(VerifyTest, ManyFaultsAtOnce) {
  Metadata metadata = metadata_;
  tensor(metadata, "w").properties.dtype = at::kInt;
  metadata.storage_data.erase({"number", {}, {}});
  write_metadata(metadata);
  Bytes damaged = read("__0_0.distcp");
  const StorageInfo ids = stored("ids", {0});
  damaged[static_cast<std::size_t>(ids.offset + ids.length / 2)] ^= 1;
  write("__0_0.distcp", damaged);
  std::set<std::string> keys;
  for (const std::size_t threads : {1, 4}) {
    const VerifyReport report = check({.thread_count = threads});
    for (const VerifyFault& fault : report.faults) keys.insert(fault.key);
    EXPECT_EQ(report.faults.size(), 3u) << text_of(report);
  }
  EXPECT_EQ(keys, (std::set<std::string>{"w at [0, 0]", "ids at [0]", "number"}));
}

/// The side file's name.
std::string side_file_of(const Metadata& metadata) { return ".torch_dcp-" + *metadata.storage_meta->save_id + ".json"; }

TEST_F(VerifyTest, SideFile) {
  const std::string name = side_file_of(metadata_);
  const std::string sound(as_text(read(name)));
  ASSERT_NE(sound.find("inner.7"), std::string::npos) << sound;

  const auto write_text = [&](std::string text) { write(name, as_bytes(text)); };
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = sound;
    return text.replace(text.find(from), from.size(), to);
  };
  write_text("{");
  expect_fault(name, "", ErrorKind::kCorruptData, "no JSON");
  write_text(replaced(*metadata_.storage_meta->save_id, "another"));
  expect_fault(name, "", ErrorKind::kCorruptData, "belongs to save another");
  write_text(replaced("inner.7", "inner.8"));
  expect_fault(name, "", ErrorKind::kCorruptData, "'inner.8'");
  write_text(replaced("\"int_key\":7", "\"int_key\":9"));
  expect_fault(name, "", ErrorKind::kCorruptData, "the path of 'inner.7'");
  // Python has none.
  place_.files->remove_file(path(name));
  EXPECT_TRUE(check().is_sound());
}

TEST_F(VerifyTest, StraysAreNoFaults) {
  write("notes.txt", as_bytes("hello"));
  write("__3_0.distcp", as_bytes("left by a crash"));
  write(".torch_dcp-11111111-2222-4333-8444-555555555555.json", as_bytes("{}"));
  write("__0.metadata", as_bytes("of another save"));
  const VerifyReport report = check();
  EXPECT_TRUE(report.is_sound()) << text_of(report);
  EXPECT_EQ(report.strays, (std::vector<std::string>{".torch_dcp-11111111-2222-4333-8444-555555555555.json",
                                                     "__0.metadata", "__3_0.distcp", "notes.txt"}));
}

TEST_F(VerifyTest, ObjectsThatAreNone) {
  const auto item = [](std::string_view text) {
    return Value(Opaque{std::make_shared<const Bytes>(as_bytes(text).begin(), as_bytes(text).end()), "what"});
  };
  place_.save({{"junk", item("not a zip")}}, kPath);
  expect_fault(place_.metadata(kPath).storage_data.begin()->second.relative_path, "junk", ErrorKind::kCorruptData,
               "no zip archive");
}

TEST_F(VerifyTest, ProgressAddsUp) {
  for (const std::size_t threads : {1, 4}) {
    std::vector<std::int64_t> done;
    std::set<std::int64_t> totals;
    const VerifyReport report =
        check({.thread_count = threads, .on_progress = [&](std::int64_t now, std::int64_t total) {
                 done.push_back(now);
                 totals.insert(total);
               }});
    EXPECT_EQ(totals, std::set<std::int64_t>{report.byte_count});
    EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
    ASSERT_FALSE(done.empty());
    EXPECT_EQ(done.back(), report.byte_count);
  }
}

TEST_F(VerifyTest, CallbackEndsTheCheck) {
  for (const std::size_t threads : {1, 4}) {
    int calls = 0;
    const auto stop = [&](std::int64_t, std::int64_t) {
      if (++calls == 3) DCP_THROW(kCorruptData, "stop here");
    };
    test::expect_error(ErrorKind::kCorruptData, "stop here",
                       [&] { check({.thread_count = threads, .on_progress = stop}); });
    EXPECT_EQ(calls, 3);
  }
}

TEST_F(VerifyTest, NotBeingAbleToLookIsAnError) {
  for (const test::FileOp op : {test::FileOp::kOpen, test::FileOp::kRead}) {
    const auto faulty = std::make_shared<test::FaultInjectingFileSystem>(place_.files);
    faulty->fail({.op = op,
                  .path_contains = "__0_0.distcp",
                  .nth = op == test::FileOp::kRead ? 5u : 1u,
                  .message = "Input/output error"});
    test::expect_error(ErrorKind::kIo, "Input/output error", [&] { verify(kPath, {.file_system = faulty}); });
    const auto unlisted = std::make_shared<test::FaultInjectingFileSystem>(place_.files);
    unlisted->fail({.op = test::FileOp::kList, .message = "Permission denied"});
    test::expect_error(ErrorKind::kIo, "Permission denied", [&] { verify(kPath, {.file_system = unlisted}); });
  }
  write("file", as_bytes("x"));
  const VerifyOptions options{.file_system = place_.files};
  test::expect_error(ErrorKind::kNotFound, "nowhere does not exist", [&] { verify("nowhere", options); });
  test::expect_error(ErrorKind::kNotFound, "is no checkpoint", [&] { verify(path("file"), options); });
  test::expect_error(ErrorKind::kInvalidArgument, "needs a path", [&] { verify("", options); });
}

TEST_F(VerifyTest, LargeTensorsAreStreamed) {
  const Place place;
  place.save({{"big", counted({3 << 20})}}, kPath);
  const auto traced = std::make_shared<test::FaultInjectingFileSystem>(place.files);
  EXPECT_TRUE(verify(kPath, {.file_system = traced}).is_sound());
  std::uint64_t largest = 0;
  for (const test::FileEvent& event : traced->trace()) {
    if (event.op == test::FileOp::kRead && event.path.ends_with(".distcp")) largest = std::max(largest, event.bytes);
  }
  EXPECT_EQ(largest, 1u << 20);
}

// --- checkpoints that Python wrote -----------------------------------------------------------------------------------

fs::path fixture(const std::string& name) { return fs::path("test/golden/fixtures") / name / "ckpt"; }

/// The files of a folder, in memory.
std::shared_ptr<FileSystem> files_of(const fs::path& folder) {
  std::shared_ptr<FileSystem> files = make_memory_file_system();
  files->create_directories(kPath);
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!fs::is_regular_file(entry.path())) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), {});
    test::write_file(*files, join_path(kPath, entry.path().filename().string()), as_bytes(bytes));
  }
  return files;
}

class VerifyFixtureTest : public ::testing::TestWithParam<std::string> {};

TEST_P(VerifyFixtureTest, IsSound) {
  const VerifyReport report = verify(kPath, {.thread_count = 2, .file_system = files_of(fixture(GetParam()))});
  for (const VerifyFault& fault : report.faults) {
    ADD_FAILURE() << fault.file << " | " << fault.key << " | " << fault.cause;
  }
  // Python makes a file for a rank that has nothing to write.
  for (const std::string& stray : report.strays) EXPECT_EQ(fs::file_size(fixture(GetParam()) / stray), 0u) << stray;
}

std::vector<std::string> fixtures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator("test/golden/fixtures")) {
    const std::string name = entry.path().filename();
    if (fs::exists(fixture(name))) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, VerifyFixtureTest, ::testing::ValuesIn(fixtures()),
                         [](const auto& info) { return info.param; });

TEST(VerifyFixtures, OpaqueObjectsAreTold) {
  const VerifyReport report = verify(kPath, {.file_system = files_of(fixture("objects"))});
  const auto has_type = [&](const std::string& type) {
    return std::any_of(report.opaque_objects.begin(), report.opaque_objects.end(),
                       [&](const OpaqueObject& object) { return object.type_name == type; });
  };
  EXPECT_TRUE(has_type("set"));
  EXPECT_TRUE(has_type("torch.Size")) << [&] {
    std::string types;
    for (const OpaqueObject& object : report.opaque_objects) types += object.key + ": " + object.type_name + "\n";
    return types;
  }();
}

TEST(VerifyFixtures, EachRanksOwnMetadataIsChecked) {
  const auto files = files_of(fixture("no_collectives_2ranks"));
  const VerifyOptions options{.file_system = files};
  const VerifyReport sound = verify(kPath, options);
  EXPECT_TRUE(sound.is_sound()) << text_of(sound);
  EXPECT_EQ(sound.file_count, 4);
  EXPECT_NE(sound.not_united.find("key 'w'"), std::string::npos) << sound.not_united;
  EXPECT_EQ(verify(kPath, {.file_system = files_of(fixture("no_collectives_sharded"))}).not_united, "");

  const Bytes bytes = read_whole_file(*files, "ckpt/__1.metadata", 1 << 20);
  test::write_file(*files, "ckpt/__1.metadata", ByteSpan(bytes).first(30));
  const VerifyReport cut = verify(kPath, options);
  ASSERT_EQ(cut.faults.size(), 1u) << text_of(cut);
  EXPECT_EQ(cut.faults[0].file, "__1.metadata");

  test::write_file(*files, "ckpt/__1.metadata", bytes);
  files->remove_file("ckpt/__0.metadata");
  const VerifyReport missing = verify(kPath, options);
  ASSERT_EQ(missing.faults.size(), 1u) << text_of(missing);
  EXPECT_EQ(missing.faults[0].file, "__0.metadata");
  EXPECT_EQ(missing.faults[0].kind, ErrorKind::kNotFound);
}

TEST(VerifyFixtures, DamageInDeflatedMembers) {
  const auto files = files_of(fixture("foreign_zips"));
  const std::string data = "ckpt/__0_0.distcp";
  const Bytes sound = read_whole_file(*files, data, 1 << 20);
  const SpanFile file(sound);
  const Metadata metadata = read_metadata(kPath, {.file_system = files});
  const std::size_t known = verify(kPath, {.file_system = files}).faults.size();
  int deflated = 0;
  for (const auto& [index, info] : metadata.storage_data) {
    if (index.fqn.find("deflate") == std::string::npos) continue;
    for (const zip::Member& member : zip::read_archive(file, info.offset, info.length, {}).members) {
      if (!member.is_deflated || member.bytes == 0) continue;
      SCOPED_TRACE(to_string(index) + ": " + member.name);
      ++deflated;
      Bytes damaged = sound;
      damaged[static_cast<std::size_t>(info.offset + member.data_position + member.compressed_bytes / 2)] ^= 0x10;
      test::write_file(*files, data, damaged);
      const VerifyReport report = verify(kPath, {.file_system = files});
      ASSERT_EQ(report.faults.size(), known + 1) << text_of(report);
      EXPECT_NE(text_of(report).find(to_string(index)), std::string::npos) << text_of(report);
    }
  }
  EXPECT_GT(deflated, 0);
}

// --- safetensors and files of torch.save -----------------------------------------------------------------------------

TEST(VerifySafetensors, EachBadHeaderIsAFault) {
  const auto files = files_of(fixture("hf_mapped"));
  const VerifyOptions options{.file_system = files};
  const VerifyReport sound = verify(kPath, options);
  EXPECT_EQ(sound.kind, CheckpointKind::kSafetensors);
  EXPECT_EQ(sound.file_count, 4);
  EXPECT_GT(sound.tensor_count, 0);
  EXPECT_GT(sound.byte_count, 0);
  EXPECT_EQ(sound.object_count, 0);

  const std::string first = "model-00001-of-00003.safetensors";
  const std::string second = "model-00002-of-00003.safetensors";
  const auto cut = [&](const std::string& name, std::size_t bytes) {
    const Bytes all = read_whole_file(*files, join_path(kPath, name), 1 << 20);
    test::write_file(*files, join_path(kPath, name), ByteSpan(all).first(all.size() - bytes));
  };
  cut(first, 1);
  cut(second, 4);
  const VerifyReport damaged = verify(kPath, options);
  ASSERT_EQ(damaged.faults.size(), 2u) << text_of(damaged);
  EXPECT_EQ(damaged.faults[0].file, first);
  EXPECT_EQ(damaged.faults[1].file, second);

  files->remove_file(join_path(kPath, first));
  files->remove_file(join_path(kPath, second));
  const VerifyReport missing = verify(kPath, options);
  ASSERT_EQ(missing.faults.size(), 1u) << text_of(missing);
  EXPECT_NE(missing.faults[0].cause.find(second), std::string::npos) << missing.faults[0].cause;
}

TEST(VerifySafetensors, AMixtureIsToldBesideACutFile) {
  const auto files = make_memory_file_system();
  files->create_directories(kPath);
  const auto write = [&](const std::string& name, const std::string& id) {
    SafetensorsFileWriter(*files, join_path(kPath, name), {{name, at::kFloat, {0}}}, true, {{"torch_dcp.save_id", id}})
        .close();
  };
  write("model-00001-of-00003.safetensors", "1a");
  write("model-00002-of-00003.safetensors", "2b");
  test::write_file(*files, join_path(kPath, "model-00003-of-00003.safetensors"), as_bytes("cut"));
  const VerifyReport report = verify(kPath, {.file_system = files});
  ASSERT_EQ(report.faults.size(), 2u) << text_of(report);
  EXPECT_NE(report.faults[0].cause.find("files of two saves"), std::string::npos) << report.faults[0].cause;
  EXPECT_EQ(report.faults[1].file, "model-00003-of-00003.safetensors");
}

TEST(VerifySafetensors, AnUnfinishedSaveIsToldAsSuch) {
  const auto files = files_of(fixture("hf_mapped"));
  test::write_file(*files, "ckpt/model-save-unfinished.safetensors", as_bytes("unfinished"));
  const VerifyReport report = verify(kPath, {.file_system = files});
  ASSERT_EQ(report.faults.size(), 1u) << text_of(report);
  EXPECT_EQ(report.faults[0].kind, ErrorKind::kNotFound);
  EXPECT_NE(report.faults[0].cause.find("incomplete checkpoint"), std::string::npos) << report.faults[0].cause;
}

TEST(VerifySafetensors, AnInterruptedCommitIsSound) {
  const auto files = files_of(fixture("hf_mapped"));
  const std::string name = "model-00001-of-00003.safetensors";
  // As if a save had been stopped when its first file had its name already.
  SafetensorsFileWriter(*files, join_path(kPath, name), {}, true, {{"torch_dcp.save_id", "1a"}}).close();
  const std::string temporary = "model-00002-of-00003.safetensors.1a.tmp";
  SafetensorsFileWriter(*files, join_path(kPath, temporary), {{"w", at::kFloat, {0}}}, true,
                        {{"torch_dcp.save_id", "1a"}})
      .close();
  test::write_file(*files, "ckpt/model-save-unfinished.safetensors",
                   as_bytes("unfinished: a save into this folder has not come to its end\nsave 1a\n" + name +
                            "\nmodel-00002-of-00003.safetensors\nthe 2 files above are complete\n"));
  const VerifyReport report = verify(kPath, {.file_system = files});
  EXPECT_TRUE(report.is_sound()) << text_of(report);
  EXPECT_EQ(report.tensor_count, 1);
  const std::set<std::string> strays(report.strays.begin(), report.strays.end());
  // Whoever removes the strays must still have the new checkpoint: the marker is what says where it is.
  EXPECT_EQ(report.file_count, 3);
  EXPECT_TRUE(strays.contains("model.safetensors.index.json"));
  EXPECT_TRUE(strays.contains("model-00003-of-00003.safetensors"));
  for (const std::string& stray : strays) files->remove_file(join_path(kPath, stray));
  const VerifyReport cleared = verify(kPath, {.file_system = files});
  EXPECT_TRUE(cleared.is_sound()) << text_of(cleared);
  EXPECT_TRUE(cleared.strays.empty()) << text_of(cleared);
  EXPECT_EQ(cleared.file_count, 3);

  files->remove_file(join_path(kPath, temporary));
  const VerifyReport missing = verify(kPath, {.file_system = files});
  ASSERT_EQ(missing.faults.size(), 1u) << text_of(missing);
  EXPECT_EQ(missing.faults[0].kind, ErrorKind::kCorruptData);
}

TEST(VerifySafetensors, MissingShardAndStrays) {
  const auto files = files_of(fixture("hf_sharded_4ranks"));
  const VerifyOptions options{.file_system = files};
  test::write_file(*files, "ckpt/config.json", as_bytes("{}"));
  EXPECT_EQ(verify(kPath, options).strays, std::vector<std::string>{"config.json"});
  files->remove_file("ckpt/shard-00001-model-00001-of-00001.safetensors");
  const VerifyReport report = verify(kPath, options);
  ASSERT_EQ(report.faults.size(), 1u) << text_of(report);
  EXPECT_NE(report.faults[0].cause.find("elements"), std::string::npos) << report.faults[0].cause;
}

TEST(VerifyTorchSave, FilesOfBothForms) {
  const auto files = files_of(fixture("torch_save_file").parent_path());
  const VerifyOptions options{.file_system = files};
  for (const std::string name : {"model.pt", "model_legacy.pt"}) {
    SCOPED_TRACE(name);
    const std::string path = join_path(kPath, name);
    const VerifyReport sound = verify(path, options);
    EXPECT_EQ(sound.kind, CheckpointKind::kTorchSave);
    EXPECT_TRUE(sound.is_sound()) << text_of(sound);
    EXPECT_GT(sound.tensor_count, 0);
    EXPECT_GT(sound.object_count, 0);
    const Bytes bytes = read_whole_file(*files, path, 1 << 20);
    EXPECT_EQ(sound.byte_count, static_cast<std::int64_t>(bytes.size()));
    test::write_file(*files, path, ByteSpan(bytes).first(bytes.size() - 3));
    const VerifyReport cut = verify(path, options);
    ASSERT_EQ(cut.faults.size(), 1u) << text_of(cut);
    EXPECT_EQ(cut.faults[0].file, name);
  }
}

TEST(VerifyTorchSave, FlippedByteInEachMember) {
  const auto files = files_of(fixture("torch_save_file").parent_path());
  const std::string path = join_path(kPath, "model.pt");
  const Bytes sound = read_whole_file(*files, path, 1 << 20);
  const auto length = static_cast<std::int64_t>(sound.size());
  int tried = 0;
  for (const zip::Member& member : zip::read_archive(SpanFile(sound), 0, length, {}).members) {
    if (member.bytes == 0) continue;
    SCOPED_TRACE(member.name);
    ++tried;
    Bytes damaged = sound;
    damaged[static_cast<std::size_t>(member.data_position + member.bytes / 2)] ^= 0x10;
    test::write_file(*files, path, damaged);
    const VerifyReport report = verify(path, {.file_system = files});
    ASSERT_EQ(report.faults.size(), 1u) << text_of(report);
    EXPECT_NE(report.faults[0].cause.find(member.name), std::string::npos) << report.faults[0].cause;
  }
  EXPECT_GT(tried, 5);
  test::write_file(*files, path, sound);
  int calls = 0;
  const auto stop = [&](std::int64_t, std::int64_t) {
    ++calls;
    DCP_THROW(kCorruptData, "stop here");
  };
  test::expect_error(ErrorKind::kCorruptData, "stop here",
                     [&] { verify(path, {.on_progress = stop, .file_system = files}); });
  EXPECT_EQ(calls, 1);
}

TEST(VerifyTorchSave, StoragesOfObjectsThatAreNotRead) {
  // A deque of a storage, which no value holds.
  pickle::Writer writer(2);
  writer.global("collections", "deque");
  writer.mark();
  writer.text("storage");
  writer.global("torch", "FloatStorage");
  writer.text("3");
  writer.text("cpu");
  writer.integer(2);
  writer.tuple_from_mark();
  writer.persistent_id();
  writer.tuple_of(1);
  writer.reduce();
  const Bytes pickle = std::move(writer).finish();
  const auto faults_with = [&](const std::string& member, std::size_t bytes) {
    zip::Writer zip;
    zip.add("data.pkl", pickle);
    zip.add_format_members();
    zip.add(member, Bytes(bytes));
    zip.add_closing_members();
    const auto files = make_memory_file_system();
    files->create_directories(kPath);
    test::write_file(*files, join_path(kPath, "x.pt"), zip.finish());
    return text_of(verify(join_path(kPath, "x.pt"), {.file_system = files}));
  };
  EXPECT_EQ(faults_with("data/3", 8), "no faults");
  EXPECT_NE(faults_with("data/4", 8).find("data/3"), std::string::npos);
  EXPECT_NE(faults_with("data/3", 4).find("has 4 bytes"), std::string::npos);
}

TEST(VerifyLinks, AreRefusedUnlessAskedFor) {
  const fs::path folder = fs::path(::testing::TempDir()) / "verify_links";
  fs::remove_all(folder);
  const Place place{.files = local_file_system()};
  place.save({{"w", counted({3})}}, (folder / "ckpt").string());
  fs::rename(folder / "ckpt/__0_0.distcp", folder / "elsewhere");
  fs::create_symlink(folder / "elsewhere", folder / "ckpt/__0_0.distcp");
  const VerifyReport refused = verify((folder / "ckpt").string());
  ASSERT_EQ(refused.faults.size(), 1u) << text_of(refused);
  EXPECT_EQ(refused.faults[0].kind, ErrorKind::kUnsupported);
  EXPECT_NE(refused.faults[0].cause.find("link"), std::string::npos) << refused.faults[0].cause;
  const VerifyReport followed = verify((folder / "ckpt").string(), {.follow_links = true});
  EXPECT_TRUE(followed.is_sound()) << text_of(followed);
}

}  // namespace
}  // namespace dcp
