#pragma once

#include <memory>

#include "torch_dcp/io/file_system.h"

namespace dcp {

/// Returns the machine's own file system.
DCP_API std::shared_ptr<FileSystem> local_file_system();

}  // namespace dcp
