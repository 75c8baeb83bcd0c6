#include "torch_dcp/storage/consolidate.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "torch_dcp/base/error.h"
#include "torch_dcp/base/fault_list.h"
#include "torch_dcp/base/thread_pool.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/storage/item_reader_internal.h"
#include "torch_dcp/storage/safetensors_folder_internal.h"
#include "torch_dcp/storage/safetensors_folder_writer.h"
#include "torch_dcp/storage/safetensors_stamp_internal.h"
#include "torch_dcp/tensor/box_pieces.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp {
namespace {

// Every tensor is taken for one of bytes with a dimension more, the bytes of an element: nothing then depends on what
// LibTorch's copy makes of a dtype, and a tensor of 0 dimensions is no special case.
Box as_bytes_box(Box box, std::int64_t element_bytes) {
  box.offsets.push_back(0);
  box.sizes.push_back(element_bytes);
  return box;
}

/// A region of a tensor whose bytes follow each other in the output.
struct Piece {
  const std::string* name = nullptr;
  Box region;  ///< in bytes
  std::int64_t byte_count = 0;
};

/// Reads pieces of whole tensors from the shards.
class PieceReader {
 public:
  PieceReader(SafetensorsFolder& folder, const Metadata& metadata, std::int64_t buffer_bytes)
      : folder_(folder), metadata_(metadata), buffer_bytes_(buffer_bytes) {}

  at::Tensor read(const Piece& piece) const {
    const auto& tensor = std::get<TensorStorageMetadata>(*metadata_.state_dict_metadata.find(*piece.name));
    const std::int64_t element = element_bytes(tensor.properties.dtype);
    at::Tensor bytes = at::empty(piece.region.sizes, at::TensorOptions(at::kByte));
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
      const Box stored = as_bytes_box(tensor.chunks[i], element);
      const auto overlap = intersect(stored, piece.region);
      if (!overlap) continue;
      const MetadataIndex index{*piece.name, tensor.chunks[i].offsets, static_cast<std::int64_t>(i)};
      const StorageInfo info = *metadata_.storage_data.find(index);
      try {
        read_overlap(index, info, stored, *overlap, narrowed(bytes, *overlap, piece.region));
      } catch (c10::Error& error) {
        error.add_context(c10::str("while reading ", to_string(index), " from ", folder_.path_of(info.relative_path)));
        throw;
      }
    }
    return bytes;
  }

 private:
  static at::Tensor narrowed(at::Tensor bytes, const Box& overlap, const Box& region) {
    for (std::size_t d = 0; d < overlap.ndim(); ++d) {
      bytes = bytes.narrow(static_cast<std::int64_t>(d), overlap.offsets[d] - region.offsets[d], overlap.sizes[d]);
    }
    return bytes;
  }

  void read_overlap(const MetadataIndex& index, const StorageInfo& info, const Box& stored, const Box& overlap,
                    const at::Tensor& destination) const {
    const auto opened = folder_.open(info.relative_path);
    folder_.find_part(*opened, metadata_, index);
    TensorItem item;
    item.dtype = ScalarType::Byte;
    item.sizes = stored.sizes;
    item.strides.resize(stored.ndim());
    std::int64_t stride = 1;
    for (std::size_t d = stored.ndim(); d-- > 0;) {
      item.strides[d] = stride;
      stride *= stored.sizes[d];
    }
    item.data_bytes = info.length;
    Sizes begin = overlap.offsets;
    for (std::size_t d = 0; d < begin.size(); ++d) begin[d] -= stored.offsets[d];
    read_tensor_region(opened->file(), info.offset, item, begin, overlap.sizes, destination,
                       {.verify_checksum = false, .copy_bytes = buffer_bytes_});
  }

  SafetensorsFolder& folder_;
  const Metadata& metadata_;
  std::int64_t buffer_bytes_;
};

/// One file of the output, with what is needed to write it.
struct OutputFile {
  std::unique_ptr<SafetensorsFileWriter> out;
  std::vector<Piece> pieces;  ///< point into `out`
};

