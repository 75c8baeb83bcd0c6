#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/peer_memory/file_note_internal.h"
#include "torch_dcp/peer_memory/file_owner_internal.h"
#include "torch_dcp/peer_memory/joining_internal.h"
#include "torch_dcp/peer_memory/peer_memory_impl_internal.h"
#include "torch_dcp/peer_memory/process_group_storage.h"

namespace dcp {
namespace {

/// What a rank tells the coordinator, if there is anything: plans that are remembered stay the same from save to save.
struct Told {
  /// In its memory, newer than what it knows to be complete: of saves that failed, or whose commit it has not heard of.
  std::vector<VaultGeneration> newer = {};
  /// By save id, what the metadata among those names.
  std::map<std::string, peer::NamedFiles> named = {};
  bool is_link_broken = false;

  bool is_nothing() const { return newer.empty() && !is_link_broken; }
};

/// What the coordinator answers.
struct Decision {
  std::uint64_t number = 0;
  std::int64_t step = -1;
  std::string save_id = {};
  PeerGeneration kept = {};  ///< the newest complete one, which stays; number 0: none
  bool needs_link = false;
  std::string tag = {};  ///< of the data files' names
};

std::string encode_told(const Told& told) {
  ByteWriter out;
  encode(out, peer::Inventory{.generations = told.newer});
  out.u64(told.named.size());
  for (const auto& [save_id, files] : told.named) {
    out.text(save_id);
    out.u64(files.size());
    for (const auto& [name, size] : files) {
      out.text(name);
      out.u64(size);
    }
  }
  out.boolean(told.is_link_broken);
  return std::string(as_text(std::move(out).take()));
}

Told decode_told(const std::string& text) {
  if (text.empty()) return {};
  ByteReader in(as_bytes(text));
  Told told;
  peer::Inventory inventory;
  decode(in, inventory);
  told.newer = std::move(inventory.generations);
  for (std::uint64_t left = in.count(); left > 0; --left) {
    peer::NamedFiles& files = told.named[in.text()];
    for (std::uint64_t names = in.count(); names > 0; --names) {
      const std::string name = in.text();
      files[name] = in.u64();
    }
  }
  told.is_link_broken = in.boolean();
  in.expect_end();
  return told;
}

std::string encode_decision(const Decision& decision) {
  ByteWriter out;
  out.u64(decision.number);
  out.i64(decision.step);
  out.text(decision.save_id);
  out.u64(decision.kept.number);
  out.i64(decision.kept.step);
  out.text(decision.kept.save_id);
  out.boolean(decision.needs_link);
  out.text(decision.tag);
  return std::string(as_text(std::move(out).take()));
}

Decision decode_decision(const std::string& text) {
  ByteReader in(as_bytes(text));
  Decision decision;
  decision.number = in.u64();
  decision.step = in.i64();
  decision.save_id = in.text();
  decision.kept.number = in.u64();
  decision.kept.step = in.i64();
  decision.kept.save_id = in.text();
  decision.needs_link = in.boolean();
  decision.tag = in.text();
  in.expect_end();
  return decision;
}

/// The newest generation after `known` that is complete in what all ranks hold of later ones.
std::optional<PeerGeneration> find_complete(std::vector<Told>& all, const PeerGeneration& known) {
  std::vector<peer::Inventory> inventories;
  std::map<std::string, peer::NamedFiles> named;
  for (Told& told : all) {
    inventories.push_back({.generations = std::move(told.newer)});
    named.merge(told.named);
  }
  for (const peer::Candidate& candidate : peer::find_candidates(inventories)) {
    const auto files = named.find(candidate.save_id);
    if (candidate.number <= known.number || files == named.end()) continue;
    if (peer::missing_in(candidate.files, files->second).empty()) {
      return PeerGeneration{candidate.number, candidate.step, candidate.save_id};
    }
  }
  return std::nullopt;
}

FileSystemWriterOptions options_of(const PeerMemory& memory, const ProcessGroupWriterOptions& options) {
  FileSystemWriterOptions files;
  files.sync_files = false;
  files.checksums = options.checksums;
  files.file_system = memory.file_system();
  return files;
}

std::shared_ptr<PeerMemory> checked(std::shared_ptr<PeerMemory> memory) {
  DCP_CHECK(memory, kInvalidArgument, "a writer into peers' memory needs one");
  return memory;
}

}  // namespace

class ProcessGroupStorageWriter::Impl {
 public:
  Impl(std::shared_ptr<PeerMemory> memory, const ProcessGroupWriterOptions& options)
      : memory(checked(std::move(memory))),
        state(this->memory->impl()),
        store(*state.store()),
        files(peer::kNewDirectory, options_of(*this->memory, options)),
        step(options.step) {}

