#include "torch_dcp/io/file_system.h"

#include <utility>

#include "torch_dcp/base/error.h"

namespace dcp {

RandomAccessFile::~RandomAccessFile() = default;
WritableFile::~WritableFile() = default;
FileSystem::~FileSystem() = default;

void WritableFile::append_all(const std::vector<ByteSpan>& parts) {
  for (const ByteSpan part : parts) append(part);
}

void WritableFile::set_early_write_back(bool) {}
void WritableFile::set_direct_writes(bool) {}

FileSystemWrapper::FileSystemWrapper(std::shared_ptr<FileSystem> base) : base_(std::move(base)) {
  DCP_CHECK(base_ != nullptr, kInvalidArgument, "a FileSystemWrapper needs a file system to forward to");
}

FileSystemWrapper::~FileSystemWrapper() = default;

std::unique_ptr<WritableFile> FileSystemWrapper::create_file(const std::string& path, bool exclusive) {
  return base_->create_file(path, exclusive);
}

std::unique_ptr<RandomAccessFile> FileSystemWrapper::open_file(const std::string& path, Links links) {
  return base_->open_file(path, links);
}

FileType FileSystemWrapper::file_type(const std::string& path) { return base_->file_type(path); }

std::optional<std::uint64_t> FileSystemWrapper::file_size(const std::string& path, Links links) {
  return base_->file_size(path, links);
}

std::vector<std::string> FileSystemWrapper::list_directory(const std::string& path) {
  return base_->list_directory(path);
}

std::vector<std::string> FileSystemWrapper::create_directories(const std::string& path) {
  return base_->create_directories(path);
}

void FileSystemWrapper::remove_file(const std::string& path) { base_->remove_file(path); }

void FileSystemWrapper::rename_file(const std::string& from, const std::string& to) { base_->rename_file(from, to); }

void FileSystemWrapper::sync_directory(const std::string& path) { base_->sync_directory(path); }

std::string join_path(std::string_view directory, std::string_view name) {
  while (name.starts_with('/')) name.remove_prefix(1);
  std::string path(directory);
  if (!path.empty() && !path.ends_with('/') && !name.empty()) path += '/';
  return path.append(name);
}

std::string parent_path(std::string_view path) {
  const bool is_absolute = path.starts_with('/');
  while (path.ends_with('/')) path.remove_suffix(1);
  while (!path.empty() && !path.ends_with('/')) path.remove_suffix(1);
  while (path.ends_with('/')) path.remove_suffix(1);
  if (!path.empty()) return std::string(path);
  return is_absolute ? "/" : ".";
}

Bytes read_whole_file(FileSystem& files, const std::string& path, std::uint64_t max_bytes, Links links) {
  const auto file = files.open_file(path, links);
  DCP_CHECK(file->size() <= max_bytes, kCorruptData, "\"", path, "\" has ", file->size(), " bytes, more than the ",
            max_bytes, " that are allowed here");
  Bytes bytes(file->size());
  file->read_at(0, bytes);
  return bytes;
}

}  // namespace dcp