void write_file(OutputFile& file, const PieceReader& reader, std::size_t threads, std::int64_t buffer_bytes) {
  const std::int64_t batch_bytes = buffer_bytes * static_cast<std::int64_t>(threads);
  std::vector<at::Tensor> bytes;
  for (std::size_t first = 0; first < file.pieces.size();) {
    std::size_t end = first;
    std::int64_t total = 0;
    while (end < file.pieces.size() && (end == first || total + file.pieces[end].byte_count <= batch_bytes)) {
      total += file.pieces[end++].byte_count;
    }
    bytes.assign(end - first, {});
    run_parallel(threads, bytes.size(), [&](std::size_t i) { bytes[i] = reader.read(file.pieces[first + i]); });
    for (const at::Tensor& part : bytes) {
      file.out->append_bytes({static_cast<const std::uint8_t*>(part.const_data_ptr()), part.nbytes()});
    }
    first = end;
  }
  file.out->close();
}

using SpecsByFile = std::map<std::int64_t, std::vector<SafetensorsSpec>>;

/// The tensors of each file, in the order of the mapping; without one, of the stored keys.
SpecsByFile specs_by_file(const Metadata& metadata, const FqnToIndex& mapping) {
  const auto spec_of = [&](const std::string& key, const StorageMetadata& entry) {
    const auto& tensor = std::get<TensorStorageMetadata>(entry);
    return SafetensorsSpec{key, tensor.properties.dtype, tensor.size};
  };
  SpecsByFile specs;
  FaultList faults;
  for (const auto& [key, entry] : metadata.state_dict_metadata) {
    if (mapping.empty()) {
      specs[1].push_back(spec_of(key, entry));
    } else if (!mapping.contains(key)) {
      faults.add(ErrorKind::kKey, key, "fqn_to_index_mapping does not name a file for it");
    }
  }
  for (const auto& [key, number] : mapping) {
    DCP_CHECK(number >= 1, kInvalidArgument, "'", key, "' is mapped to file ", number, ", and files count from 1");
    if (const StorageMetadata* entry = metadata.state_dict_metadata.find(key)) {
      specs[number].push_back(spec_of(key, *entry));
    }
  }
  faults.throw_if_any("cannot consolidate", DCP_WHERE);
  return specs;
}

std::vector<OutputFile> begin_files(SafetensorsFolderWriter& output, SpecsByFile specs_of,
                                    const ConsolidateOptions& options) {
  std::int64_t largest = 1;
  for (const auto& [key, number] : options.fqn_to_index_mapping) largest = std::max(largest, number);
  std::vector<OutputFile> files;
  for (auto& [number, specs] : specs_of) {
    OutputFile file;
    file.out = output.begin_file(safetensors_file_name(number, largest), std::move(specs));
    for (const SafetensorsSpec& spec : file.out->order()) {
      const Box whole = as_bytes_box(whole_box(spec.sizes), element_bytes(spec.dtype));
      for (Box& region : cut_into_pieces(whole.sizes, /*element_bytes=*/1, options.buffer_bytes)) {
        const std::int64_t byte_count = region.numel();
        if (byte_count > 0) file.pieces.push_back({&spec.name, std::move(region), byte_count});
      }
    }
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace

void consolidate_safetensors(const std::string& input, const std::string& output, const ConsolidateOptions& options) {
  DCP_CHECK(options.thread_count > 0 && options.buffer_bytes > 0, kInvalidArgument,
            "thread_count and buffer_bytes must be at least 1");
  const std::shared_ptr<FileSystem> files = options.file_system ? options.file_system : local_file_system();
  SafetensorsFolder folder(input, files, options.limits);
  const Metadata metadata = folder.read_metadata();
  const std::string save_id = metadata.storage_meta ? metadata.storage_meta->save_id.value_or("") : "";
  DCP_CHECK(options.save_id.empty() || save_id == options.save_id, kIo, input, ": the shards are of ",
            spell_save(save_id), ", not of save ", options.save_id, " any more: another save has taken over");
  SpecsByFile specs = specs_by_file(metadata, options.fqn_to_index_mapping);
  SafetensorsFolderWriter writer(
      output, {options.overwrite, options.sync_files, files, options.save_id, static_cast<std::int64_t>(specs.size())});
  std::vector<OutputFile> outputs = begin_files(writer, std::move(specs), options);
  const PieceReader reader(folder, metadata, options.buffer_bytes);
  const std::size_t readers = std::max<std::size_t>(1, options.thread_count / std::max<std::size_t>(1, outputs.size()));
  run_parallel(options.thread_count, outputs.size(),
               [&](std::size_t i) { write_file(outputs[i], reader, readers, options.buffer_bytes); });
  writer.commit();
}

}  // namespace dcp
