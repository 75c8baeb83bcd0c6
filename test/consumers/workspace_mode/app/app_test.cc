// What a program outside torch_dcp's own workspace sees: its public headers, its
// targets, and the LibTorch that it found.

#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include "torch_dcp/base/error.h"

TEST(App, UsesTorchDcp) {
  try {
    DCP_THROW(kNotFound, "no checkpoint for ", c10::Device(c10::kCPU));
    FAIL() << "nothing was thrown";
  } catch (const dcp::Error& error) {
    EXPECT_EQ(error.kind(), dcp::ErrorKind::kNotFound);
    EXPECT_NE(std::string(error.what()).find("no checkpoint for cpu"), std::string::npos) << error.what();
  }
}
