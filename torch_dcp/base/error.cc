#include "torch_dcp/base/error.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace dcp {
namespace {

std::string describe(const std::string& step, const std::vector<RankFailure>& failures) {
  std::string text =
      c10::str("step '", step, "' failed on ", failures.size(), " rank", failures.size() == 1 ? "" : "s");
  for (const RankFailure& failure : failures) {
    text += c10::str("\n  rank ", failure.rank, ": ", error_kind_name(failure.kind), ": ", failure.message);
  }
  return text;
}

/// Names in messages may come from files. `what()` would end at a zero byte.
std::string spell_zeros(std::string text) {
  for (std::size_t at = text.find('\0'); at != std::string::npos; at = text.find('\0', at)) text.replace(at, 1, "\\0");
  return text;
}

std::vector<RankFailure> sorted(std::vector<RankFailure> failures) {
  std::stable_sort(failures.begin(), failures.end(),
                   [](const RankFailure& a, const RankFailure& b) { return a.rank < b.rank; });
  return failures;
}

}  // namespace

const char* error_kind_name(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return "InvalidArgument";
    case ErrorKind::kType:
      return "Type";
    case ErrorKind::kShape:
      return "Shape";
    case ErrorKind::kKey:
      return "Key";
    case ErrorKind::kState:
      return "State";
    case ErrorKind::kNotFound:
      return "NotFound";
    case ErrorKind::kAlreadyExists:
      return "AlreadyExists";
    case ErrorKind::kCorruptData:
      return "CorruptData";
    case ErrorKind::kUnsupported:
      return "Unsupported";
    case ErrorKind::kIo:
      return "Io";
    case ErrorKind::kComm:
      return "Comm";
    case ErrorKind::kDeadline:
      return "Deadline";
    case ErrorKind::kCancelled:
      return "Cancelled";
    case ErrorKind::kInternal:
      return "Internal";
  }
  return "Unknown";
}

Error::Error(ErrorKind kind, std::string message, std::string where)
    // No backtrace: it would cost milliseconds, and `where` says what matters.
    : c10::Error(spell_zeros(std::move(message))), kind_(kind), where_(std::move(where)) {}

Error::~Error() = default;

CheckpointError::CheckpointError(std::string step, std::vector<RankFailure> failures, std::string where)
    : Error(failures.empty()
                ? ErrorKind::kInternal
                : std::min_element(failures.begin(), failures.end(),
                                   [](const RankFailure& a, const RankFailure& b) { return a.rank < b.rank; })
                      ->kind,
            describe(step, sorted(failures)), std::move(where)),
      step_(std::move(step)),
      failures_(sorted(std::move(failures))) {}

CheckpointError::~CheckpointError() = default;

RankFailure current_failure(int rank) {
  RankFailure failure;
  failure.rank = rank;
  try {
    throw;
  } catch (const Error& error) {
    failure.kind = error.kind();
    failure.message = error.what_without_backtrace();
    failure.where = error.where();
  } catch (const c10::Error& error) {
    failure.kind = ErrorKind::kInternal;
    failure.message = error.what_without_backtrace();
  } catch (const std::bad_alloc&) {
    failure.kind = ErrorKind::kIo;
    failure.message = "out of memory";
  } catch (const std::exception& error) {
    failure.kind = ErrorKind::kInternal;
    failure.message = error.what();
  } catch (...) {
    failure.kind = ErrorKind::kInternal;
    failure.message = "an exception that is no std::exception";
  }
  return failure;
}

}  // namespace dcp
