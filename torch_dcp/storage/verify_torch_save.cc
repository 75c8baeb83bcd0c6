#include <utility>

#include "torch_dcp/format/torch_archive.h"
#include "torch_dcp/format/torch_save_file.h"
#include "torch_dcp/state_dict/traverse.h"
#include "torch_dcp/storage/verify_internal.h"

namespace dcp {
namespace {

std::int64_t count_objects(const Value& value) {
  if (!value.is_dict()) return value.is_tensor() ? 0 : 1;
  std::int64_t count = 0;
  visit_leaves(value.as_dict(), [&](const Path&, const Value& leaf) { count += leaf.is_tensor() ? 0 : 1; });
  return count;
}

}  // namespace

VerifyReport verify_torch_save(const std::string& path, const VerifyOptions& options,
                               std::shared_ptr<FileSystem> files) {
  VerifyReport report;
  const std::string name = path.substr(path.rfind('/') + 1);
  const std::shared_ptr<const RandomAccessFile> file = files->open_file(path);
  const auto bytes = static_cast<std::int64_t>(file->size());
  report.file_count = 1;
  report.byte_count = bytes;
  Progress progress(options, bytes);
  ItemProgress item_progress(progress, bytes);
  const auto check = [&] {
    // The form before zip has no checksums.
    if (find_torch_save_form(*file) == TorchSaveForm::kZip) {
      check_item_members(*file, 0, bytes, options.limits, [&](std::int64_t count) { item_progress.add(count); });
    }
    const TorchSaveFile opened(file, options.limits);
    report.tensor_count = static_cast<std::int64_t>(opened.tensors().size());
    report.chunk_count = report.tensor_count;
    report.object_count = count_objects(opened.structure());
    for (const UnreadPart& part : opened.unread()) {
      report.opaque_objects.push_back({flat_key(part.path), part.type_name});
    }
  };
  check_whole_file(report, name, check, &progress);
  item_progress.finish();
  return report;
}

}  // namespace dcp
