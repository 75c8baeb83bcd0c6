#include "torch_dcp/io/io_internal.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

ErrorKind kind_of(int error_number) {
  switch (error_number) {
    case ENOENT:
      return ErrorKind::kNotFound;
    case EEXIST:
      return ErrorKind::kAlreadyExists;
    default:
      return ErrorKind::kIo;
  }
}

/// A message ends at a zero character for who reads it as a C string.
std::string printable(std::string path) {
  for (std::size_t at = path.find('\0'); at != std::string::npos; at = path.find('\0', at)) path.replace(at, 1, "\\0");
  return path;
}

[[noreturn]] void throw_with(ErrorKind kind, std::string_view action, const std::string& path,
                             std::string_view reason) {
  throw Error(kind, c10::str("cannot ", action, " \"", printable(path), "\": ", reason), DCP_WHERE);
}

}  // namespace

void throw_io_error(std::string_view action, const std::string& path, int error_number) {
  throw_with(kind_of(error_number), action, path, std::generic_category().message(error_number));
}

void throw_io_error(std::string_view action, const std::string& path, std::string_view reason) {
  throw_with(ErrorKind::kIo, action, path, reason);
}

void check_path(std::string_view action, const std::string& path) {
  if (path.find('\0') != std::string::npos) throw_io_error(action, path, "the path has a zero character");
}

void check_read_range(const std::string& path, std::uint64_t offset, std::uint64_t byte_count,
                      std::uint64_t file_bytes) {
  // Two comparisons, since the sum of two numbers from a file may wrap around.
  DCP_CHECK(offset <= file_bytes && byte_count <= file_bytes - offset, kCorruptData, "\"", path,
            "\" is too short: ", byte_count, " bytes wanted at offset ", offset, ", the file has ", file_bytes,
            " bytes");
}

std::vector<std::string> path_names(const std::string& path) {
  check_path("use", path);
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    std::string name = path.substr(begin, end - begin);
    begin = end + 1;
    if (name == ".." && !names.empty()) names.pop_back();
    if (!name.empty() && name != "." && name != "..") names.push_back(std::move(name));
  }
  return names;
}

}  // namespace dcp
