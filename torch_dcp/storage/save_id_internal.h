#pragma once

#include <string>

namespace dcp {

/// A random UUID of version 4, different for every save.
std::string make_save_id();

}  // namespace dcp
