#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/thread_pool.h"
#include "torch_dcp/format/side_file.h"
#include "torch_dcp/plan/merge_metadata.h"
#include "torch_dcp/plan/validate.h"
#include "torch_dcp/storage/file_layout_internal.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/verify_internal.h"

namespace dcp {
namespace {

/// The metadata of all ranks, or of one where each has its own.
struct Part {
  std::string metadata_name;
  Metadata metadata;
  BlockSums block_sums = {};  ///< that agree with the metadata
};

/// What is to be read.
struct Item {
  MetadataIndex index;
  StorageInfo info;
};

class Verifier {
 public:
  Verifier(const std::string& path, const VerifyOptions& options, std::shared_ptr<FileSystem> files)
      : path_(path),
        options_(options),
        files_(std::move(files)),
        reader_options_({.follow_links = options.follow_links, .limits = options.limits, .file_system = files_}) {}

  VerifyReport run() {
    const std::vector<Part> parts = read_parts();
    std::vector<std::vector<Item>> items;
    for (const Part& part : parts) items.push_back(check_metadata(part));
    Progress progress(options_, report_.byte_count);
    for (std::size_t i = 0; i < parts.size(); ++i) verify_items(parts[i], items[i], progress);
    if (!parts.empty()) find_strays();
    report_.file_count = static_cast<std::int64_t>(named_.size());
    return std::move(report_);
  }

 private:
  template <typename Call>
  bool check(const std::string& file, const Call& call) {
    return check_whole_file(report_, file, call);
  }

  void add_fault(const std::string& file, const std::string& key, std::string cause) {
    report_.faults.push_back({file, key, ErrorKind::kCorruptData, std::move(cause)});
  }

  std::vector<Part> read_parts() {
    std::vector<Part> parts;
    const std::string name(file_layout::kMetadataName);
    const bool can_read = check(name, [&] {
      FileSystemReader reader(path_, reader_options_);
      std::optional<Metadata> metadata = reader.read_plain_metadata();
      if (!metadata) return;
      named_.insert(name);
      parts.push_back({name, *std::move(metadata)});
      check_side_file(reader, parts.back());
    });
    return can_read && parts.empty() ? read_rank_parts() : std::move(parts);
  }

  void check_side_file(FileSystemReader& reader, Part& part, std::optional<int> rank = {}) {
    const std::string save_id = save_id_of(part.metadata);
    if (save_id.empty()) return;
    const std::string name = file_layout::side_file_name(save_id, rank);
    check(name, [&] {
      std::optional<SideFile> side_file = reader.read_side_file(part.metadata, rank);
      if (!side_file) return;
      const auto fault = find_side_file_fault(*side_file, part.metadata);
      DCP_CHECK(!fault, kCorruptData, *fault);
      part.block_sums = std::move(side_file->block_sums);
    });
    if (files_->file_type(join_path(path_, name)) != FileType::kNone) named_.insert(name);
  }

  std::vector<Part> read_rank_parts() {
    std::set<int> ranks;
    for (const std::string& name : files_->list_directory(path_)) {
      if (const std::optional<int> rank = file_layout::rank_of_metadata(name)) ranks.insert(*rank);
    }
    std::vector<Part> parts;
    int expected = 0;
    for (const int rank : ranks) {
      const std::string name = file_layout::rank_metadata_name(rank);
      if (expected < rank) {
        report_.faults.push_back({file_layout::rank_metadata_name(expected), "", ErrorKind::kNotFound,
                                  c10::str("incomplete checkpoint: it is missing, and ", name, " is there")});
      }
      expected = rank + 1;
      named_.insert(name);
      check(name, [&] {
        FileSystemReader reader(path_, reader_options_);
        parts.push_back({name, reader.read_plain_rank_metadata(rank)});
        check_side_file(reader, parts.back(), rank);
      });
    }
    if (report_.faults.empty() && !parts.empty()) unite(parts);
    return parts;
  }

  void unite(const std::vector<Part>& parts) {
    std::vector<Metadata> by_rank;
    for (const Part& part : parts) by_rank.push_back(part.metadata);
    if (check("", [&] { merge_rank_metadata(by_rank); })) return;
    // Each rank may have saved something of its own.
    report_.not_united = report_.faults.back().cause;
    report_.faults.pop_back();
  }

