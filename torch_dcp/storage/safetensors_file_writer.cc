#include "torch_dcp/storage/safetensors_file_writer.h"

#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/safetensors.h"
#include "torch_dcp/storage/item_writer_internal.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

SafetensorsHeader lay_out(std::vector<SafetensorsSpec> specs, OrderedMap<std::string, std::string> metadata) {
  std::vector<SafetensorsTensor> tensors;
  tensors.reserve(specs.size());
  for (SafetensorsSpec& spec : specs) {
    tensors.push_back({std::move(spec.name), spec.dtype, std::move(spec.sizes), std::move(spec.saved_offsets), 0, 0,
                       std::move(spec.global_size)});
  }
  SafetensorsHeader header = lay_out_safetensors(std::move(tensors));
  // Some programs that load models refuse files that do not say so.
  header.metadata.insert("format", "pt");
  for (auto& [name, value] : metadata) header.metadata.insert(std::move(name), std::move(value));
  return header;
}

}  // namespace

struct SafetensorsFileWriter::State {
  std::string path;
  bool sync_file = true;
  std::vector<SafetensorsSpec> order;
  std::vector<std::int64_t> positions;  ///< in the file, by `order`; and the end
  std::size_t next = 0;                 ///< for `append`
  std::unique_ptr<WritableFile> out;
};

SafetensorsFileWriter::SafetensorsFileWriter(FileSystem& files, std::string path, std::vector<SafetensorsSpec> tensors,
                                             bool sync_file, OrderedMap<std::string, std::string> metadata)
    : state_(std::make_unique<State>()) {
  state_->path = std::move(path);
  state_->sync_file = sync_file;
  SafetensorsHeader header = lay_out(std::move(tensors), std::move(metadata));
  const Bytes head = encode_safetensors_header(header);
  auto end = static_cast<std::int64_t>(head.size());
  for (SafetensorsTensor& tensor : header.tensors) {
    state_->positions.push_back(end);
    end += tensor.byte_count;
    state_->order.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.sizes),
                             std::move(tensor.saved_offsets), std::move(tensor.global_size)});
  }
  state_->positions.push_back(end);
  state_->out = files.create_file(state_->path);
  state_->out->set_early_write_back(sync_file);
  state_->out->append(head);
}

SafetensorsFileWriter::~SafetensorsFileWriter() = default;

const std::vector<SafetensorsSpec>& SafetensorsFileWriter::order() const { return state_->order; }

std::int64_t SafetensorsFileWriter::position_of(std::size_t number) const { return state_->positions.at(number); }

void SafetensorsFileWriter::append(const at::Tensor& tensor) {
  State& state = *state_;
  DCP_CHECK(state.next < state.order.size(), kState, state.path, ": all its tensors have been written");
  const SafetensorsSpec& spec = state.order[state.next];
  DCP_CHECK(state.out->size() == static_cast<std::uint64_t>(state.positions[state.next]), kState, state.path, ": '",
            spec.name, "' begins at byte ", state.positions[state.next], ", and ", state.out->size(), " are written");
  DCP_CHECK(tensor.sizes() == c10::IntArrayRef(spec.sizes), kShape, state.path, ": '", spec.name, "' has sizes ",
            to_string(tensor.sizes()), ", announced were ", to_string(spec.sizes));
  DCP_CHECK(tensor.scalar_type() == spec.dtype, kType, state.path, ": '", spec.name, "' is ",
            dtype_name(tensor.scalar_type()), ", announced was ", dtype_name(spec.dtype));
  for_each_part(tensor, kWriteCopyBytes, [&](ByteSpan part) { append_bytes(part); });
  ++state.next;
}

void SafetensorsFileWriter::append_bytes(ByteSpan bytes) {
  State& state = *state_;
  const std::uint64_t left = static_cast<std::uint64_t>(state.positions.back()) - state.out->size();
  DCP_CHECK(bytes.size() <= left, kState, state.path, ": ", bytes.size(), " more bytes, and ", left, " are missing");
  if (!bytes.empty()) state.out->append(bytes);
}

void SafetensorsFileWriter::close() {
  State& state = *state_;
  DCP_CHECK(state.out->size() == static_cast<std::uint64_t>(state.positions.back()), kState, state.path, ": ",
            state.out->size(), " of its ", state.positions.back(), " bytes have been written");
  if (state.sync_file) state.out->sync();
  state.out->close();
}

}  // namespace dcp
