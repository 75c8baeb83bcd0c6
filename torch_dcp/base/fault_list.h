#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "torch_dcp/base/error.h"

namespace dcp {

/// Gathers what is wrong with several keys, so that one error can name them all.
class FaultList {
 public:
  void add(ErrorKind kind, const std::string& key, const std::string& what) {
    if (!kind_) kind_ = kind;
    lines_ += "\n  key '" + key + "': " + what;
    ++count_;
  }

  bool empty() const { return !kind_; }
  std::size_t count() const { return count_; }

  /// Throws an error of the first fault's kind, with a line for each fault, if there is any.
  ///
  /// \param heading  Says what failed, such as "load plan".
  void throw_if_any(const std::string& heading, const char* where) const {
    if (!kind_) return;
    throw Error(*kind_, heading + ", " + std::to_string(count_) + (count_ == 1 ? " fault:" : " faults:") + lines_,
                where);
  }

 private:
  std::optional<ErrorKind> kind_;
  std::string lines_;
  std::size_t count_ = 0;
};

}  // namespace dcp
