// How a folder of safetensors is replaced.
//
// All `*.safetensors` of a folder together are the checkpoint, with or without an index, so that no single rename can
// switch from the old to the new. What keeps a reader from taking a mixture, or a part, for the whole is a file that
// is there from before the first old file goes until after the last new one has come:
//
//   1. every rank    writes its files beside, as NAME.tmp: create, append, sync, close; syncs the directory
//   2. coordinator   creates the marker `model-save-unfinished.safetensors`, syncs it and the directory
//   3. coordinator   removes the old index, then the old data files, and temporary files of earlier saves
//   4. coordinator   syncs the directory
//   5. coordinator   renames the new data files to their names; writes the index the same way
//   6. coordinator   syncs the directory
//   7. coordinator   removes the marker           <- the commit point
//   8. coordinator   syncs the directory
//
// The marker is named like a file of tensors and holds none: a reader that knows nothing of it (PyTorch's, which reads
// every `*.safetensors`) fails on it, this library's says 'incomplete checkpoint'. A crash before 2 leaves the old
// checkpoint; from then on until 7 a folder that no reader takes; after 7 the new one. An error in 2 takes
// the marker and the new files back. Between 7 and 8 a power cut
// leaves one of the last two. The next save into the folder clears all of it away.

#include <algorithm>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/io/atomic_write.h"
#include "torch_dcp/storage/safetensors_commit_internal.h"
#include "torch_dcp/storage/safetensors_names_internal.h"

namespace dcp {
namespace {

using namespace safetensors_names;  // NOLINT: the names of one small table

/// Read as a length, the first 8 bytes are far beyond every file.
constexpr std::string_view kMarkerText = "unfinished: a save into this folder has not come to its end\n";

bool is_temporary(std::string_view name) {
  if (!name.ends_with(kTemporarySuffix)) return false;
  name.remove_suffix(kTemporarySuffix.size());
  return is_data_file(name) || name == kIndex;
}

}  // namespace

std::string SafetensorsCommit::temporary_path(const std::string& name) const {
  return path_of(name).append(kTemporarySuffix);
}

void SafetensorsCommit::check_directory(bool overwrite) const {
  const std::vector<std::string> names = files_.list_directory(directory_);
  const auto has = [&](std::string_view name) { return std::binary_search(names.begin(), names.end(), name); };
  DCP_CHECK(!has(".metadata"), kAlreadyExists, directory_,
            ": there is a DCP checkpoint (.metadata), which readers would take; safetensors need another directory");
  for (const std::string& name : names) {
    if (!is_safetensors_file(name) || name == kUnfinished) continue;
    DCP_CHECK(is_data_file(name), kAlreadyExists, directory_, ": ", name,
              " is of no save, and readers would take it for a part of this one");
    DCP_CHECK(overwrite || has(kUnfinished), kAlreadyExists, directory_, ": there is a checkpoint already (", name,
              "), and overwriting is off");
  }
}

void SafetensorsCommit::write_marker() const {
  const auto marker = files_.create_file(path_of(kUnfinished));
  marker->append(as_bytes(kMarkerText));
  if (sync_files_) marker->sync();
  marker->close();
  sync_directory();
}

void SafetensorsCommit::begin_replacing(const std::vector<std::string>& names) const {
  // The marker of an earlier save must stay, whatever becomes of this one: that has left a mixture.
  bool was_unfinished = true;
  try {
    was_unfinished = files_.file_type(path_of(kUnfinished)) != FileType::kNone;
    check_directory(/*overwrite=*/true);
    write_marker();
  } catch (c10::Error& error) {
    for (const std::string& left : take_back(names, was_unfinished)) error.add_context("and it was left: " + left);
    throw;
  } catch (...) {
    take_back(names, was_unfinished);
    throw;
  }
}

std::vector<std::string> SafetensorsCommit::take_back(const std::vector<std::string>& names,
                                                      bool was_unfinished) const {
  std::vector<std::string> left;
  const auto note = [&](std::optional<std::string> fault) {
    if (fault) left.push_back(*std::move(fault));
  };
  // The files first: on a full disk their space may be what the rest needs.
  for (const std::string& name : names) note(drop(name));
  if (!was_unfinished) note(remove(path_of(kUnfinished)));
  return left;
}

void SafetensorsCommit::remove_old(const std::vector<std::string>& new_names) const {
  const auto is_new = [&](const std::string& name) {
    return std::any_of(new_names.begin(), new_names.end(), [&](const std::string& new_name) {
      return name.size() == new_name.size() + kTemporarySuffix.size() && name.starts_with(new_name);
    });
  };
  const std::vector<std::string> names = files_.list_directory(directory_);
  if (std::binary_search(names.begin(), names.end(), kIndex)) files_.remove_file(path_of(kIndex));
  for (const std::string& name : names) {
    if (is_data_file(name) || (is_temporary(name) && !is_new(name))) files_.remove_file(path_of(name));
  }
}

void SafetensorsCommit::run(const std::vector<std::string>& names, const std::optional<Bytes>& index) {
  begin_replacing(names);
  remove_old(names);
  sync_directory();
  for (const std::string& name : names) files_.rename_file(temporary_path(name), path_of(name));
  if (index) {
    atomic_write(files_, directory_, kIndex, *index, sync_files_);  // Syncs the directory, too.
  } else {
    sync_directory();
  }
  files_.remove_file(path_of(kUnfinished));
  sync_directory();
}

std::optional<std::string> SafetensorsCommit::drop(const std::string& name) const noexcept {
  try {
    return remove(temporary_path(name));
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::optional<std::string> SafetensorsCommit::remove(const std::string& path) const {
  try {
    files_.remove_file(path);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kNotFound) return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::nullopt;
}

}  // namespace dcp
