#pragma once

#include <memory>

#include "torch_dcp/io/file_system.h"

namespace dcp {

/// Returns a new, empty file system that lives in memory; "/" and relative paths both start at its root.
DCP_API std::shared_ptr<FileSystem> make_memory_file_system();

}  // namespace dcp