  /// Forgets all generations but two. Not those that are newer than what this rank knows to be complete, unless the
  /// coordinator says so: of a commit it may not have heard.
  void drop_old() {
    const std::uint64_t newest = state.newest() ? state.newest()->number : 0;
    for (const VaultGeneration& generation : store.vault().list()) {
      if (generation.number < newest) store.vault().drop(generation.number);
    }
  }

  Told tell() {
    Told told;
    told.is_link_broken = !store.broken_reason().empty();
    const std::uint64_t newest = state.newest() ? state.newest()->number : 0;
    for (VaultGeneration& generation : store.vault().list()) {
      if (generation.number <= newest) continue;
      for (const VaultFile& file : generation.files) {
        if (file.name == peer::kMetadataName)
          told.named[peer::from_note(file.note).save_id] = named_by(generation, file);
      }
      told.newer.push_back(std::move(generation));
    }
    return told;
  }

  peer::NamedFiles named_by(const VaultGeneration& generation, const VaultFile& file) {
    const auto opened = store.vault().open(generation.number, file.name);
    if (!opened) return {};
    Bytes bytes(opened->size());
    opened->read_at(0, bytes);
    return peer::files_named_by(bytes);
  }

  /// What the coordinator has found to be complete is so for all.
  void know(const PeerGeneration& kept) {
    const std::optional<PeerGeneration> newest = state.newest();
    DCP_CHECK(!newest || newest->number <= kept.number, kState, "this rank knows generation ", newest->number,
              " to be complete, the coordinator only ", kept.number, ": the ranks must attach again");
    if (kept.number > 0 && (!newest || newest->number < kept.number)) state.set_newest(kept);
  }

  void drop_all_but(const Decision& decided) {
    for (const VaultGeneration& generation : store.vault().list()) {
      const bool stays = generation.number == decided.kept.number || generation.number == decided.number;
      if (!stays) store.vault().drop(generation.number);
    }
  }

  void begin(const Decision& decided) {
    store.begin(decided.number, {.step = decided.step, .save_id = decided.save_id});
    state.set_pending(PeerGeneration{decided.number, decided.step, decided.save_id});
    decision = decided;
  }

  void keep() {
    committed = PeerGeneration{decision->number, decision->step, decision->save_id};
    state.set_newest(committed);
    store.begin(0, {});
  }

