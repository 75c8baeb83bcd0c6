#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "test/conformance/storage_suite.h"
#include "torch_dcp/format/safetensors.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/io/memory_file_system.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/filesystem_writer.h"
#include "torch_dcp/storage/safetensors_reader.h"
#include "torch_dcp/storage/safetensors_writer.h"

namespace dcp::test {
namespace {

/// A directory for one checkpoint that goes when the test has ended.
struct Directory {
  std::shared_ptr<FileSystem> files;
  std::string path;

  ~Directory() {
    if (path.starts_with(::testing::TempDir())) std::filesystem::remove_all(std::filesystem::path(path).parent_path());
  }
};

std::shared_ptr<const Directory> in_memory() {
  auto directory = std::make_shared<Directory>();
  directory->files = make_memory_file_system();
  directory->path = "some/checkpoint";
  return directory;
}

std::shared_ptr<const Directory> on_disk() {
  std::string root = join_path(::testing::TempDir(), "storageXXXXXX");
  DCP_CHECK(::mkdtemp(root.data()) != nullptr, kIo, "cannot make ", root);
  auto directory = std::make_shared<Directory>();
  directory->files = local_file_system();
  directory->path = join_path(root, "checkpoint");
  return directory;
}

void add_contents(FileSystem& files, const std::string& root, const std::string& name,
                  std::map<std::string, Bytes>& contents) {
  const std::string path = join_path(root, name);
  switch (files.file_type(path)) {
    case FileType::kDirectory:
      for (const std::string& inner : files.list_directory(path)) {
        add_contents(files, root, name.empty() ? inner : join_path(name, inner), contents);
      }
      break;
    case FileType::kFile:
      contents[name] = read_whole_file(files, path, 1u << 30);
      break;
    default:
      break;
  }
}

/// What all kinds of files have in common.
StoragePlace place_in(const std::shared_ptr<const Directory>& directory) {
  StoragePlace place;
  place.name = directory->path;
  place.contents = [directory] {
    std::map<std::string, Bytes> contents;
    add_contents(*directory->files, directory->path, "", contents);
    return contents;
  };
  place.lose = [directory](const StorageInfo& info) {
    directory->files->remove_file(join_path(directory->path, info.relative_path));
  };
  return place;
}

using MakeDirectory = std::function<std::shared_ptr<const Directory>()>;

StorageCase filesystem_case(std::string name, MakeDirectory make_directory, FileSystemWriterOptions writer_options = {},
                            FileSystemReaderOptions reader_options = {}) {
  StorageCase result;
  result.name = std::move(name);
  result.replaces = writer_options.overwrite_form == OverwriteForm::kReplace;
  result.make_place = [=] {
    const std::shared_ptr<const Directory> directory = make_directory();
    StoragePlace place = place_in(directory);
    place.make_writer = [=](int, int) {
      FileSystemWriterOptions options = writer_options;
      options.file_system = directory->files;
      return std::make_unique<FileSystemWriter>(directory->path, options);
    };
    place.make_reader = [=](int, int) {
      FileSystemReaderOptions options = reader_options;
      options.file_system = directory->files;
      return std::make_unique<FileSystemReader>(directory->path, options);
    };
    place.is_complete = [directory] { return is_complete(directory->path, directory->files); };
    if (!writer_options.checksums || !reader_options.verify_checksums) return place;
    place.damage = [directory](const StorageInfo& info) {
      const std::string path = join_path(directory->path, info.relative_path);
      Bytes bytes = read_whole_file(*directory->files, path, 1u << 30);
      bytes[static_cast<std::size_t>(info.offset + info.length / 2)] ^= 4;
      const auto file = directory->files->create_file(path);
      file->append(bytes);
      file->close();
    };
    return place;
  };
  return result;
}

StorageCase safetensors_case(std::string name, MakeDirectory make_directory, SafetensorsWriterOptions writer_options,
                             SafetensorsReaderOptions reader_options = {}) {
  StorageCase result;
  result.name = std::move(name);
  // Whole files are one rank's work; others hold parts.
  result.max_ranks = writer_options.save_distributed ? 3 : 1;
  result.holds_objects = false;
  result.holds_many_parts = false;
  result.holds_dtype = [](c10::ScalarType dtype) { return safetensors_dtype(dtype).has_value(); };
  result.saves_alone = false;
  result.tells_replacement = false;
  result.make_place = [=] {
    const std::shared_ptr<const Directory> directory = make_directory();
    StoragePlace place = place_in(directory);
    place.make_writer = [=](int, int) {
      SafetensorsWriterOptions options = writer_options;
      options.file_system = directory->files;
      return std::make_unique<SafetensorsWriter>(directory->path, options);
    };
    place.make_reader = [=](int, int) {
      SafetensorsReaderOptions options = reader_options;
      options.file_system = directory->files;
      return std::make_unique<SafetensorsReader>(directory->path, options);
    };
    return place;
  };
  return result;
}

INSTANTIATE_TEST_SUITE_P(
    FileSystem, StorageSuite,
    ::testing::Values(filesystem_case("Memory", in_memory), filesystem_case("Local", on_disk),
                      filesystem_case("LocalUnsynced", on_disk, {.sync_files = false}),
                      filesystem_case("FilePerItem", in_memory, {.single_file_per_rank = false}),
                      filesystem_case("TwoThreads", in_memory, {.thread_count = 2}, {.thread_count = 2}),
                      filesystem_case("FilePerItemTwoThreads", on_disk,
                                      {.thread_count = 2, .single_file_per_rank = false}, {.thread_count = 2}),
                      filesystem_case("Zstd", in_memory, {.transforms = {zstd_transform()}}),
                      filesystem_case("WithoutChecksums", in_memory, {.checksums = false}),
                      filesystem_case("RevokeFirst", in_memory, {.overwrite_form = OverwriteForm::kRevokeFirst})),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    Safetensors, StorageSuite,
    ::testing::Values(safetensors_case("Whole", in_memory, {}), safetensors_case("WholeLocal", on_disk, {}),
                      safetensors_case("Shards", in_memory, {.save_distributed = true}),
                      safetensors_case("ShardsLocal", on_disk, {.save_distributed = true}, {.thread_count = 2}),
                      safetensors_case("Consolidated", in_memory,
                                       {.save_distributed = true, .enable_consolidation = true})),
    case_name);

}  // namespace
}  // namespace dcp::test
