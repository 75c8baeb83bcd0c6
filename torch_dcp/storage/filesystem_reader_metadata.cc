#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/format/metadata_pickle.h"
#include "torch_dcp/format/side_file.h"
#include "torch_dcp/plan/merge_metadata.h"
#include "torch_dcp/storage/file_layout_internal.h"
#include "torch_dcp/storage/filesystem_reader_internal.h"
#include "torch_dcp/storage/save_id_internal.h"

// Which checkpoint it is that a load reads, and whether it still is.

namespace dcp {
namespace {

using file_layout::kMetadataName;

constexpr std::uint64_t kMaxMetadataBytes = std::uint64_t{8} << 30;

using MetadataFiles = std::map<std::string, MetadataFileState>;

/// For the part of a plan that is the storage's.
std::string encode_files(const MetadataFiles& files) {
  ByteWriter out;
  out.u64(files.size());
  for (const auto& [name, state] : files) {
    out.text(name);
    out.u64(state.byte_count);
    out.u32(state.crc32);
    out.text(state.save_id);
  }
  const Bytes bytes = std::move(out).take();
  return {bytes.begin(), bytes.end()};
}

MetadataFiles decode_files(std::string_view text) {
  constexpr std::size_t kFewestBytes = 28;
  ByteReader in(as_bytes(text));
  MetadataFiles files;
  for (std::uint64_t left = in.count(kFewestBytes); left > 0; --left) {
    MetadataFileState& state = files[in.text()];
    state.byte_count = in.u64();
    state.crc32 = in.u32();
    state.save_id = in.text();
  }
  in.expect_end();
  return files;
}

}  // namespace

bool FileSystemReader::has_file(const std::string& name) {
  const FileType type = files_->file_type(file(name));
  if (type == FileType::kNone) return false;
  DCP_CHECK(type == FileType::kFile, kCorruptData, file(name), " is not a regular file");
  if (options_.follow_links || files_->file_size(file(name), Links::kRefuse)) return true;
  if (files_->file_type(file(name)) == FileType::kNone) return false;  // gone since
  DCP_THROW(kUnsupported, file(name),
            " is a symbolic link and may lead out of the checkpoint (FileSystemReaderOptions::follow_links reads it)");
}

Metadata FileSystemReader::read_metadata_file(const std::string& name) {
  Bytes bytes;
  try {
    bytes = read_whole_file(*files_, file(name), kMaxMetadataBytes, links());
  } catch (const Error& error) {
    // It was there a moment ago: `is_still_there` has to say no.
    if (error.kind() == ErrorKind::kNotFound) metadata_files_[name].byte_count = UINT64_MAX;
    throw;
  }
  // Each value takes a byte or more, so that the file's size bounds them: what a save wrote a load must read.
  ParseLimits limits = options_.limits;
  limits.max_values = std::max<std::size_t>(limits.max_values, bytes.size());
  limits.max_memo_entries = std::max<std::size_t>(limits.max_memo_entries, bytes.size());
  try {
    Metadata metadata = decode_metadata(bytes, limits);
    // As it was first: of what ranks have saved alone each reads its own once more.
    metadata_files_.try_emplace(name, MetadataFileState{bytes.size(), crc32_of(bytes), save_id_of(metadata)});
    return metadata;
  } catch (Error& error) {
    error.add_context(c10::str("while reading ", file(name)));
    throw;
  }
}

std::optional<SideFile> FileSystemReader::read_side_file(const Metadata& metadata, std::optional<int> rank) {
  return read_side_file(save_id_of(metadata), rank);
}

std::optional<SideFile> FileSystemReader::read_side_file(const std::string& save_id, std::optional<int> rank) {
  if (!is_plain_id(save_id)) return std::nullopt;
  const std::string side_file_name = file_layout::side_file_name(save_id, rank);
  if (!has_file(side_file_name)) return std::nullopt;
  const std::string name = file(side_file_name);
  const Bytes bytes = read_whole_file(*files_, name, options_.limits.max_header_bytes, links());
  try {
    SideFile side_file = decode_side_file(bytes, options_.limits);
    DCP_CHECK(side_file.save_id == save_id, kCorruptData, "it belongs to save ", side_file.save_id, ", not to ",
              save_id);
    return side_file;
  } catch (Error& error) {
    error.add_context(c10::str("while reading ", name,
                               " (without this file the checkpoint loads as Python wrote it, integer keys as text)"));
    throw;
  }
}

std::optional<Metadata> FileSystemReader::read_metadata() {
  std::optional<Metadata> metadata = read_plain_metadata();
  if (!metadata) return metadata;
  side_file_.reset();
  if (std::optional<SideFile> side_file = read_side_file(*metadata)) {
    apply_side_file(*side_file, *metadata);
    side_file->typed_paths = {};
    side_file_ = std::make_unique<SideFile>(*std::move(side_file));
  }
  return metadata;
}

std::optional<Metadata> FileSystemReader::read_plain_metadata() {
  metadata_files_.clear();
  if (has_file(std::string(kMetadataName))) {
    return read_metadata_file(std::string(kMetadataName));
  }
  const FileType type = files_->file_type(path_);
  DCP_CHECK(type != FileType::kNone, kNotFound, "incomplete checkpoint: ", path_, " does not exist");
  DCP_CHECK(type == FileType::kDirectory, kNotFound, "incomplete checkpoint: ", path_, " is not a directory");
  const std::vector<std::string> names = files_->list_directory(path_);
  const bool has_rank_metadata = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return file_layout::rank_of_metadata(name).has_value();
  });
  DCP_CHECK(has_rank_metadata, kNotFound, "incomplete checkpoint: ", path_, " has no ", kMetadataName);
  return std::nullopt;
}

