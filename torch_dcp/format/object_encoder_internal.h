#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/format/tensor_pickle_internal.h"
#include "torch_dcp/pickle/writer.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/state_dict/value.h"

namespace dcp {

/// What becomes of the storages of a value's tensors.
enum class StorageRule : std::uint8_t {
  kOwn,     ///< each tensor gets one with its elements alone, row-major
  kShared,  ///< as torch.save does: whole storages, each once, with the tensors' own strides
};

/// A storage that follows the pickle, by its place in the list its key.
struct StorageToWrite {
  c10::ScalarType dtype{};
  std::int64_t bytes = 0;
  /// Row-major elements on the CPU; or all bytes of a shared storage, uint8 [at least `bytes`], on any device; or a
  /// tensor on the meta device, whose elements are still to come.
  at::Tensor elements;

  bool is_to_come() const { return elements.is_meta(); }
};

/// Writes the pickle of a value and collects the storages of its tensors.
class ObjectEncoder {
 public:
  /// \param is_before_zip  Writes the form before zip, which has fewer dtypes.
  explicit ObjectEncoder(StorageRule rule, bool is_before_zip = false) : rule_(rule), is_before_zip_(is_before_zip) {}

  /// \throws dcp::Error kUnsupported, kInvalidArgument, naming the place in the value.
  void value(const Value& value);

  Bytes finish_pickle() { return std::move(writer_).finish(); }
  std::vector<StorageToWrite> take_storages() { return std::move(storages_); }

  // For std::visit.
  void operator()(None) { writer_.none(); }
  void operator()(bool value) { writer_.boolean(value); }
  void operator()(std::int64_t value) { writer_.integer(value); }
  void operator()(double value) { writer_.real(value); }
  void operator()(const std::string& value) { writer_.text(value); }
  void operator()(const Bytes& value) { writer_.bytes(value); }
  void operator()(const at::Tensor& value);
  void operator()(const Dict& value);
  void operator()(const List& value);
  void operator()(const Tuple& value);
  void operator()(const DTensor&) { refuse("a DTensor"); }
  void operator()(const ShardedTensor&) { refuse("a ShardedTensor"); }
  void operator()(const std::shared_ptr<Stateful>&) { refuse("a Stateful"); }
  void operator()(const Opaque& value) { refuse("an object of type " + value.type_name); }

 private:
  std::string place() const { return path_.empty() ? "object" : "object, at " + describe(path_); }
  [[noreturn]] void refuse(const std::string& what) const;
  void enter(PathItem step);
  void leave() { path_.pop_back(); }
  void element(std::size_t index, const Value& value);

  /// Adds a storage and returns the tensor that is all of it.
  PickledTensor add_own(const at::Tensor& tensor);
  /// Adds the tensor's storage unless it is there already.
  PickledTensor add_shared(const at::Tensor& tensor);
  PickledQuantizer add_quantizer(const at::Tensor& tensor);
  void check_dtype(c10::ScalarType dtype) const;

  StorageRule rule_;
  bool is_before_zip_;
  pickle::Writer writer_{2};                                // torch.save's protocol
  std::vector<StorageToWrite> storages_;                    // by their keys
  std::unordered_map<const void*, std::size_t> shared_;     // StorageImpl: its key
  std::unordered_map<const void*, std::uint32_t> written_;  // TensorImpl: its memo number
  std::vector<at::Tensor> kept_;                            // whose addresses are keys above
  Path path_;
};

}  // namespace dcp
