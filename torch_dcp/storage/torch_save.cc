#include "torch_dcp/storage/torch_save.h"

#include <new>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/torch_save_file.h"
#include "torch_dcp/io/atomic_write.h"
#include "torch_dcp/io/local_file_system.h"

namespace dcp {
namespace {

/// Runs `call`; what it throws gets the file's path added.
template <typename Call>
auto with_path(const std::string& path, const Call& call) {
  try {
    return call();
  } catch (c10::Error& error) {
    error.add_context("in " + path);
    throw;
  } catch (const std::bad_alloc&) {
    DCP_THROW(kIo, path, ": out of memory");
  }
}

std::shared_ptr<FileSystem> or_local(const std::shared_ptr<FileSystem>& files) {
  return files ? files : local_file_system();
}

TorchFileTensor describe_tensor(const SavedTensor& saved) {
  TorchFileTensor tensor;
  tensor.path = saved.path;
  tensor.dtype = saved.item.dtype;
  tensor.sizes = saved.item.sizes;
  tensor.requires_grad = saved.requires_grad;
  tensor.storage_key = saved.storage_key;
  tensor.storage_position = saved.item.data_position;
  tensor.storage_bytes = saved.item.data_bytes;
  return tensor;
}

std::string spell(const UnreadPart& part) {
  return (part.path.empty() ? "the whole" : describe(part.path)) + ": " + part.type_name;
}

}  // namespace

struct TorchFileReader::State {
  std::string path;
  TorchLoadOptions options;
  TorchSaveFile file;
  std::vector<TorchFileTensor> tensors;
  std::vector<std::string> skipped;
};

TorchFileReader::TorchFileReader(std::string path, TorchLoadOptions options) {
  DCP_CHECK(!path.empty(), kInvalidArgument, "a file needs a path");
  with_path(path, [&] {
    TorchSaveFile file(or_local(options.file_system)->open_file(path), options.limits);
    state_ = std::make_unique<State>(State{path, options, std::move(file), {}, {}});
    for (const SavedTensor& saved : state_->file.tensors()) state_->tensors.push_back(describe_tensor(saved));
    std::string lines;
    for (const UnreadPart& part : state_->file.unread()) {
      state_->skipped.push_back(spell(part));
      lines += "\n  " + state_->skipped.back();
    }
    DCP_CHECK(options.skip_unknown || lines.empty(), kUnsupported,
              "objects that cannot be read (`skip_unknown` would leave them out):", lines);
  });
}

TorchFileReader::~TorchFileReader() = default;
TorchFileReader::TorchFileReader(TorchFileReader&&) noexcept = default;

TorchSaveForm TorchFileReader::form() const { return state_->file.form(); }
const Value& TorchFileReader::structure() const { return state_->file.structure(); }
const std::vector<TorchFileTensor>& TorchFileReader::tensors() const { return state_->tensors; }
const std::vector<std::string>& TorchFileReader::skipped() const { return state_->skipped; }

at::Tensor TorchFileReader::read(std::size_t number) const {
  return with_path(state_->path, [&] {
    DCP_CHECK(number < state_->tensors.size(), kInvalidArgument, "tensor ", number, " of ", state_->tensors.size());
    return state_->file.read_tensor(state_->file.tensors()[number], state_->options.verify_checksums);
  });
}

Value TorchFileReader::read_all() const {
  return with_path(state_->path, [&] { return state_->file.read(state_->options.verify_checksums); });
}

Value torch_load(const std::string& path, const TorchLoadOptions& options) {
  return TorchFileReader(path, options).read_all();
}

struct TorchFileWriter::State {
  State(const Value& structure, std::string file_path, const TorchSaveOptions& options)
      : path(std::move(file_path)),
        file(or_local(options.file_system), path, options.sync),
        writer(file.file(), structure, options.form) {}

  std::string path;
  AtomicFile file;
  TorchSaveWriter writer;
};

TorchFileWriter::TorchFileWriter(const Value& structure, std::string path, TorchSaveOptions options) {
  DCP_CHECK(!path.empty(), kInvalidArgument, "a file needs a path");
  state_ = with_path(path, [&] { return std::make_unique<State>(structure, path, options); });
}

TorchFileWriter::~TorchFileWriter() = default;
TorchFileWriter::TorchFileWriter(TorchFileWriter&&) noexcept = default;

const at::Tensor* TorchFileWriter::awaited() const { return state_->writer.awaited(); }

void TorchFileWriter::write(const at::Tensor& tensor) {
  with_path(state_->path, [&] { state_->writer.write(tensor); });
}

void TorchFileWriter::write_part(ByteSpan bytes) {
  with_path(state_->path, [&] { state_->writer.write_part(bytes); });
}

void TorchFileWriter::commit() {
  with_path(state_->path, [&] {
    state_->writer.finish();
    state_->file.commit();
  });
}

void torch_save(const Value& value, const std::string& path, const TorchSaveOptions& options) {
  TorchFileWriter writer(value, path, options);
  with_path(path, [&] {
    DCP_CHECK(writer.awaited() == nullptr, kUnsupported, "a tensor on the meta device has no elements to save");
  });
  writer.commit();
}

std::optional<TorchSaveForm> torch_save_form(const std::string& path, std::shared_ptr<FileSystem> file_system) {
  const auto file = or_local(file_system)->open_file(path);
  return with_path(path, [&] { return find_torch_save_form(*file); });
}

}  // namespace dcp