  /// What the metadata says, before anything is opened. Returns the items that it says where to find, in the order of
  /// files and positions.
  std::vector<Item> check_metadata(const Part& part) {
    std::vector<Item> items;
    for (const auto& [key, entry] : part.metadata.state_dict_metadata) {
      const auto* tensor = std::get_if<TensorStorageMetadata>(&entry);
      if (tensor == nullptr) {
        ++report_.object_count;
        add_item(part, {key, std::nullopt, std::nullopt}, items);
        continue;
      }
      ++report_.tensor_count;
      report_.chunk_count += static_cast<std::int64_t>(tensor->chunks.size());
      const bool must_cover = part.metadata_name == file_layout::kMetadataName;
      if (const auto fault = find_chunk_fault(*tensor, must_cover)) add_fault(part.metadata_name, key, *fault);
      add_chunks(part, key, *tensor, items);
    }
    check_nothing_else_is_stored(part);
    std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
      return std::tie(a.info.relative_path, a.info.offset) < std::tie(b.info.relative_path, b.info.offset);
    });
    return items;
  }

  void add_chunks(const Part& part, const std::string& key, const TensorStorageMetadata& tensor,
                  std::vector<Item>& items) {
    // Chunks at one offset are one item, that of the chunk with elements, if there is one.
    std::map<Sizes, std::size_t> numbers;
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
      const Box chunk = tensor.chunks[i];
      const auto [place, is_new] = numbers.try_emplace(chunk.offsets, i);
      if (!is_new && !chunk.empty()) place->second = i;
    }
    for (const auto& [offsets, number] : numbers) {
      add_item(part, {key, offsets, static_cast<std::int64_t>(number)}, items);
    }
  }

  void add_item(const Part& part, MetadataIndex index, std::vector<Item>& items) {
    std::optional<StorageInfo> info = part.metadata.storage_data.find(index);
    if (!info) {
      add_fault(part.metadata_name, to_string(index), "the metadata does not say where it is stored");
      return;
    }
    // Lengths are those that the metadata says, each checked only when the item is.
    report_.byte_count = checked_add(report_.byte_count, info->length).value_or(INT64_MAX);
    named_.insert(info->relative_path);
    items.push_back({std::move(index), *std::move(info)});
  }

  void check_nothing_else_is_stored(const Part& part) {
    for (const auto& [index, info] : part.metadata.storage_data) {
      const StorageMetadata* entry = part.metadata.state_dict_metadata.find(index.fqn);
      const bool is_tensor = entry != nullptr && std::holds_alternative<TensorStorageMetadata>(*entry);
      const bool is_known =
          index.offset ? find_chunk(part.metadata, index).has_value() : entry != nullptr && !is_tensor;
      if (!is_known) add_fault(part.metadata_name, to_string(index), "it is stored, but no tensor or object has it");
      named_.insert(info.relative_path);
    }
  }

  void verify_items(const Part& part, const std::vector<Item>& items, Progress& progress) {
    FileSystemReader reader(path_, reader_options_);
    StorageReaderContext context;
    context.use_collectives = false;
    reader.set_up(part.metadata, context);
    std::vector<std::optional<VerifyFault>> faults(items.size());
    std::vector<std::string> opaque_types(items.size());
    run_parallel(options_.thread_count, items.size(), [&](std::size_t i) {
      const auto& [index, info] = items[i];
      ItemProgress item_progress(progress, info.length);
      try {
        opaque_types[i] =
            reader.verify_item(index, [&](std::int64_t bytes) { item_progress.add(bytes); }, &part.block_sums);
      } catch (...) {  // Whatever it is, it is told with all others, or where it happened.
        const RankFailure failure = current_failure(0);
        progress.rethrow();
        if (!is_fault(failure.kind)) {
          throw Error(failure.kind,
                      c10::str(join_path(path_, info.relative_path), ": ", to_string(index), ": ", failure.message),
                      failure.where);
        }
        faults[i] = {info.relative_path, to_string(index), failure.kind, failure.message};
      }
      item_progress.finish();
    });
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (faults[i]) report_.faults.push_back(*std::move(faults[i]));
      if (!opaque_types[i].empty()) report_.opaque_objects.push_back({items[i].index.fqn, std::move(opaque_types[i])});
    }
  }

  void find_strays() {
    for (const std::string& name : files_->list_directory(path_)) {
      if (!named_.contains(name)) report_.strays.push_back(name);
    }
  }

  const std::string& path_;
  const VerifyOptions& options_;
  const std::shared_ptr<FileSystem> files_;
  const FileSystemReaderOptions reader_options_;
  std::set<std::string> named_;  ///< files that something refers to
  VerifyReport report_;
};

}  // namespace

VerifyReport verify_dcp(const std::string& path, const VerifyOptions& options, std::shared_ptr<FileSystem> files) {
  return Verifier(path, options, std::move(files)).run();
}

}  // namespace dcp
