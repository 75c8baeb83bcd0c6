"""The project's C++ targets: one place for the flags that all of them need."""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")

# Given per target too, so that a workspace that uses this one gets them.
_COPTS = [
    "-std=c++20",
    "-Wall",
    "-Wextra",
    "-Werror=return-type",
    "-Wno-unused-parameter",
]

def dcp_cc_library(copts = [], **kwargs):
    cc_library(copts = _COPTS + copts, **kwargs)

def dcp_cc_binary(copts = [], **kwargs):
    cc_binary(copts = _COPTS + copts, **kwargs)

def dcp_cc_test(copts = [], deps = [], size = "small", main = True, **kwargs):
    cc_test(
        copts = _COPTS + copts,
        size = size,
        deps = deps + ["@googletest//:gtest_main" if main else "@googletest//:gtest"],
        **kwargs
    )
