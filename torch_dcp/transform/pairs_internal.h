#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/state_dict/dtype_policy.h"
#include "torch_dcp/state_dict/load_report.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// How two state dicts may differ that are walked together.
enum class PairRule : std::uint8_t {
  kAlike,      ///< in plain values, and in being a list or a tuple
  kFill,       ///< also in keys, in the layout of tensors that can be cut here, and a Stateful takes a dict
  kFillLoose,  ///< also in kinds of values and lengths of sequences: the source's replaces the target's
  kRestore,    ///< in everything: also a tensor that does not fit is replaced
};

/// Two tensors at the same place: plain ones, local parts of DTensors, shards, or what they have in common. Defined,
/// not nested; their sizes and dtypes may still differ.
struct TensorPair {
  std::string key;  ///< flat
  at::Tensor source;
  at::Tensor target;
};

/// Two values at the same place.
struct ValuePair {
  std::string key;
  std::string path;  ///< described; of plain values left empty
  const Value* source;
  Value* target;
};

/// A value that only the source has.
struct AddedValue {
  std::string key;
  std::string path;  ///< described
  const Value* source;
  Dict* target;  ///< which it is to be in
  Key target_key;
};

/// An object of the target's, and the state for it.
struct StatePair {
  std::string key;
  std::string path;  ///< described
  const Dict* source;
  std::shared_ptr<Stateful> target;
};

struct Pairs {
  std::vector<TensorPair> tensors;
  std::vector<ValuePair> plain;  ///< neither tensors nor containers
  FaultList faults;              ///< kKey where the structures or layouts differ, kShape and kType where tensors do

  // Of other rules than kAlike.
  std::vector<StatePair> states;
  std::vector<ValuePair> replaced;       ///< of another kind or length, or that does not fit
  std::vector<AddedValue> added;         ///< those of inner dicts first, since an insertion moves what is in a dict
  std::vector<std::string> only_target;  ///< flat keys
};

/// Walks two state dicts together and names every difference that the rule does not allow. Pairs point into both.
///
/// \throws dcp::Error kInvalidArgument for nesting beyond 500.
Pairs pair_values(const Dict& source, Dict& target, PairRule rule = PairRule::kAlike);

/// Adds a fault for each tensor whose elements cannot be copied. Returns the conversions, one for each key.
std::vector<DtypeConversion> check_tensors(Pairs& pairs, DtypePolicy policy);

}  // namespace dcp
