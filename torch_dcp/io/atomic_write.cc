#include "torch_dcp/io/atomic_write.h"

#include <memory>
#include <string>
#include <utility>

namespace dcp {
namespace {

/// Removes a file at the end of the scope unless it was kept.
class TemporaryFile {
 public:
  TemporaryFile(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  ~TemporaryFile() {
    if (kept_) return;
    try {
      files_.remove_file(path_);
    } catch (...) {
      // The error that brought us here is on its way and says more; a file that stays is harmless.
    }
  }

  void keep() { kept_ = true; }

 private:
  FileSystem& files_;
  std::string path_;
  bool kept_ = false;
};

void write_and_close(std::unique_ptr<WritableFile> file, ByteSpan bytes, bool sync) {
  file->set_early_write_back(sync);
  file->append(bytes);
  if (sync) file->sync();
  file->close();
}

}  // namespace

void atomic_write(FileSystem& files, std::string_view directory, std::string_view name, ByteSpan bytes, bool sync) {
  const std::string path = join_path(directory, name);
  const std::string temporary_path = path + ".tmp";
  auto file = files.create_file(temporary_path);
  TemporaryFile temporary(files, temporary_path);
  write_and_close(std::move(file), bytes, sync);
  files.rename_file(temporary_path, path);
  temporary.keep();
  if (sync) files.sync_directory(parent_path(path));
}

}  // namespace dcp
