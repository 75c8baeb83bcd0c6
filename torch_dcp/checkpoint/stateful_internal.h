#pragma once

#include <string>
#include <vector>

#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// Whether a top-level value is a Stateful.
bool has_stateful(const Dict& state);

/// \throws dcp::Error kType for a Stateful, naming its path.
void refuse_nested_stateful(const Dict& state);

/// \throws dcp::Error kType for Stateful objects at the top level, naming all keys, or below, naming a path.
void refuse_all_stateful(const Dict& state);

/// A copy of the state dict in which every top-level Stateful is replaced by its state, asked for in sorted order of
/// keys, so that ranks agree on the order of what their objects may do together.
///
/// \throws dcp::Error kType for a Stateful below the top level, naming its path.
Dict replace_stateful(const Dict& state);

/// Puts loaded values back: hands a Stateful its loaded state (sorted order), replaces the others. A Stateful of which
/// everything was skipped is left alone, and one under several keys is given its state once.
///
/// \param skipped  Flat keys of what was not loaded.
/// \throws dcp::Error kKey, before anything is put back, if a Stateful under several keys has states that differ,
/// naming
///         two of them. What an object throws.
void restore_stateful(Dict& state, Dict loaded, const std::vector<std::string>& skipped = {});

}  // namespace dcp
