#include "torch_dcp/io/atomic_write.h"

#include <utility>

namespace dcp {

AtomicFile::AtomicFile(std::shared_ptr<FileSystem> files, std::string path, bool sync)
    : files_(std::move(files)), path_(std::move(path)), sync_(sync), file_(files_->create_file(temporary_path())) {
  try {
    file_->set_early_write_back(sync_);
  } catch (...) {
    discard();
    throw;
  }
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (!is_temporary_) return;
  try {
    file_.reset();
    files_->remove_file(temporary_path());
  } catch (...) {
    // The error that brought us here is on its way and says more; a file that stays is harmless.
  }
}

void AtomicFile::commit() {
  if (sync_) file_->sync();
  file_->close();
  // A rename that is told to have failed may have been done all the same, as on a network file system.
  may_be_in_place_ = true;
  files_->rename_file(temporary_path(), path_);
  is_temporary_ = false;
  if (sync_) files_->sync_directory(parent_path(path_));
}

void atomic_write(FileSystem& files, std::string_view directory, std::string_view name, ByteSpan bytes, bool sync) {
  // Borrowed for the time of the call.
  AtomicFile file(std::shared_ptr<FileSystem>(std::shared_ptr<void>(), &files), join_path(directory, name), sync);
  file.file().append(bytes);
  file.commit();
}

}  // namespace dcp
