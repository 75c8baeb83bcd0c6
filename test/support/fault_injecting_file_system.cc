#include "test/support/fault_injecting_file_system.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace dcp::test {

const char* file_op_name(FileOp op) {
  switch (op) {
    case FileOp::kCreate:
      return "create";
    case FileOp::kAppend:
      return "append";
    case FileOp::kSync:
      return "sync";
    case FileOp::kClose:
      return "close";
    case FileOp::kOpen:
      return "open";
    case FileOp::kRead:
      return "read";
    case FileOp::kStat:
      return "stat";
    case FileOp::kList:
      return "list";
    case FileOp::kCreateDirectories:
      return "create_directories";
    case FileOp::kRemove:
      return "remove";
    case FileOp::kRename:
      return "rename";
    case FileOp::kSyncDirectory:
      return "sync_directory";
  }
  return "unknown";
}

bool is_change(FileOp op) {
  return op != FileOp::kOpen && op != FileOp::kRead && op != FileOp::kStat && op != FileOp::kList;
}

std::string to_string(const FileEvent& event) {
  std::string text = c10::str(event.was_refused ? "refused " : "", file_op_name(event.op), " ", event.path);
  if (event.op == FileOp::kRename) text += " " + event.to;
  if (event.op == FileOp::kAppend || event.op == FileOp::kRead) text += c10::str(" ", event.bytes);
  return text;
}

/// What the file system and its open files share.
class FaultInjectingFileSystem::Control {
 public:
  /// Records an operation and throws if it is to be refused; `write_part` is then
  /// called before, with the number of bytes of an append that still get through.
  void begin(FileEvent event, const std::function<void(std::uint64_t)>& write_part = {}) {
    const std::size_t position = record(event);
    try {
      call_hook(event);
    } catch (...) {
      mark_refused(position);
      throw;
    }
    const auto refusal = refusal_of(event);
    if (!refusal) return;
    mark_refused(position);
    if (write_part) write_part(refusal->bytes_through);
    DCP_CHECK(!refusal->is_stop, kIo, "process stopped before ", to_string(event));
    throw Error(refusal->kind, c10::str("cannot ", file_op_name(event.op), " \"", event.path, "\": ", refusal->message),
                DCP_WHERE);
  }

  void fail(Fault fault) {
    const std::lock_guard lock(mutex_);
    faults_.push_back({.fault = std::move(fault)});
  }

  void clear_faults() {
    const std::lock_guard lock(mutex_);
    faults_.clear();
    hook_ = nullptr;
    changes_left_.reset();
    is_stopped_ = false;
  }

  void stop_after_changes(std::uint64_t change_count) {
    const std::lock_guard lock(mutex_);
    changes_left_ = change_count;
    is_stopped_ = false;
  }

  bool is_stopped() const {
    const std::lock_guard lock(mutex_);
    return is_stopped_;
  }

  void set_hook(std::function<void(const FileEvent&)> hook) {
    const std::lock_guard lock(mutex_);
    hook_ = std::move(hook);
  }

  std::vector<FileEvent> trace() const {
    const std::lock_guard lock(mutex_);
    return {trace_.begin() + static_cast<std::ptrdiff_t>(trace_begin_), trace_.end()};
  }

  void clear_trace() {
    const std::lock_guard lock(mutex_);
    trace_begin_ = trace_.size();
  }

 private:
  struct ActiveFault {
    Fault fault;
    std::uint64_t match_count = 0;
    std::uint64_t byte_count = 0;
    bool is_used_up = false;
  };

  struct Refusal {
    bool is_stop = false;
    ErrorKind kind = ErrorKind::kIo;
    std::string message = {};
    std::uint64_t bytes_through = 0;
  };

  std::size_t record(const FileEvent& event) {
    const std::lock_guard lock(mutex_);
    trace_.push_back(event);
    return trace_.size() - 1;
  }

  void mark_refused(std::size_t position) {
    const std::lock_guard lock(mutex_);
    trace_[position].was_refused = true;
  }

