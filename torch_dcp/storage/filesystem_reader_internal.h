#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_dcp/base/ordered_map.h"
#include "torch_dcp/format/side_file.h"
#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/merged_file_internal.h"

// What FileSystemReader has in mind from the check to the end of the read.

namespace dcp {

struct FileSystemReader::StoredTensor {
  TensorItem item;
  StorageInfo info;
};

struct FileSystemReader::Opened {
  std::mutex mutex;  ///< of `files`
  std::unordered_map<std::string, std::shared_ptr<const RandomAccessFile>> files;
  OrderedMap<MetadataIndex, StoredTensor, MetadataIndexHash> tensors;
  /// A file was opened that is not kept, so that it is opened once more, whatever has its name then.
  bool has_opened_again = false;
  bool has_looked_for_sums = false;
  bool checks_slices = false;  ///< with the reader's side file, or with those of ranks:
  /// By rank, for checkpoints that were saved without collectives; null if it has none.
  std::map<int, std::unique_ptr<const BlockSums>> rank_sums;
  // Of the check, which is done by one thread.
  TensorItemForms forms;
  std::unordered_map<std::string, std::vector<ByteRange>> expected;  ///< of small items, by file, in order
  std::shared_ptr<const MergedFile> merged;
  std::string merged_path;  ///< whose file `merged` is
};

/// Items of one file that one thread reads, one after another.
struct FileSystemReader::ReadTask {
  std::vector<std::pair<const ReadItem*, const StoredTensor*>> items;
  std::int64_t bytes = 0;
  std::size_t begun = 0;  ///< how many of them may have changed their destination

  /// Small items, in order.
  std::vector<ByteRange> small_ranges() const {
    std::vector<ByteRange> ranges;
    for (const auto& [item, stored] : items) {
      if (is_small(stored->info)) ranges.push_back({stored->info.offset, stored->info.length});
    }
    return ranges;
  }
  /// Of a larger one only a part may be wanted.
  static bool is_small(const StorageInfo& info) { return info.length <= MergedFile::kSmallBytes; }
};

}  // namespace dcp
