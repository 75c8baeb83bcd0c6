#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/state_dict/value.h"

// The saves and loads that are measured: this library's, and LibTorch's own archive.

namespace dcp::bench {

/// `count` float tensors `t00000`, ... of `bytes_each`, filled with numbers that `seed` gives.
StateDict make_state(std::int64_t count, std::int64_t bytes_each, std::uint64_t seed);

std::vector<ByteSpan> parts_of(const StateDict& state);
std::vector<MutableByteSpan> mutable_parts_of(StateDict& state);
bool have_equal_bytes(const StateDict& a, const StateDict& b);

struct SaveForm {
  bool is_durable = true;
  bool checksums = true;
  std::size_t threads = 1;
};

/// All of these return seconds.
double save_ours(const StateDict& state, const std::string& folder, const SaveForm& form);
double load_ours(StateDict& state, const std::string& folder, bool checksums, std::size_t threads);
double save_libtorch(const StateDict& state, const std::string& file, bool is_durable);
double load_libtorch(StateDict& state, const std::string& file);

}  // namespace dcp::bench