std::optional<Metadata> FileSystemReader::read_merged_metadata() {
  std::set<int> ranks;
  for (const std::string& name : files_->list_directory(path_)) {
    if (const std::optional<int> rank = file_layout::rank_of_metadata(name)) ranks.insert(*rank);
  }
  if (ranks.empty()) return std::nullopt;
  std::vector<Metadata> by_rank;
  std::vector<SideFile> side_files;
  for (const int rank : ranks) {
    // Checked before the next one is read, since a name may state any number.
    DCP_CHECK(static_cast<std::size_t>(rank) == by_rank.size(), kNotFound, "incomplete checkpoint: ", path_, " has ",
              file_layout::rank_metadata_name(rank), " but no ",
              file_layout::rank_metadata_name(static_cast<int>(by_rank.size())));
    by_rank.push_back(read_plain_rank_metadata(rank));
    if (std::optional<SideFile> side_file = read_side_file(by_rank.back(), rank)) {
      side_file->block_sums = {};
      side_files.push_back(*std::move(side_file));
    }
  }
  try {
    Metadata merged = merge_rank_metadata(by_rank);
    // Of a key that several have the lowest one's path counts.
    for (auto side_file = side_files.rbegin(); side_file != side_files.rend(); ++side_file) {
      apply_typed_paths(*side_file, merged);
    }
    return merged;
  } catch (Error& error) {
    error.add_context("in " + path_);
    throw;
  }
}

Metadata FileSystemReader::read_rank_metadata(int rank) {
  Metadata metadata = read_plain_rank_metadata(rank);
  if (const std::optional<SideFile> side_file = read_side_file(metadata, rank)) apply_side_file(*side_file, metadata);
  return metadata;
}

Metadata FileSystemReader::read_plain_rank_metadata(int rank) {
  const std::string name = file_layout::rank_metadata_name(rank);
  DCP_CHECK(has_file(name), kNotFound, "incomplete checkpoint: ", path_, " was saved without collectives and has no ",
            name);
  return read_metadata_file(name);
}

std::vector<LoadPlan> FileSystemReader::prepare_global_plan(std::vector<LoadPlan> plans) {
  const std::string files = encode_files(metadata_files_);
  for (LoadPlan& plan : plans) plan.storage_data = files;
  return plans;
}

void FileSystemReader::take_over_metadata_files(const LoadPlan& plan) {
  if (plan.storage_data.empty()) return;  // planned without `prepare_global_plan`
  metadata_files_ = decode_files(plan.storage_data);
}

bool FileSystemReader::is_as_it_was(const std::string& name, const MetadataFileState& state) {
  if (!has_file(name)) return false;
  const std::unique_ptr<RandomAccessFile> now = files_->open_file(file(name), links());
  if (now->size() != state.byte_count) return false;
  constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;
  Bytes piece(static_cast<std::size_t>(std::min(kPieceBytes, state.byte_count)));
  std::uint32_t crc32 = 0;
  for (std::uint64_t at = 0; at < state.byte_count; at += piece.size()) {
    piece.resize(static_cast<std::size_t>(std::min(kPieceBytes, state.byte_count - at)));
    now->read_at(at, piece);
    crc32 = crc32_of(piece, crc32);
  }
  return crc32 == state.crc32;
}

bool FileSystemReader::is_still_there() {
  try {
    return std::all_of(metadata_files_.begin(), metadata_files_.end(),
                       [this](const auto& entry) { return is_as_it_was(entry.first, entry.second); });
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kNotFound) throw;
    return false;  // gone since it was looked for
  }
}

void FileSystemReader::throw_replaced(const std::string& what_happened) const {
  DCP_THROW(kState, path_, ": the checkpoint was replaced or removed while it was being read: load again (",
            what_happened, ")");
}

void FileSystemReader::throw_if_replaced(const std::string& what_happened) {
  if (!is_still_there()) throw_replaced(what_happened);
}

void FileSystemReader::throw_if_failed_by_replacement() {
  const RankFailure failure = current_failure(context_.rank);
  if (failure.kind == ErrorKind::kCancelled) return;
  bool was_replaced = false;
  try {
    was_replaced = !is_still_there();
  } catch (const Error&) {
    // Nothing can be told of the metadata, and what failed first is thrown.
  }
  if (was_replaced) throw_replaced(failure.message);
}

}  // namespace dcp
