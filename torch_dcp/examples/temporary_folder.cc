#include "torch_dcp/examples/temporary_folder.h"

#include <stdlib.h>

#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <system_error>

namespace dcp::examples {

TemporaryFolder::TemporaryFolder(const std::string& purpose, bool keep) : keep_(keep) {
  path_ = (std::filesystem::temp_directory_path() / ("torch_dcp-" + purpose + "-XXXXXX")).string();
  if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make a folder like '" + path_ + "'");
}

TemporaryFolder::~TemporaryFolder() {
  if (keep_) {
    std::cout << "checkpoints are in " << path_ << std::endl;
    return;
  }
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  if (error) std::cerr << "cannot remove '" << path_ << "': " << error.message() << std::endl;
}

}  // namespace dcp::examples
