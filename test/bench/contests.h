#pragma once

#include "test/bench/python_peer.h"
#include "test/bench/report.h"
#include "test/bench/settings.h"

namespace dcp::bench {

/// Large tensors: durable saves, page cache, memory file system, warm and cold loads, checksums on and off, beside the
/// machine's limits and the peers.
void measure_large(const Settings& settings, PythonPeer* python, Report& report);

/// Many small tensors against the peers.
void measure_small(const Settings& settings, PythonPeer* python, Report& report);

/// A slice of a large tensor: time, and bytes read; bytes read where shards are cut otherwise than they were saved.
void measure_slice(const Settings& settings, PythonPeer* python, Report& report);

/// The global plan of many ranks.
void measure_planning(const Settings& settings, PythonPeer* python, Report& report);

/// Writing and reading the metadata of many keys.
void measure_metadata(const Settings& settings, PythonPeer* python, Report& report);

/// The coordinator's planning for simulated jobs of up to thousands of ranks, phase by phase: time, bytes and memory
/// for each item.
void measure_scale(const Settings& settings, PythonPeer* python, Report& report);

/// Checkpoints in the ranks' memory: a save beside a plain send and a copy between processes, a recovery beside loads
/// from disk, and the memory that they take.
void measure_peer_memory(const Settings& settings, PythonPeer* python, Report& report);

}  // namespace dcp::bench
