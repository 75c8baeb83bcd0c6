// How a folder of safetensors is replaced.
//
// All `*.safetensors` of a folder together are the checkpoint, with or without an index, so that no single rename can
// switch from the old to the new. What switches is the marker (safetensors_marker_internal.h), which names the new
// files and is there until they have their names:
//
//   1. coordinator   removes what earlier saves left unfinished, unless a marker names it
//   2. every rank    writes its files beside, as NAME.ID.tmp with the id of the save: create, append, sync, close;
//                    syncs the directory
//   3. coordinator   sees that all of them are there, and writes the marker `model-save-unfinished.safetensors`: as
//                    .tmp, sync, rename          <- the commit point
//   4. coordinator   syncs the directory
//   5. coordinator   removes the old index, then the old data files and other saves' temporary files; syncs the
//                    directory
//   6. coordinator   renames the new data files to their names; writes the index the same way; syncs the directory
//   7. coordinator   removes the marker, syncs the directory
//
// This library's readers take the files that a marker names, each where it is, and nothing else of the folder: up to 3
// the old checkpoint, which may be one that a marker names itself, and from then on the new one. A crash or an error at
// any moment leaves one of the two, whole. Between 3 and 4 a power cut leaves either.
//
// Other readers (PyTorch's, which takes every `*.safetensors`) fail on the marker from 3 to 7, since it is named like a
// file of tensors and holds none. Those that go by the index find the old checkpoint until its index goes, then none,
// then the new one.
//
// A save that ends between 3 and 7 leaves the folder so; the next one writes its own marker over that one, and clears
// away only then.
//
// Two savers in one folder at once are not supported, but a coordinator that was stalled while another one took over
// must not end what that has saved: before the removals of 5, the renames of 6 and the removal of 7 it looks whether
// the marker is still its own. What it does between two looks may still hit the other's files.

#include <algorithm>
#include <set>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/io/atomic_write.h"
#include "torch_dcp/storage/safetensors_commit_internal.h"
#include "torch_dcp/storage/safetensors_marker_internal.h"
#include "torch_dcp/storage/safetensors_names_internal.h"

namespace dcp {
namespace {

using namespace safetensors_names;  // NOLINT: the names of one small table

constexpr const char* kIsCommitted =
    "the new checkpoint is complete for this library's readers; others may refuse the folder until a save into it ends";
constexpr const char* kMayBeCommitted =
    "the new checkpoint may be complete for this library's readers, or the old one is there: the marker cannot be read";
constexpr const char* kIsTakenOver = "another save has taken over the folder";

}  // namespace

std::string SafetensorsCommit::temporary_path(const std::string& name) const {
  return path_of(temporary_name(name, save_id_));
}

void SafetensorsCommit::check_directory() const {
  const std::vector<std::string> names = files_.list_directory(directory_);
  const auto has = [&](std::string_view name) { return std::binary_search(names.begin(), names.end(), name); };
  DCP_CHECK(!has(".metadata"), kAlreadyExists, directory_,
            ": there is a DCP checkpoint (.metadata), which readers would take; safetensors need another directory");
  const MarkerState marker = has(kUnfinished) ? find_safetensors_marker(files_, directory_).state : MarkerState::kNone;
  DCP_CHECK(overwrite_ || marker != MarkerState::kComplete, kAlreadyExists, directory_,
            ": there is a checkpoint already (", kUnfinished, " names its files), and overwriting is off");
  for (const std::string& name : names) {
    if (!is_safetensors_file(name) || name == kUnfinished) continue;
    DCP_CHECK(is_data_file(name), kAlreadyExists, directory_, ": ", name,
              " is of no save, and readers would take it for a part of this one");
    DCP_CHECK(overwrite_ || marker == MarkerState::kNoList, kAlreadyExists, directory_,
              ": there is a checkpoint already (", name, "), and overwriting is off");
  }
}

void SafetensorsCommit::remove(const std::string& name) const {
  try {
    files_.remove_file(path_of(name));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kNotFound) throw;
  }
}

void SafetensorsCommit::remove_leftovers() const {
  // Before the look at the marker: one that comes in between keeps its files.
  const std::vector<std::string> names = files_.list_directory(directory_);
  const FoundMarker found = find_safetensors_marker(files_, directory_);
  std::set<std::string> named;
  for (const std::string& name : found.marker.files) named.insert(temporary_name(name, found.marker.save_id));
  for (const std::string& name : names) {
    if (is_temporary(name) && !named.contains(name)) remove(name);
  }
}

