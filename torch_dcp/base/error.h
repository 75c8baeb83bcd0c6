#pragma once

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cstdint>
#include <string>
#include <vector>

#include "torch_dcp/base/export.h"

namespace dcp {

/// What a caller can do about an error; the message says what happened.
enum class ErrorKind : std::uint8_t {
  kInvalidArgument,  ///< an argument or option contradicts another or is out of range
  kType,             ///< a value of another kind than needed
  kShape,            ///< sizes differ
  kKey,              ///< a key is missing, unexpected or doubled
  kState,            ///< the call is not allowed now
  kNotFound,         ///< no checkpoint, or no file, at this place
  kAlreadyExists,    ///< something is there that must not be overwritten
  kCorruptData,      ///< stored bytes are damaged, cut or foreign
  kUnsupported,      ///< sound, but this library does not do it
  kIo,               ///< the operating system refused
  kComm,             ///< a peer or the connection to it is gone
  kDeadline,         ///< a step took longer than it may
  kCancelled,        ///< stopped since another rank failed
  kInternal,         ///< a bug in this library
};

/// Returns the enumerator's name without its k, such as "CorruptData".
DCP_API const char* error_kind_name(ErrorKind kind) noexcept;

/// The root of everything this library throws.
///
/// A `c10::Error`, so `what()`, `what_without_backtrace()` and `add_context()` are
/// those that LibTorch programs know.
class DCP_API Error : public c10::Error {
 public:
  /// \param where  `file:line` of the throw.
  Error(ErrorKind kind, std::string message, std::string where);
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  ~Error() override;

  ErrorKind kind() const noexcept { return kind_; }
  const std::string& where() const noexcept { return where_; }

 private:
  ErrorKind kind_;
  std::string where_;
};

/// One rank's part in a failed step. Four plain fields, so that it can always be sent.
struct RankFailure {
  int rank = -1;  ///< within the group
  ErrorKind kind = ErrorKind::kInternal;
  std::string message;  ///< includes key, path and byte offset where known
  std::string where;    ///< `file:line` of the throw; may be empty

  friend bool operator==(const RankFailure&, const RankFailure&) = default;
};

/// A step of a save or load failed; thrown alike on every rank of the group.
///
/// `failures()` holds the ranks that failed, sorted by rank, not those that were
/// cancelled because of them. `kind()` is that of the first failure.
class DCP_API CheckpointError : public Error {
 public:
  /// \param step      What was being done, such as "plan" or "write".
  /// \param failures  At least one; sorted here.
  CheckpointError(std::string step, std::vector<RankFailure> failures, std::string where);
  CheckpointError(const CheckpointError&) = default;
  CheckpointError& operator=(const CheckpointError&) = default;
  ~CheckpointError() override;

  const std::string& step() const noexcept { return step_; }
  const std::vector<RankFailure>& failures() const noexcept { return failures_; }

 private:
  std::string step_;
  std::vector<RankFailure> failures_;
};

/// Describes the exception that is being handled as a failure of `rank`: any
/// `dcp::Error`, `c10::Error`, `std::exception` or other thrown object.
///
/// \pre Called inside a `catch` block.
DCP_API RankFailure current_failure(int rank);

}  // namespace dcp

#define DCP_STRINGIZE_IMPL(x) #x
#define DCP_STRINGIZE(x) DCP_STRINGIZE_IMPL(x)
#define DCP_WHERE __FILE__ ":" DCP_STRINGIZE(__LINE__)

/// Throws a `dcp::Error` of `kind`, a bare enumerator such as `kCorruptData`; the
/// other arguments make the message.
#define DCP_THROW(kind, ...) throw ::dcp::Error(::dcp::ErrorKind::kind, ::c10::str(__VA_ARGS__), DCP_WHERE)

/// Throws as DCP_THROW does unless `condition` holds. Stays in release builds.
#define DCP_CHECK(condition, kind, ...) \
  do {                                  \
    if (C10_UNLIKELY(!(condition))) {   \
      DCP_THROW(kind, __VA_ARGS__);     \
    }                                   \
  } while (false)
