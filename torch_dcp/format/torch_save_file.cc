#include "torch_dcp/format/torch_save_file.h"

#include <array>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/legacy_archive_internal.h"
#include "torch_dcp/format/object_decoder_internal.h"
#include "torch_dcp/format/object_reader_internal.h"
#include "torch_dcp/format/torch_archive_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

/// Calls `visit` for every tensor in a value, with its path.
template <typename AnyValue, typename Visit>
void visit_tensors(AnyValue& value, Path& path, const Visit& visit) {
  const auto visit_all = [&](auto& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      path.push_back(PathItem::list_index(static_cast<std::int64_t>(i)));
      visit_tensors(values[i], path, visit);
      path.pop_back();
    }
  };
  if (auto* tensor = std::get_if<at::Tensor>(&value.storage())) {
    visit(*tensor, path);
  } else if (auto* list = std::get_if<List>(&value.storage())) {
    visit_all(*list);
  } else if (auto* tuple = std::get_if<Tuple>(&value.storage())) {
    visit_all(*tuple);
  } else if (auto* dict = std::get_if<Dict>(&value.storage())) {
    for (auto& [key, element] : *dict) {
      path.push_back(PathItem::dict_key(key));
      visit_tensors(element, path, visit);
      path.pop_back();
    }
  }
}

}  // namespace

struct TorchSaveFile::State {
  std::shared_ptr<const RandomAccessFile> file;
  SavedArchive archive;
  Value structure;
  std::vector<SavedTensor> tensors;
  std::vector<UnreadPart> unread;
  std::unordered_map<const void*, PickledTensor> pickled;  ///< by the TensorImpl in `structure`
};

TorchSaveFile::TorchSaveFile(std::shared_ptr<const RandomAccessFile> file, const ParseLimits& limits)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.file = std::move(file);
  const auto length = static_cast<std::int64_t>(state.file->size());
  const zip::ItemWindow window(*state.file, 0, length);
  ObjectReader reader(window, limits);
  state.structure = ObjectDecoder(reader, limits).describe(reader.root(), state.unread);
  for (ObjectReader::Described& described : reader.take_described()) {
    state.pickled.emplace(described.tensor.unsafeGetTensorImpl(), std::move(described.pickled));
  }
  TensorLoader quantizers(window, reader.archive());
  std::unordered_map<const void*, TensorItem> located;  // once, however often the value holds the tensor
  Path path;
  const Value& structure = state.structure;
  visit_tensors(structure, path, [&](const at::Tensor& tensor, const Path& place) {
    const PickledTensor& pickled = state.pickled.at(tensor.unsafeGetTensorImpl());
    try {
      const bool can_have_grad = c10::isFloatingType(pickled.dtype) || c10::isComplexType(pickled.dtype);
      DCP_CHECK(can_have_grad || !pickled.requires_grad, kCorruptData, "a tensor of ", dtype_name(pickled.dtype),
                " that requires a gradient");
      const auto [item, is_new] = located.try_emplace(tensor.unsafeGetTensorImpl());
      if (is_new) item->second = locate_tensor(quantizers, reader.archive(), pickled);
      state.tensors.push_back({place, pickled.storage_key, item->second, pickled.requires_grad});
    } catch (Error& error) {
      error.add_context("at " + describe(place));
      throw;
    }
  });
  state.archive = reader.take_archive();
  state.archive.pickle = {};  // All that is needed of it has been copied.
}

TorchSaveFile::~TorchSaveFile() = default;
TorchSaveFile::TorchSaveFile(TorchSaveFile&&) noexcept = default;

TorchSaveForm TorchSaveFile::form() const {
  return state_->archive.is_before_zip ? TorchSaveForm::kBeforeZip : TorchSaveForm::kZip;
}

const Value& TorchSaveFile::structure() const { return state_->structure; }
const std::vector<SavedTensor>& TorchSaveFile::tensors() const { return state_->tensors; }
const std::vector<UnreadPart>& TorchSaveFile::unread() const { return state_->unread; }

at::Tensor TorchSaveFile::read_tensor(const SavedTensor& tensor, bool verify_checksum) const {
  at::Tensor read = dcp::read_tensor(*state_->file, 0, tensor.item, verify_checksum);
  if (tensor.requires_grad) read.set_requires_grad(true);
  return read;
}

Value TorchSaveFile::read(bool verify_checksums) const {
  TensorLoader loader(*state_->file, state_->archive, verify_checksums);
  std::unordered_map<const void*, at::Tensor> loaded;
  Value value = state_->structure;
  Path path;
  visit_tensors(value, path, [&](at::Tensor& tensor, const Path& place) {
    const auto [entry, is_new] = loaded.try_emplace(tensor.unsafeGetTensorImpl());
    if (is_new) {
      const PickledTensor& pickled = state_->pickled.at(tensor.unsafeGetTensorImpl());
      try {
        entry->second = loader.load(pickled);
      } catch (Error& error) {
        error.add_context("at " + describe(place));
        throw;
      }
      if (pickled.requires_grad) entry->second.set_requires_grad(true);
    }
    tensor = entry->second;
  });
  return value;
}

std::optional<TorchSaveForm> find_torch_save_form(const RandomAccessFile& file) {
  constexpr std::array<std::uint8_t, 4> kZipMagic = {'P', 'K', 3, 4};
  if (legacy::is_before_zip(file)) return TorchSaveForm::kBeforeZip;
  if (file.size() < kZipMagic.size()) return std::nullopt;
  std::array<std::uint8_t, 4> head{};
  file.read_at(0, head);
  return head == kZipMagic ? std::optional(TorchSaveForm::kZip) : std::nullopt;
}

}  // namespace dcp
