#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dcp {

/// Throws `cannot ACTION "PATH": TEXT`, the text being the system's for `error_number`,
/// as kNotFound for ENOENT, kAlreadyExists for EEXIST, else kIo.
[[noreturn]] void throw_io_error(std::string_view action, const std::string& path, int error_number);

/// Throws kIo `cannot ACTION "PATH": REASON`.
[[noreturn]] void throw_io_error(std::string_view action, const std::string& path, std::string_view reason);

/// Throws kIo if the path has a zero character, at which the system would cut it.
void check_path(std::string_view action, const std::string& path);

/// Throws kCorruptData unless `byte_count` bytes from `offset` on lie within a file of `file_bytes` bytes.
void check_read_range(const std::string& path, std::uint64_t offset, std::uint64_t byte_count,
                      std::uint64_t file_bytes);

/// The names on the way to `path` in a file system without links: no empty ones, no
/// "."; ".." goes back by one, as far as the root. Throws as `check_path` does.
std::vector<std::string> path_names(const std::string& path);

}  // namespace dcp