  void call_hook(const FileEvent& event) {
    std::function<void(const FileEvent&)> hook;
    {
      const std::lock_guard lock(mutex_);
      hook = hook_;
    }
    // Without the lock: the hook may wait for another thread's operation.
    if (hook) hook(event);
  }

  std::optional<Refusal> refusal_of(const FileEvent& event) {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return Refusal{.is_stop = true};
    if (changes_left_ && is_change(event.op)) {
      if (*changes_left_ == 0) {
        is_stopped_ = true;
        return Refusal{.is_stop = true, .bytes_through = event.bytes / 2};
      }
      --*changes_left_;
    }
    for (ActiveFault& active : faults_) {
      if (const auto bytes_through = hit(active, event)) {
        return Refusal{false, active.fault.kind, active.fault.message, *bytes_through};
      }
    }
    return std::nullopt;
  }

  /// Counts the operation; if it is to fail, returns how many of its bytes get through.
  static std::optional<std::uint64_t> hit(ActiveFault& active, const FileEvent& event) {
    const Fault& fault = active.fault;
    if (active.is_used_up || (fault.op && *fault.op != event.op)) return std::nullopt;
    if (event.path.find(fault.path_contains) == std::string::npos &&
        event.to.find(fault.path_contains) == std::string::npos) {
      return std::nullopt;
    }
    if (fault.after_bytes) return hit_by_bytes(active, event);
    ++active.match_count;
    if (active.match_count < fault.nth) return std::nullopt;
    active.is_used_up = !fault.is_lasting;
    return event.bytes / 2;
  }

  static std::optional<std::uint64_t> hit_by_bytes(ActiveFault& active, const FileEvent& event) {
    if (event.op != FileOp::kAppend) return std::nullopt;
    const std::uint64_t room = *active.fault.after_bytes - active.byte_count;
    active.byte_count += std::min(room, event.bytes);
    if (event.bytes <= room) return std::nullopt;
    active.is_used_up = !active.fault.is_lasting;
    return room;
  }

  mutable std::mutex mutex_;
  std::vector<ActiveFault> faults_;
  std::function<void(const FileEvent&)> hook_;
  std::optional<std::uint64_t> changes_left_;
  bool is_stopped_ = false;
  std::vector<FileEvent> trace_;
  std::size_t trace_begin_ = 0;  // positions stay valid for operations that are under way
};

class FaultInjectingFileSystem::Writer final : public WritableFile {
 public:
  Writer(std::shared_ptr<Control> control, std::string path, std::unique_ptr<WritableFile> base)
      : control_(std::move(control)), path_(std::move(path)), base_(std::move(base)) {}

  void append(ByteSpan bytes) override {
    begin({.op = FileOp::kAppend, .path = path_, .offset = base_->size(), .bytes = bytes.size()},
          [&](std::uint64_t byte_count) { base_->append(bytes.first(byte_count)); });
    base_->append(bytes);
  }

  void append_all(const std::vector<ByteSpan>& parts) override {
    std::uint64_t byte_count = 0;
    for (const ByteSpan part : parts) byte_count += part.size();
    begin({.op = FileOp::kAppend, .path = path_, .offset = base_->size(), .bytes = byte_count},
          [&](std::uint64_t room) {
            for (const ByteSpan part : parts) {
              const std::uint64_t take = std::min<std::uint64_t>(room, part.size());
              base_->append(part.first(take));
              room -= take;
            }
          });
    base_->append_all(parts);
  }

  std::uint64_t size() const override { return base_->size(); }
  void set_early_write_back(bool enabled) override { base_->set_early_write_back(enabled); }
  void set_direct_writes(bool enabled) override { base_->set_direct_writes(enabled); }

  void sync() override {
    begin({.op = FileOp::kSync, .path = path_});
    base_->sync();
  }

  void close() override {
    begin({.op = FileOp::kClose, .path = path_});
    base_->close();
  }

 private:
  /// Keeps the contract that a file is given up after a failure.
  void begin(FileEvent event, const std::function<void(std::uint64_t)>& write_part = {}) {
    DCP_CHECK(!is_failed_, kIo, "cannot ", file_op_name(event.op), " \"", path_, "\": an earlier call failed");
    is_failed_ = true;
    control_->begin(std::move(event), write_part);
    is_failed_ = false;
  }

