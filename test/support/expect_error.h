#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "torch_dcp/base/error.h"

namespace dcp::test {

/// Expects that `call` throws a `dcp::Error` of `kind` whose message has `text` in it.
inline void expect_error(ErrorKind kind, const std::string& text, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_STREQ(error_kind_name(error.kind()), error_kind_name(kind)) << message;
    EXPECT_NE(message.find(text), std::string::npos) << "\"" << text << "\" is not in: " << message;
    return;
  }
  ADD_FAILURE() << "no error, expected " << error_kind_name(kind) << " with \"" << text << "\"";
}

}  // namespace dcp::test
