#include "torch_dcp/model_state/archive_adapter.h"

#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <utility>

#include "torch_dcp/base/bytes.h"
#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

constexpr const char* kArchive = "archive";

Bytes written(const ArchiveAdapter::Save& save) {
  torch::serialize::OutputArchive archive;
  save(archive);
  Bytes bytes;
  archive.save_to([&](const void* data, std::size_t count) {
    const auto* first = static_cast<const std::uint8_t*>(data);
    bytes.insert(bytes.end(), first, first + count);
    return count;
  });
  return bytes;
}

void read(const Bytes& bytes, torch::serialize::InputArchive& archive) {
  try {
    archive.load_from(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  } catch (const c10::Error& error) {
    DCP_THROW(kCorruptData, "LibTorch cannot read the archive of ", bytes.size(),
              " bytes: ", error.what_without_backtrace());
  }
}

}  // namespace

ArchiveAdapter::ArchiveAdapter(Save save, Load load) : save_(std::move(save)), load_(std::move(load)) {
  DCP_CHECK(save_ && load_, kInvalidArgument, "an archive needs a function to save and one to load");
}

ArchiveAdapter::~ArchiveAdapter() = default;

Dict ArchiveAdapter::state_dict() { return {{kArchive, written(save_)}}; }

void ArchiveAdapter::load_state_dict(const Dict& state) {
  torch::serialize::InputArchive archive;
  read(state.at(kArchive).as_bytes(), archive);
  const Bytes before = written(save_);
  try {
    load_(archive);
  } catch (...) {
    const RankFailure cause = current_failure(-1);
    try {
      torch::serialize::InputArchive old;
      read(before, old);
      load_(old);
    } catch (const std::exception& error) {
      throw Error(ErrorKind::kState,
                  cause.message + "\nAfter this, the former state could not be loaded: " + error.what(), cause.where);
    }
    throw;
  }
}

}  // namespace dcp
