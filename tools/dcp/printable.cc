#include "tools/dcp/printable.h"

#include <iomanip>
#include <sstream>

namespace dcp::tool {

std::string printable(const std::string& text) {
  std::ostringstream out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out << "\\x" << std::hex << std::setw(2) << std::setfill('0') << int{byte} << std::dec;
    } else {
      out << c;
    }
  }
  return out.str();
}

std::string printable_lines(const std::string& text) {
  std::string lines;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines += printable(text.substr(begin, end - begin)) + '\n';
  }
  return lines + printable(text.substr(begin));
}

}  // namespace dcp::tool
