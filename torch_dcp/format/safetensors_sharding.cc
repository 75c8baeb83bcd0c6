// Which parts of which tensors a file holds: a JSON text within the header's JSON.

#include <optional>
#include <unordered_map>
#include <utility>

#include "torch_dcp/base/checked_math.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/safetensors_internal.h"

namespace dcp::safetensors_form {
namespace {

constexpr std::string_view kOffsetsField = "saved_offsets";
/// Ours; PyTorch's readers look at the offsets only.
constexpr std::string_view kGlobalSizeField = "global_size";

/// {tensor: {"saved_offsets": [...], "global_size": [...]}}
class ShardingVisitor final : public JsonVisitor {
 public:
  ShardingVisitor(std::vector<SafetensorsTensor>& tensors, const ParseLimits& limits) : limits_(limits) {
    for (SafetensorsTensor& tensor : tensors) tensors_.emplace(tensor.name, Known{&tensor});
  }

  bool begin(const Path& path, bool is_object) override {
    if (is_ignored(path)) return false;
    if (path.size() < 2) {
      DCP_CHECK(is_object, kCorruptData, kShardingField, " has a list where an object must be");
      return true;
    }
    DCP_CHECK(!is_object && !is_in_list_, kCorruptData, "tensor '", path[0], "': its field ", path[1],
              " is no list of whole numbers");
    is_in_list_ = true;
    return true;
  }

  void end(const Path& path) override {
    is_in_list_ = false;
    if (path.size() == 1) finish(*tensors_.at(path[0]).tensor);
  }

  void key(const Path& path) override {
    if (is_ignored(path)) return;
    if (path.size() == 1) {
      Known& known = tensors_.at(path[0]);
      DCP_CHECK(!known.is_told, kCorruptData, "tensor '", path[0], "' is twice in ", kShardingField);
      known.is_told = true;
      offsets_.reset();
      global_size_.reset();
    } else {
      std::optional<std::vector<std::int64_t>>& numbers = numbers_of(path[1]);
      DCP_CHECK(!numbers, kCorruptData, "tensor '", path[0], "' has ", path[1], " twice in ", kShardingField);
      numbers.emplace();
    }
  }

  void integer(const Path& path, std::int64_t value) override {
    if (!is_in_list_) return other(path, "a number");
    add_number(*numbers_of(path[1]), value, path, limits_.max_ndim);
  }

  void text(const Path& path, std::string&) override { other(path, "a text"); }

  void other(const Path& path, const char* kind) override {
    if (is_ignored(path)) return;
    DCP_THROW(kCorruptData, kShardingField, path.empty() ? std::string() : " of tensor '" + path[0] + "'", " has ",
              kind, " in a wrong place");
  }

 private:
  struct Known {
    SafetensorsTensor* tensor;
    bool is_told = false;
  };

  /// What it says of tensors that the file lacks does not matter, nor do other fields.
  bool is_ignored(const Path& path) const {
    if (!path.empty() && !tensors_.contains(path[0])) return true;
    return path.size() > 2 || (path.size() == 2 && path[1] != kOffsetsField && path[1] != kGlobalSizeField);
  }

  std::optional<std::vector<std::int64_t>>& numbers_of(std::string_view field) {
    return field == kOffsetsField ? offsets_ : global_size_;
  }

  void finish(SafetensorsTensor& tensor) {
    if (!offsets_) return;  // told for all tensors
    check_rank(tensor, *offsets_, kOffsetsField);
    for (std::size_t d = 0; d < offsets_->size(); ++d) {
      DCP_CHECK(checked_add((*offsets_)[d], tensor.sizes[d]), kCorruptData, "tensor '", tensor.name,
                "': saved_offsets ", to_string(*offsets_), " and its shape make an end that does not fit 64 bits");
    }
    tensor.saved_offsets.emplace(offsets_->begin(), offsets_->end());
    if (!global_size_) return;
    check_rank(tensor, *global_size_, kGlobalSizeField);
    const Box part{*tensor.saved_offsets, tensor.sizes};
    DCP_CHECK(whole_box(*global_size_).contains(part), kCorruptData, "tensor '", tensor.name, "': its part ",
              to_string(part), " does not lie in its global_size ", to_string(*global_size_));
    tensor.global_size.emplace(global_size_->begin(), global_size_->end());
  }

  static void check_rank(const SafetensorsTensor& tensor, const std::vector<std::int64_t>& numbers,
                         std::string_view field) {
    DCP_CHECK(numbers.size() == tensor.sizes.size(), kCorruptData, "tensor '", tensor.name, "': ", numbers.size(), " ",
              field, " for the ", tensor.sizes.size(), " dimensions of its shape");
  }

  const ParseLimits& limits_;
  std::unordered_map<std::string, Known> tensors_;
  // Of the tensor that is being told.
  std::optional<std::vector<std::int64_t>> offsets_;
  std::optional<std::vector<std::int64_t>> global_size_;
  bool is_in_list_ = false;
};

}  // namespace

void add_number(std::vector<std::int64_t>& numbers, std::int64_t value, const JsonVisitor::Path& path,
                std::size_t max_count) {
  DCP_CHECK(value >= 0, kCorruptData, "tensor '", path[0], "': ", path[1], " has a negative number, ", value);
  DCP_CHECK(numbers.size() < max_count, kCorruptData, "tensor '", path[0], "': ", path[1], " has more than ", max_count,
            " numbers");
  numbers.push_back(value);
}

std::string number_list(c10::IntArrayRef numbers, const char* separator) {
  std::string text = "[";
  for (const std::int64_t number : numbers) text += (text.size() == 1 ? "" : separator) + std::to_string(number);
  return text + "]";
}

void read_sharding(SafetensorsHeader& header, const ParseLimits& limits) {
  const std::string field(kShardingField);
  const std::string* info = header.metadata.find(field);
  if (info == nullptr) return;
  ShardingVisitor visitor(header.tensors, limits);
  try {
    visit_json(*info, kMaxJsonDepth, visitor);
  } catch (Error& error) {
    error.add_context("in " + field);
    throw;
  }
  for (const SafetensorsTensor& tensor : header.tensors) {
    DCP_CHECK(tensor.saved_offsets, kCorruptData, kShardingField, " has no saved_offsets of tensor '", tensor.name,
              "'");
  }
  header.metadata.erase(field);
}

/// With the blanks that Python's json.dumps makes.
std::string sharding_text(const std::vector<SafetensorsTensor>& tensors) {
  std::string text = "{";
  for (const SafetensorsTensor& tensor : tensors) {
    const auto field = [](std::string_view name, c10::IntArrayRef numbers) {
      return json_string(std::string(name)) + ": " + number_list(numbers, ", ");
    };
    text += (text.size() == 1 ? "" : ", ") + json_string(tensor.name) + ": {" +
            field(kOffsetsField, tensor.saved_offsets.value());
    if (tensor.global_size) text += ", " + field(kGlobalSizeField, *tensor.global_size);
    text += "}";
  }
  return text + "}";
}

}  // namespace dcp::safetensors_form
