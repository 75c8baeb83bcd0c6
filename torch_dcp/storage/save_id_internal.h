#pragma once

#include <string>
#include <string_view>

namespace dcp {

/// A random UUID of version 4, different for every save.
std::string make_save_id();

/// Whether a text is an id that may be part of a file's name: others come from foreign files.
bool is_plain_id(std::string_view id);

}  // namespace dcp
