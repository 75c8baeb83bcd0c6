#include "torch_dcp/memory/memory_client.h"

#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/memory/memory_file_internal.h"
#include "torch_dcp/memory/vault_connection_internal.h"
#include "torch_dcp/memory/vault_files_internal.h"

namespace dcp {

using vault_protocol::begin_request;
using vault_protocol::PiecePlace;
using vault_protocol::Request;

namespace {

constexpr std::string_view kScheme = "mem://";

/// A file that the server keeps for this client; released with this object.
class RemoteFile {
 public:
  RemoteFile(std::shared_ptr<VaultConnection> connection, std::uint64_t handle)
      : connection_(std::move(connection)), handle_(handle) {}
  ~RemoteFile() {
    ByteWriter request = begin_request(Request::kRelease);
    request.u64(handle_);
    connection_->tell(std::move(request));
  }
  RemoteFile(const RemoteFile&) = delete;
  RemoteFile& operator=(const RemoteFile&) = delete;

  VaultConnection& connection() { return *connection_; }
  std::uint64_t handle() const { return handle_; }

 private:
  std::shared_ptr<VaultConnection> connection_;
  std::uint64_t handle_;
};

ByteWriter file_request(Request request, std::uint64_t generation, const std::string& name) {
  DCP_CHECK(!name.empty() && name.size() <= VaultLimits::kNameBytes, kInvalidArgument, "a file name of ", name.size(),
            " characters");
  ByteWriter writer = begin_request(request);
  writer.u64(generation);
  writer.text(name);
  return writer;
}

std::string doing_with(const char* action, std::uint64_t generation, const std::string& name) {
  return c10::str(action, " '", name, "' of generation ", generation);
}

class RemoteWriter final : public MemoryFileWriter {
 public:
  RemoteWriter(std::shared_ptr<VaultConnection> connection, std::uint64_t handle, std::uint64_t generation,
               const std::string& name)
      : MemoryFileWriter(generation, name),
        file_(std::move(connection), handle),
        growing_(doing_with("taking memory for", generation, name)),
        sealing_(doing_with("sealing", generation, name)) {}

 private:
  std::vector<MutableByteSpan> grow(std::uint64_t wanted) override {
    ByteWriter request = begin_request(Request::kGrow);
    request.u64(file_.handle());
    request.u64(wanted);
    const auto pieces = from_bytes<std::vector<PiecePlace>>(file_.connection().ask(std::move(request), growing_));
    DCP_CHECK(!pieces.empty(), kCorruptData, "no piece of memory came, ", growing_);
    return file_.connection().locate(pieces);
  }

  void finish(std::uint64_t size, const std::string& note) override {
    DCP_CHECK(note.size() <= VaultLimits::kNoteBytes, kInvalidArgument, "a note of ", note.size(), " bytes, more than ",
              VaultLimits::kNoteBytes, ", ", sealing_);
    ByteWriter request = begin_request(Request::kSeal);
    request.u64(file_.handle());
    request.u64(size);
    request.text(note);
    file_.connection().ask(std::move(request), sealing_);
  }

  RemoteFile file_;
  std::string growing_;
  std::string sealing_;
};

class RemoteVault final : public MemoryVault {
 public:
  RemoteVault(const std::string& socket, const MemoryClientOptions& options)
      : job_(options.job), connection_(std::make_shared<VaultConnection>(socket, options)) {}

  const std::string& id() const override { return connection_->vault_id(); }
  const std::string& job() const override { return job_; }

  std::vector<VaultGeneration> list() override {
    const Bytes answer = connection_->ask(begin_request(Request::kList), "listing files");
    ByteReader reader(answer);
    std::vector<VaultGeneration> generations;
    vault_protocol::decode(reader, generations);
    reader.expect_end();
    return generations;
  }

  std::unique_ptr<VaultWriter> create(std::uint64_t generation, const std::string& name) override {
    const Bytes answer =
        connection_->ask(file_request(Request::kCreate, generation, name), doing_with("creating", generation, name));
    ByteReader reader(answer);
    return std::make_unique<RemoteWriter>(connection_, reader.u64(), generation, name);
  }

  std::shared_ptr<const RandomAccessFile> open(std::uint64_t generation, const std::string& name) override {
    const std::string doing = doing_with("opening", generation, name);
    const Bytes answer = connection_->ask(file_request(Request::kOpen, generation, name), doing);
    ByteReader reader(answer);
    if (!reader.boolean()) return nullptr;
    auto file = std::make_shared<RemoteFile>(connection_, reader.u64());
    const std::uint64_t size = reader.u64();
    std::vector<PiecePlace> pieces;
    decode(reader, pieces);
    reader.expect_end();
    Stretches stretches;
    for (const MutableByteSpan bytes : connection_->locate(pieces)) stretches.push_back(bytes);
    DCP_CHECK(size <= stretches.capacity(), kCorruptData, size, " bytes in ", stretches.capacity(), ", ", doing);
    return std::make_shared<MemoryFile>(std::move(file), std::move(stretches), size, name);
  }

  void drop(std::uint64_t generation, const std::string& name) override {
    connection_->ask(file_request(Request::kDropFile, generation, name), doing_with("dropping", generation, name));
  }

  void drop(std::uint64_t generation) override {
    ByteWriter request = begin_request(Request::kDropGeneration);
    request.u64(generation);
    connection_->ask(std::move(request), c10::str("dropping generation ", generation));
  }

  VaultUse use() override {
    const Bytes answer = connection_->ask(begin_request(Request::kUse), "asking for the use of memory");
    ByteReader reader(answer);
    VaultUse use;
    use.used_bytes = reader.u64();
    use.spare_bytes = reader.u64();
    use.budget_bytes = reader.u64();
    reader.expect_end();
    return use;
  }

 private:
  const std::string job_;
  std::shared_ptr<VaultConnection> connection_;
};

}  // namespace

std::shared_ptr<MemoryVault> open_memory_vault(const std::string& id, const MemoryClientOptions& options) {
  DCP_CHECK(id.size() > kScheme.size() && id.starts_with(kScheme), kInvalidArgument,
            "a memory server is called mem:// and the path of its socket, not '", id, "'");
  return std::make_shared<RemoteVault>(id.substr(kScheme.size()), options);
}

}  // namespace dcp
