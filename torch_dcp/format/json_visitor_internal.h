#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dcp {

/// Is told what a JSON text holds, piece by piece; nothing of it is kept in between, so that a text costs no more
/// memory than its visitor takes.
class JsonVisitor {
 public:
  /// The keys from the root on. Elements of a list have the list's own path.
  using Path = std::vector<std::string>;

  virtual ~JsonVisitor() = default;

  /// An object or a list begins. \returns Whether it is wanted; if not, nothing inside is told.
  virtual bool begin(const Path& path, bool is_object) = 0;
  /// What was wanted ends.
  virtual void end(const Path& path) = 0;
  /// The value of the path's last key follows. Equal keys of one object are told like others.
  virtual void key(const Path& path) = 0;
  virtual void integer(const Path& path, std::int64_t value) = 0;
  virtual void text(const Path& path, std::string& value) = 0;
  /// A value of another kind; `kind` says which, as in "a fraction".
  virtual void other(const Path& path, const char* kind) = 0;
};

/// Walks one JSON text.
///
/// \throws dcp::Error kCorruptData for what is no JSON (or no UTF-8), with the byte, and for deeper nesting; what the
///         visitor throws.
void visit_json(std::string_view json, std::size_t max_depth, JsonVisitor& visitor);

/// `text` as a JSON string with its quotes.
///
/// \throws dcp::Error kInvalidArgument if it is no UTF-8.
std::string json_string(const std::string& text);

}  // namespace dcp
