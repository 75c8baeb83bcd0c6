#pragma once

#include <cstdio>

#include "torch_dcp/base/error.h"

/// Runs what a fuzz target does with an input: it returns, or throws an Error that tells of the input. Anything else
/// ends the process.
template <typename Call>
void returns_or_refuses(const Call& call) {
  try {
    call();
  } catch (const dcp::Error& error) {
    if (error.kind() == dcp::ErrorKind::kCorruptData || error.kind() == dcp::ErrorKind::kUnsupported) return;
    std::fprintf(stderr, "%s\n", error.what());
    __builtin_trap();
  }
}

/// What must hold of what was read.
inline void must(bool condition) {
  if (!condition) __builtin_trap();
}
