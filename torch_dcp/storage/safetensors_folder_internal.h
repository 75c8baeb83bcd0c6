#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "torch_dcp/base/limits.h"
#include "torch_dcp/format/safetensors.h"
#include "torch_dcp/format/safetensors_index.h"
#include "torch_dcp/io/file_system.h"
#include "torch_dcp/plan/metadata.h"
#include "torch_dcp/storage/safetensors_stamp_internal.h"

namespace dcp {

/// An open file of tensors with its checked header.
class OpenSafetensors {
 public:
  OpenSafetensors(std::string name, std::shared_ptr<const RandomAccessFile> file, const ParseLimits& limits);

  /// Under which it was found.
  const std::string& name() const { return name_; }
  const RandomAccessFile& file() const { return *file_; }
  const SafetensorsHeader& header() const { return header_; }
  const SafetensorsStamp& stamp() const { return stamp_; }
  /// The tensor of this name, or null.
  const SafetensorsTensor* find(const std::string& name) const;

 private:
  std::string name_;
  std::shared_ptr<const RandomAccessFile> file_;
  SafetensorsHeader header_;
  SafetensorsStamp stamp_;
  std::unordered_map<std::string_view, const SafetensorsTensor*> by_name_;
};

/// The safetensors files that make one checkpoint: a folder's, or a single one. `SafetensorsReader` says which.
/// Safe to use from many threads.
class SafetensorsFolder {
 public:
  SafetensorsFolder(std::string path, std::shared_ptr<FileSystem> files, ParseLimits limits);

  const std::string& path() const { return path_; }
  /// The path of one of the files.
  std::string path_of(const std::string& name);

  /// Reads all headers. Storage data tell each part's place in its file. \throws as SafetensorsReader::read_metadata.
  Metadata read_metadata();

  /// An open file; one with a temporary name also under its final one. Some are kept open until `close_files`, so that
  /// a checkpoint that is replaced meanwhile is still read as it was; beyond these they are opened again.
  std::shared_ptr<const OpenSafetensors> open(const std::string& name);

  /// The part of a tensor that the metadata says is there, with all that it says compared with the file's header: the
  /// save above all.
  ///
  /// \throws dcp::Error kCorruptData if the file has been changed or replaced since.
  const SafetensorsTensor& find_part(const OpenSafetensors& opened, const Metadata& metadata,
                                     const MetadataIndex& index);

  void close_files();

 private:
  bool is_single_file();
  std::shared_ptr<const OpenSafetensors> open_if_there(const std::string& name);
  std::vector<std::string> checkpoint_files();
  /// The same by one look; nothing if what the folder's names told has gone meanwhile.
  std::optional<std::vector<std::string>> look_for_files();
  std::string mixture_text(const std::string& what) const;
  std::optional<std::vector<std::string>> indexed_files(const std::vector<std::string>& names);
  void check_index();

  std::string path_;
  std::shared_ptr<FileSystem> files_;
  ParseLimits limits_;
  SafetensorsIndex index_;
  bool has_index_ = false;
  std::string marked_save_id_;  ///< of the marker that named the files; empty: there is none
  std::mutex mutex_;            ///< of what follows
  std::unordered_map<std::string, std::shared_ptr<const OpenSafetensors>> opened_;
};

}  // namespace dcp
