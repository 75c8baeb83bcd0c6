#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "torch_dcp/format/safetensors.h"
#include "torch_dcp/storage/safetensors_file_writer.h"
#include "torch_dcp/storage/safetensors_reader.h"
#include "torch_dcp/storage/safetensors_writer.h"

/// What tests of safetensors have in common.
namespace dcp::test {

/// A tensor, or a part of one, that a test puts into a file.
struct StoredPart {
  std::string name;
  at::Tensor tensor;
  std::optional<Sizes> saved_offsets = {};
  std::optional<Sizes> global_size = {};
};

/// Writes one file; the folder must be there.
///
/// \param metadata  More entries of it, such as `torch_dcp.save_id`.
inline void write_safetensors(FileSystem& files, const std::string& path, const std::vector<StoredPart>& parts,
                              OrderedMap<std::string, std::string> metadata = {}) {
  std::vector<SafetensorsSpec> specs;
  std::map<std::string, at::Tensor> tensors;
  for (const StoredPart& part : parts) {
    specs.push_back(
        {part.name, part.tensor.scalar_type(), Sizes(part.tensor.sizes()), part.saved_offsets, part.global_size});
    tensors[part.name] = part.tensor;
  }
  SafetensorsFileWriter out(files, path, std::move(specs), /*sync_file=*/true, std::move(metadata));
  for (const SafetensorsSpec& spec : out.order()) out.append(tensors.at(spec.name));
  out.close();
}

inline std::string text_of(FileSystem& files, const std::string& path) {
  return std::string(as_text(read_whole_file(files, path, 1u << 30)));
}

inline void write_text(FileSystem& files, const std::string& path, const std::string& text) {
  write_file(files, path, as_bytes(text));
}

/// The header of a stored file.
inline SafetensorsHeader header_of(FileSystem& files, const std::string& path) {
  return read_safetensors_header(*files.open_file(path));
}

/// Saves with a SafetensorsWriter.
inline Metadata save_safetensors(const Place& place, const StateDict& state, const std::string& path,
                                 SafetensorsWriterOptions storage = {}) {
  storage.file_system = place.files;
  SafetensorsWriter writer(path, std::move(storage));
  SaveOptions options;
  options.communicator = place.communicator;
  return save(state, writer, options);
}

/// What differs between two state dicts of tensors, whose keys may be in any order.
inline std::string difference_of(const StateDict& found, const StateDict& wanted) {
  const auto sorted = [](const StateDict& state) {
    std::map<Key, Value> by_key;
    for (const auto& [key, value] : state) by_key.emplace(key, value);
    StateDict result;
    for (const auto& [key, value] : by_key) result.insert_or_assign(key, value);
    return result;
  };
  return first_difference(sorted(found), sorted(wanted));
}

/// Tensors of every dtype that the form has, with 0 dimensions, without elements, and strided ones.
inline StateDict many_tensors() {
  StateDict state;
  for (const at::ScalarType dtype :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar, at::kByte,
        at::kBool, at::kUInt16, at::kUInt32, at::kUInt64, at::kComplexFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2,
        at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz}) {
    // Bits that no arithmetic makes; but for bool, whose bytes are 0 or 1.
    at::Tensor tensor = at::empty({5, 3}, dtype);
    auto* bytes = static_cast<std::uint8_t*>(tensor.mutable_data_ptr());
    for (std::size_t i = 0; i < tensor.nbytes(); ++i) bytes[i] = dtype == at::kBool ? i % 3 == 0 : (i * 37 + 11) & 0xFF;
    state[std::string("d.") + c10::toString(dtype)] = tensor;
  }
  state["scalar"] = at::full({}, 2.5, at::kDouble);
  state["scalar_int"] = at::full({}, 7, at::kLong);
  state["none"] = at::empty({0, 4});
  state["strided"] = counted({4, 6}).t();
  state["expanded"] = at::full({1}, 3.0f).expand({4, 2});
  return state;
}

/// What a rank saves; two generations differ in every tensor.
inline StateDict state_of(const RankContext& ranks, int generation) {
  return {{"w", split(counted({7, 3}) + 100 * generation, ranks)},
          {"cols", split(counted({3, 5}, at::kHalf) + generation, ranks, 1)},
          {"v", counted({3, 2}, at::kLong) - 50 * generation},
          {"flag", at::full({}, generation % 2 == 0)},
          {"few", split(counted({1}) + generation, ranks)}};
}

/// The same as one process has it.
inline StateDict whole_state(int generation) {
  return {{"w", counted({7, 3}) + 100 * generation},
          {"cols", counted({3, 5}, at::kHalf) + generation},
          {"v", counted({3, 2}, at::kLong) - 50 * generation},
          {"flag", at::full({}, generation % 2 == 0)},
          {"few", counted({1}) + generation}};
}

/// For whole files, of which there are then three.
inline const FqnToIndex kMapping = {{"w", 2}, {"cols", 1}, {"v", 1}, {"flag", 2}, {"few", 3}};

}  // namespace dcp::test
