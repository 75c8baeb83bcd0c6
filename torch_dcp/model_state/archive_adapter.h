#pragma once

#include <functional>
#include <memory>

#include "torch_dcp/base/export.h"
#include "torch_dcp/state_dict/stateful.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace dcp {

/// Makes what saves itself into LibTorch's archives, such as a sampler of a data loader, a part of a state dict.
///
/// Its state is `{"archive": bytes}`. A checkpoint has the archive as bytes that nobody looks into; `load_state_dict`
/// gives them to LibTorch's own reader, with the trust that `torch::load` has in a file.
///
/// Thread safety: by one thread at a time. A load that fails loads again what the object had before.
class DCP_API ArchiveAdapter : public Stateful {
 public:
  using Save = std::function<void(torch::serialize::OutputArchive& archive)>;
  using Load = std::function<void(torch::serialize::InputArchive& archive)>;

  /// \throws dcp::Error kInvalidArgument for an empty function.
  ArchiveAdapter(Save save, Load load);
  ~ArchiveAdapter() override;

  Dict state_dict() override;

  /// \throws dcp::Error kKey without an archive, kType for one that is no bytes, kCorruptData for bytes that LibTorch
  ///         cannot read, kState if the object's former state could not be loaded again; what the object throws.
  void load_state_dict(const Dict& state) override;

 private:
  Save save_;
  Load load_;
};

/// For any object with LibTorch's `save(OutputArchive&)` and `load(InputArchive&)`, which must live as long as the
/// adapter.
template <typename T>
std::shared_ptr<Stateful> archive_stateful(T& object) {
  return std::make_shared<ArchiveAdapter>([&object](torch::serialize::OutputArchive& archive) { object.save(archive); },
                                          [&object](torch::serialize::InputArchive& archive) { object.load(archive); });
}

}  // namespace dcp
