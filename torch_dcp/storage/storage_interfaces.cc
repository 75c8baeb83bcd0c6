#include <string>

#include "torch_dcp/base/error.h"
#include "torch_dcp/storage/storage_reader.h"
#include "torch_dcp/storage/storage_writer.h"

namespace dcp {

StorageWriter::~StorageWriter() = default;
bool StorageWriter::may_have_committed() const { return true; }
void StorageWriter::committed() noexcept {}
void StorageWriter::abort() noexcept {}
std::vector<std::string> StorageWriter::warnings() const { return {}; }

StorageReader::~StorageReader() = default;

std::string StorageReader::place() const { return {}; }

std::optional<Metadata> StorageReader::read_merged_metadata() { return std::nullopt; }

bool StorageReader::is_still_there() { return true; }

Metadata StorageReader::read_rank_metadata(int rank) {
  DCP_THROW(kUnsupported, "this storage reader has no metadata of single ranks (rank ", rank, " asked)");
}

LoadPlan StorageReader::prepare_local_plan(LoadPlan plan) { return plan; }
std::vector<LoadPlan> StorageReader::prepare_global_plan(std::vector<LoadPlan> plans) { return plans; }

}  // namespace dcp
