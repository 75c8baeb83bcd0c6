#pragma once

#include <string>

namespace dcp::tool {

/// A text that a file holds, on one line and without what a terminal would obey.
std::string printable(const std::string& text);

/// The same for a message of several lines, which stay lines.
std::string printable_lines(const std::string& text);

}  // namespace dcp::tool
