#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/object_item.h"
#include "torch_dcp/format/tensor_pickle_internal.h"
#include "torch_dcp/format/zip_internal.h"
#include "torch_dcp/pickle/writer.h"
#include "torch_dcp/state_dict/path.h"
#include "torch_dcp/tensor/local_chunks.h"

namespace dcp {
namespace {

constexpr std::size_t kBatch = 1000;     ///< of Python's pickler
constexpr int kProtocol = 2;             ///< torch.save's
constexpr std::size_t kTensorDepth = 4;  ///< of the call that makes a tensor: call, arguments, persistent id, its tuple

/// Writes the pickle of a value and collects its tensors.
class ObjectEncoder {
 public:
  void value(const Value& value);
  Bytes finish() &&;

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
  [[noreturn]] void refuse(const std::string& what) const {
    DCP_THROW(kUnsupported, place(), ": ", what, " cannot be part of an object item");
  }
  void enter(PathItem step);
  void leave() { path_.pop_back(); }
  void element(std::size_t index, const Value& value);

  pickle::Writer writer_{kProtocol};
  std::vector<at::Tensor> storages_;  // by their keys
  Path path_;
};

void ObjectEncoder::value(const Value& value) { std::visit(*this, value.storage()); }

void ObjectEncoder::enter(PathItem step) {
  static constexpr ParseLimits kLimits;
  path_.push_back(std::move(step));
  DCP_CHECK(path_.size() + kTensorDepth <= kLimits.max_depth, kUnsupported, "object: it is nested deeper than ",
            kLimits.max_depth, ", which could not be read back");
}

void ObjectEncoder::element(std::size_t index, const Value& value) {
  enter(PathItem::list_index(static_cast<std::int64_t>(index)));
  this->value(value);
  leave();
}

void ObjectEncoder::operator()(const at::Tensor& value) {
  DCP_CHECK(value.defined(), kInvalidArgument, place(), ": the tensor is undefined");
  if (value.is_quantized()) refuse("a quantized tensor");
  const at::Tensor view = local_chunks(value)[0].view;
  storages_.push_back(view.resolve_conj().resolve_neg().cpu().contiguous());
  const at::Tensor& stored = storages_.back();
  write_tensor_call(writer_, std::to_string(storages_.size() - 1), stored.scalar_type(), stored.sizes());
}

void ObjectEncoder::operator()(const List& value) {
  writer_.empty_list();
  writer_.put();
  if (value.size() == 1) {
    element(0, value[0]);
    writer_.append();
    return;
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (i % kBatch == 0) writer_.mark();
    element(i, value[i]);
    if ((i + 1) % kBatch == 0 || i + 1 == value.size()) writer_.appends_from_mark();
  }
}

void ObjectEncoder::operator()(const Tuple& value) {
  if (value.empty()) return writer_.empty_tuple();
  if (value.size() > 3) writer_.mark();
  for (std::size_t i = 0; i < value.size(); ++i) element(i, value[i]);
  if (value.size() > 3) {
    writer_.tuple_from_mark();
  } else {
    writer_.tuple_of(static_cast<int>(value.size()));
  }
  writer_.put();
}

void ObjectEncoder::operator()(const Dict& value) {
  writer_.empty_dict();
  writer_.put();
  std::size_t written = 0;
  for (const auto& [key, item] : value) {
    if (value.size() > 1 && written % kBatch == 0) writer_.mark();
    if (const auto* text = std::get_if<std::string>(&key)) {
      writer_.text(*text);
    } else {
      writer_.integer(std::get<std::int64_t>(key));
    }
    enter(PathItem::dict_key(key));
    this->value(item);
    leave();
    ++written;
    if (value.size() == 1) {
      writer_.set_item();
    } else if (written % kBatch == 0 || written == value.size()) {
      writer_.set_items_from_mark();
    }
  }
}

Bytes ObjectEncoder::finish() && {
  zip::Writer zip;
  zip.add("data.pkl", std::move(writer_).finish());
  zip.add_format_members();
  for (std::size_t key = 0; key < storages_.size(); ++key) {
    const at::Tensor& stored = storages_[key];
    zip.add("data/" + std::to_string(key),
            {static_cast<const std::uint8_t*>(stored.const_data_ptr()), stored.nbytes()});
  }
  zip.add_closing_members();
  return zip.finish();
}

}  // namespace

Bytes encode_object_item(const Value& value) {
  if (const auto* opaque = std::get_if<Opaque>(&value.storage())) {
    DCP_CHECK(opaque->item != nullptr, kInvalidArgument, "object: an Opaque of type ", opaque->type_name,
              " without an item");
    return *opaque->item;
  }
  ObjectEncoder encoder;
  encoder.value(value);
  return std::move(encoder).finish();
}

}  // namespace dcp