  std::shared_ptr<PeerMemory> memory;
  PeerMemory::Impl& state;
  peer::PeerStore& store;
  FileSystemWriter files;
  std::int64_t step;
  std::optional<Decision> decision;  // once the coordinator's has come
  std::optional<PeerGeneration> committed;
  std::vector<std::string> warnings;
};

ProcessGroupStorageWriter::ProcessGroupStorageWriter(std::shared_ptr<PeerMemory> memory,
                                                     ProcessGroupWriterOptions options)
    : impl_(std::make_unique<Impl>(std::move(memory), options)) {}
ProcessGroupStorageWriter::~ProcessGroupStorageWriter() = default;

void ProcessGroupStorageWriter::set_step(std::int64_t step) { impl_->step = step; }

std::optional<PeerGeneration> ProcessGroupStorageWriter::committed_generation() const { return impl_->committed; }

void ProcessGroupStorageWriter::set_up(const StorageWriterContext& context) {
  DCP_CHECK(context.use_collectives, kUnsupported,
            "saving into peers' memory without collectives (use_collectives = false)");
  DCP_CHECK(context.rank == impl_->store.rank() && context.world_size == impl_->store.size(), kInvalidArgument,
            "the save's group is not the memory's: rank ", context.rank, " of ", context.world_size,
            ", in the memory's rank ", impl_->store.rank(), " of ", impl_->store.size());
  impl_->decision.reset();
  impl_->warnings.clear();
  impl_->store.begin(0, {});
  impl_->files.set_up(context);
}

StorageMeta ProcessGroupStorageWriter::storage_meta() const {
  StorageMeta meta = impl_->files.storage_meta();
  meta.checkpoint_id = "mem:";
  return meta;
}

SavePlan ProcessGroupStorageWriter::prepare_local_plan(SavePlan plan) {
  impl_->drop_old();
  plan = impl_->files.prepare_local_plan(std::move(plan));
  const Told told = impl_->tell();
  if (!told.is_nothing()) plan.storage_data = encode_told(told);
  return plan;
}

std::vector<SavePlan> ProcessGroupStorageWriter::prepare_global_plan(std::vector<SavePlan> plans) {
  Decision decision;
  decision.kept = impl_->state.newest().value_or(PeerGeneration());
  decision.number = decision.kept.number;
  decision.step = impl_->step;
  decision.save_id = impl_->files.storage_meta().save_id.value_or("");
  std::vector<Told> all;
  for (const SavePlan& plan : plans) {
    const Told& told = all.emplace_back(decode_told(plan.storage_data));
    for (const VaultGeneration& generation : told.newer) decision.number = std::max(decision.number, generation.number);
    decision.needs_link = decision.needs_link || told.is_link_broken;
  }
  ++decision.number;
  decision.kept = find_complete(all, decision.kept).value_or(decision.kept);
  impl_->begin(decision);
  plans = impl_->files.prepare_global_plan(std::move(plans));
  for (SavePlan& plan : plans) {
    decision.tag = plan.storage_data;
    plan.storage_data = encode_decision(decision);
  }
  return plans;
}

std::vector<WriteResult> ProcessGroupStorageWriter::write_data(const SavePlan& plan, const SavePlanner& planner) {
  const Decision decision = decode_decision(plan.storage_data);
  impl_->know(decision.kept);
  impl_->begin(decision);
  impl_->drop_all_but(decision);
  if (decision.needs_link) impl_->store.connect();
  SavePlan of_files = plan;
  of_files.storage_data = decision.tag;
  try {
    return impl_->files.write_data(of_files, planner);
  } catch (c10::Error& error) {
    error.add_context(c10::str("while saving mem:generation ", decision.number, " (step ", decision.step,
                               ") into the ranks' memory"));
    throw;
  }
}

Metadata ProcessGroupStorageWriter::finish(Metadata metadata, const std::vector<std::vector<WriteResult>>& results) {
  metadata = impl_->files.finish(std::move(metadata), results);
  impl_->keep();
  return metadata;
}

bool ProcessGroupStorageWriter::may_have_committed() const { return impl_->files.may_have_committed(); }

void ProcessGroupStorageWriter::committed() noexcept {
  // On the coordinator `finish` has done it.
  if (impl_->decision && impl_->store.writing_generation() != 0) impl_->keep();
  impl_->files.committed();
}

void ProcessGroupStorageWriter::abort() noexcept {
  if (!impl_->decision || impl_->store.writing_generation() == 0 || impl_->files.may_have_committed()) return;
  try {
    impl_->files.abort();
    // Copies of others' files too.
    impl_->store.vault().drop(impl_->decision->number);
    impl_->store.begin(0, {});
    impl_->state.set_pending(std::nullopt);
  } catch (...) {  // Whatever a vault of the program's throws.
    // No `.metadata` names what stays; the next save drops it.
    impl_->warnings.push_back(current_failure(0).message);
  }
}

std::vector<std::string> ProcessGroupStorageWriter::warnings() const {
  std::vector<std::string> all = impl_->files.warnings();
  all.insert(all.end(), impl_->warnings.begin(), impl_->warnings.end());
  return all;
}

}  // namespace dcp