  std::shared_ptr<Control> control_;
  std::string path_;
  std::unique_ptr<WritableFile> base_;
  bool is_failed_ = false;
};

class FaultInjectingFileSystem::Reader final : public RandomAccessFile {
 public:
  Reader(std::shared_ptr<Control> control, std::string path, std::unique_ptr<RandomAccessFile> base)
      : control_(std::move(control)), path_(std::move(path)), base_(std::move(base)) {}

  std::uint64_t size() const override { return base_->size(); }

  void read_at(std::uint64_t offset, MutableByteSpan out) const override {
    control_->begin({.op = FileOp::kRead, .path = path_, .offset = offset, .bytes = out.size()});
    base_->read_at(offset, out);
  }

 private:
  std::shared_ptr<Control> control_;
  std::string path_;
  std::unique_ptr<RandomAccessFile> base_;
};

FaultInjectingFileSystem::FaultInjectingFileSystem(std::shared_ptr<FileSystem> base)
    : FileSystemWrapper(std::move(base)), control_(std::make_shared<Control>()) {}

FaultInjectingFileSystem::~FaultInjectingFileSystem() = default;

void FaultInjectingFileSystem::fail(Fault fault) { control_->fail(std::move(fault)); }
void FaultInjectingFileSystem::clear_faults() { control_->clear_faults(); }
void FaultInjectingFileSystem::stop_after_changes(std::uint64_t change_count) {
  control_->stop_after_changes(change_count);
}
bool FaultInjectingFileSystem::is_stopped() const { return control_->is_stopped(); }
void FaultInjectingFileSystem::set_hook(std::function<void(const FileEvent&)> hook) {
  control_->set_hook(std::move(hook));
}
std::vector<FileEvent> FaultInjectingFileSystem::trace() const { return control_->trace(); }
void FaultInjectingFileSystem::clear_trace() { control_->clear_trace(); }

std::vector<std::string> FaultInjectingFileSystem::changes() const {
  std::vector<std::string> lines;
  for (const FileEvent& event : trace()) {
    if (is_change(event.op)) lines.push_back(to_string(event));
  }
  return lines;
}

std::unique_ptr<WritableFile> FaultInjectingFileSystem::create_file(const std::string& path, bool exclusive) {
  control_->begin({.op = FileOp::kCreate, .path = path});
  return std::make_unique<Writer>(control_, path, base().create_file(path, exclusive));
}

std::unique_ptr<RandomAccessFile> FaultInjectingFileSystem::open_file(const std::string& path, Links links) {
  control_->begin({.op = FileOp::kOpen, .path = path});
  return std::make_unique<Reader>(control_, path, base().open_file(path, links));
}

FileType FaultInjectingFileSystem::file_type(const std::string& path) {
  control_->begin({.op = FileOp::kStat, .path = path});
  return base().file_type(path);
}

std::optional<std::uint64_t> FaultInjectingFileSystem::file_size(const std::string& path, Links links) {
  control_->begin({.op = FileOp::kStat, .path = path});
  return base().file_size(path, links);
}

std::vector<std::string> FaultInjectingFileSystem::list_directory(const std::string& path) {
  control_->begin({.op = FileOp::kList, .path = path});
  return base().list_directory(path);
}

std::vector<std::string> FaultInjectingFileSystem::create_directories(const std::string& path) {
  control_->begin({.op = FileOp::kCreateDirectories, .path = path});
  return base().create_directories(path);
}

void FaultInjectingFileSystem::remove_file(const std::string& path) {
  control_->begin({.op = FileOp::kRemove, .path = path});
  base().remove_file(path);
}

void FaultInjectingFileSystem::rename_file(const std::string& from, const std::string& to) {
  control_->begin({.op = FileOp::kRename, .path = from, .to = to});
  base().rename_file(from, to);
}

void FaultInjectingFileSystem::sync_directory(const std::string& path) {
  control_->begin({.op = FileOp::kSyncDirectory, .path = path});
  base().sync_directory(path);
}

}  // namespace dcp::test
