#include <algorithm>
#include <optional>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/format/legacy_archive_internal.h"
#include "torch_dcp/format/object_encoder_internal.h"
#include "torch_dcp/format/torch_save_file.h"
#include "torch_dcp/format/zip_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

/// Small enough that the bytes are still in the cache when the file takes them after the checksum.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr std::size_t kGatheredBytes = 64 * 1024;
/// Memory for what comes from other devices.
constexpr std::int64_t kCopyBytes = std::int64_t{16} << 20;

ByteSpan memory_of(const at::Tensor& tensor) {
  return {static_cast<const std::uint8_t*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// Puts storages, one after another, into one of the two forms.
class StorageSink {
 public:
  StorageSink(WritableFile& out, TorchSaveForm form) : out_(out), is_zip_(form == TorchSaveForm::kZip) {}

  void put_pickle(const Bytes& pickle, std::size_t storage_count) {
    if (is_zip_) {
      zip_.add("data.pkl", pickle);
      zip_.add_format_members();
      return;
    }
    const Bytes prefix = legacy::write_prefix();
    const Bytes keys = legacy::write_keys(static_cast<std::int64_t>(storage_count));
    emit(prefix);
    emit(pickle);
    emit(keys);
  }

  void begin_storage(std::size_t key, const StorageToWrite& storage) {
    crc32_ = 0;
    if (is_zip_) {
      zip_.begin_streamed("data/" + std::to_string(key), storage.bytes);
      emit(zip_.take_head());
    } else {
      emit(legacy::write_count(storage.bytes / element_bytes(storage.dtype)));
    }
  }

  void put(ByteSpan bytes) {
    while (!bytes.empty()) {
      const ByteSpan piece = bytes.first(std::min(bytes.size(), kPieceBytes));
      if (is_zip_) crc32_ = crc32_of(piece, crc32_);
      emit(piece);
      bytes = bytes.subspan(piece.size());
    }
  }

  void end_storage() {
    if (is_zip_) zip_.end_streamed(crc32_);
  }

  void finish() {
    if (is_zip_) {
      zip_.add_closing_members();
      emit(zip_.finish());
    }
    flush();
  }

 private:
  /// Small parts are gathered, large ones go straight to the file.
  void emit(ByteSpan bytes) {
    if (bytes.size() < kGatheredBytes) {
      gathered_.insert(gathered_.end(), bytes.begin(), bytes.end());
      if (gathered_.size() >= kPieceBytes) flush();
      return;
    }
    out_.append_all({gathered_, bytes});
    gathered_.clear();
  }

  void flush() {
    if (!gathered_.empty()) out_.append(gathered_);
    gathered_.clear();
  }

  WritableFile& out_;
  bool is_zip_;
  zip::Writer zip_;
  std::uint32_t crc32_ = 0;
  Bytes gathered_;
};

}  // namespace

struct TorchSaveWriter::State {
  State(WritableFile& out, TorchSaveForm form) : sink(out, form) {}

  /// Writes storages up to the next one that is to come.
  void advance() {
    for (; next < storages.size() && !storages[next].is_to_come(); ++next) write_storage();
    if (next == storages.size()) return;
    left_bytes = storages[next].bytes;
    sink.begin_storage(next, storages[next]);
  }

  void write_storage() {
    StorageToWrite& storage = storages[next];
    const at::Tensor& elements = storage.elements;
    sink.begin_storage(next, storage);
    if (elements.is_cpu()) {
      sink.put(memory_of(elements).first(static_cast<std::size_t>(storage.bytes)));
    } else {
      for (std::int64_t done = 0; done < storage.bytes; done += kCopyBytes) {
        sink.put(memory_of(elements.narrow(0, done, std::min(kCopyBytes, storage.bytes - done)).cpu()));
      }
    }
    sink.end_storage();
    storage.elements.reset();
  }

  StorageSink sink;
  std::vector<StorageToWrite> storages;
  std::size_t next = 0;         ///< the storage that is awaited
  std::int64_t left_bytes = 0;  ///< of it
  bool is_finished = false;
};

TorchSaveWriter::TorchSaveWriter(WritableFile& out, const Value& value, TorchSaveForm form)
    : state_(std::make_unique<State>(out, form)) {
  if (const auto* opaque = std::get_if<Opaque>(&value.storage())) {
    DCP_CHECK(opaque->item != nullptr, kInvalidArgument, "an Opaque of type ", opaque->type_name, " without an item");
    out.append(*opaque->item);
    state_->is_finished = true;
    return;
  }
  ObjectEncoder encoder(StorageRule::kShared, form == TorchSaveForm::kBeforeZip);
  encoder.value(value);
  state_->storages = encoder.take_storages();
  state_->sink.put_pickle(encoder.finish_pickle(), state_->storages.size());
  state_->advance();
}

TorchSaveWriter::~TorchSaveWriter() = default;

const at::Tensor* TorchSaveWriter::awaited() const {
  return state_->next < state_->storages.size() ? &state_->storages[state_->next].elements : nullptr;
}

void TorchSaveWriter::write(const at::Tensor& tensor) {
  const at::Tensor* wanted = awaited();
  DCP_CHECK(wanted != nullptr, kState, "no tensor is left to be written");
  DCP_CHECK(state_->left_bytes == state_->storages[state_->next].bytes, kState, "a part of the tensor is written");
  DCP_CHECK(tensor.scalar_type() == wanted->scalar_type(), kType, "a tensor of ", dtype_name(tensor.scalar_type()),
            ", awaited is one of ", dtype_name(wanted->scalar_type()));
  DCP_CHECK(tensor.sizes() == wanted->sizes(), kShape, "a tensor of sizes ", tensor.sizes(), ", awaited is one of ",
            wanted->sizes());
  write_part(memory_of(tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()));
}

void TorchSaveWriter::write_part(ByteSpan bytes) {
  State& state = *state_;
  DCP_CHECK(awaited() != nullptr, kState, "no tensor is left to be written");
  DCP_CHECK(bytes.size() <= static_cast<std::uint64_t>(state.left_bytes), kInvalidArgument, bytes.size(),
            " bytes of a tensor that has ", state.left_bytes, " left");
  state.sink.put(bytes);
  state.left_bytes -= static_cast<std::int64_t>(bytes.size());
  if (state.left_bytes > 0) return;
  state.sink.end_storage();
  ++state.next;
  state.advance();
}

void TorchSaveWriter::finish() {
  if (state_->is_finished) return;
  DCP_CHECK(awaited() == nullptr, kState, "the elements of ", state_->storages.size() - state_->next,
            " storages are missing");
  state_->is_finished = true;
  state_->sink.finish();
}

}  // namespace dcp
