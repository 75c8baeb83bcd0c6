#include <nlohmann/json.hpp>
#include <utility>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/json_visitor_internal.h"

namespace dcp {
namespace {

using Json = nlohmann::json;

/// Error texts quote what was read last, which may be as long as the file.
constexpr std::size_t kMaxErrorText = 200;

class Walk final : public nlohmann::json_sax<Json> {
 public:
  Walk(std::size_t max_depth, JsonVisitor& visitor) : max_depth_(max_depth), visitor_(visitor) {}

  bool null() override { return tell_other("null"); }
  bool boolean(bool) override { return tell_other("a truth value"); }
  bool number_float(number_float_t, const string_t&) override {
    return tell_other("a fraction or a number beyond 64 bits");
  }
  bool binary(binary_t&) override { return tell_other("bytes"); }

  bool number_integer(number_integer_t value) override {
    if (!is_skipping()) visitor_.integer(path_, value);
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!std::in_range<std::int64_t>(value)) return tell_other("a number beyond 64 bits");
    return number_integer(static_cast<std::int64_t>(value));
  }

  bool string(string_t& value) override {
    if (!is_skipping()) visitor_.text(path_, value);
    return true;
  }

  bool key(string_t& value) override {
    path_.back() = std::move(value);
    if (!is_skipping()) visitor_.key(path_);
    return true;
  }

  bool start_object(std::size_t) override {
    begin(true);
    path_.emplace_back();
    return true;
  }

  bool end_object() override {
    path_.pop_back();
    return end();
  }

  bool start_array(std::size_t) override { return begin(false); }
  bool end_array() override { return end(); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    DCP_THROW(kCorruptData, "no JSON from byte ", position,
              " on: ", std::string_view(error.what()).substr(0, kMaxErrorText));
  }

 private:
  bool is_skipping() const { return skipped_depth_ != 0; }

  bool tell_other(const char* kind) {
    if (!is_skipping()) visitor_.other(path_, kind);
    return true;
  }

  bool begin(bool is_object) {
    DCP_CHECK(depth_ < max_depth_, kCorruptData, "JSON nested deeper than ", max_depth_);
    ++depth_;
    if (!is_skipping() && !visitor_.begin(path_, is_object)) skipped_depth_ = depth_;
    return true;
  }

  bool end() {
    if (!is_skipping()) {
      visitor_.end(path_);
    } else if (skipped_depth_ == depth_) {
      skipped_depth_ = 0;
    }
    --depth_;
    return true;
  }

  std::size_t max_depth_;
  JsonVisitor& visitor_;
  JsonVisitor::Path path_;
  std::size_t depth_ = 0;
  std::size_t skipped_depth_ = 0;  ///< at which the skipped container began; 0: none is skipped
};

}  // namespace

void visit_json(std::string_view json, std::size_t max_depth, JsonVisitor& visitor) {
  Walk walk(max_depth, visitor);
  Json::sax_parse(json.begin(), json.end(), &walk);
}

std::string json_string(const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::type_error& error) {
    DCP_THROW(kInvalidArgument, "'", text, "' is no UTF-8: ", error.what());
  }
}

}  // namespace dcp