void SafetensorsCommit::write_marker(const std::vector<std::string>& names) const {
  bool is_tried = false;
  try {
    check_directory();
    for (const std::string& name : names) {
      DCP_CHECK(files_.file_type(temporary_path(name)) == FileType::kFile, kIo, temporary_path(name),
                ", which this save wrote, is not there (has another one been into the folder?)");
    }
    const Bytes marker = encode_safetensors_marker({save_id_, names});
    is_tried = true;
    atomic_write(files_, directory_, kUnfinished, marker, sync_files_);
  } catch (c10::Error& error) {
    const Outcome found = is_tried ? outcome() : Outcome::kNotCommitted;
    if (found != Outcome::kNotCommitted) {
      error.add_context(found == Outcome::kUnknown
                            ? kMayBeCommitted
                            : c10::str(kIsCommitted, "; after a power cut the old one may be there"));
    } else {
      for (const std::string& left : take_back(names)) error.add_context("and it was left: " + left);
    }
    throw;
  } catch (...) {
    if (!is_tried || outcome() == Outcome::kNotCommitted) take_back(names);
    throw;
  }
}

bool SafetensorsCommit::has_own_marker() const {
  const FoundMarker found = find_safetensors_marker(files_, directory_);
  return found.state == MarkerState::kComplete && found.marker.save_id == save_id_;
}

void SafetensorsCommit::check_own_marker() const {
  DCP_CHECK(has_own_marker(), kIo, path_of(kUnfinished), " is not of save ", save_id_, " any more");
}

SafetensorsCommit::Outcome SafetensorsCommit::outcome() const noexcept {
  try {
    return has_own_marker() ? Outcome::kCommitted : Outcome::kNotCommitted;
  } catch (...) {  // Whatever a file system of the program's throws.
    return Outcome::kUnknown;
  }
}

std::vector<std::string> SafetensorsCommit::take_back(const std::vector<std::string>& names) const {
  std::vector<std::string> left;
  for (const std::string& name : names) {
    if (auto fault = drop(name)) left.push_back(*std::move(fault));
  }
  return left;
}

void SafetensorsCommit::remove_old(const std::vector<std::string>& new_names) const {
  std::set<std::string> kept;
  for (const std::string& name : new_names) kept.insert(temporary_name(name, save_id_));
  const std::vector<std::string> names = files_.list_directory(directory_);
  if (std::binary_search(names.begin(), names.end(), kIndex)) remove(std::string(kIndex));
  for (const std::string& name : names) {
    if (is_data_file(name) || (is_temporary(name) && !kept.contains(name))) remove(name);
  }
}

void SafetensorsCommit::put_in_place(const std::vector<std::string>& names, const std::optional<Bytes>& index) const {
  check_own_marker();
  remove_old(names);
  sync_directory();
  check_own_marker();
  for (const std::string& name : names) files_.rename_file(temporary_path(name), path_of(name));
  if (index) {
    atomic_write(files_, directory_, kIndex, *index, sync_files_);  // Syncs the directory, too.
  } else {
    sync_directory();
  }
  check_own_marker();
}

void SafetensorsCommit::remove_marker() const {
  remove(std::string(kUnfinished));
  sync_directory();
}

void SafetensorsCommit::run(const std::vector<std::string>& names, const std::optional<Bytes>& index) const {
  write_marker(names);
  try {
    put_in_place(names, index);
  } catch (c10::Error& error) {
    const Outcome found = outcome();
    error.add_context(found == Outcome::kCommitted ? kIsCommitted
                      : found == Outcome::kUnknown ? kMayBeCommitted
                                                   : kIsTakenOver);
    throw;
  }
  try {
    remove_marker();
  } catch (c10::Error& error) {
    error.add_context(kIsCommitted);
    throw;
  }
}

std::optional<std::string> SafetensorsCommit::drop(const std::string& name) const noexcept {
  try {
    remove(temporary_name(name, save_id_));
  } catch (...) {  // Whatever a file system of the program's throws.
    return current_failure(0).message;
  }
  return std::nullopt;
}

}  // namespace dcp
