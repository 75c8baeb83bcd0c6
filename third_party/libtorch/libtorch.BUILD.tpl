# Made by third_party/libtorch/libtorch_configure.bzl for LibTorch %{version}.
load("@bazel_skylib//rules:common_settings.bzl", "bool_setting")
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# Only libc10, for what needs errors and scalar types but no tensors: a program
# that links nothing else starts in milliseconds instead of a second.
cc_library(
    name = "c10",
    hdrs = ["stamp.h"] + %{folders},
    defines = %{defines},
    includes = [
        "include",
        "include/torch/csrc/api/include",
    ],
    linkopts = %{c10_linkopts},
)

cc_library(
    name = "libtorch",
    hdrs = ["stamp.h"] + %{folders},
    defines = %{defines},
    includes = [
        "include",
        "include/torch/csrc/api/include",
    ],
    linkopts = %{linkopts},
)

cc_library(
    name = "c10d",
    defines = %{c10d_defines},
    deps = [":libtorch"],
)

cc_library(
    name = "cuda",
    hdrs = %{cuda_folders},
    includes = %{cuda_folders},
    linkopts = %{cuda_linkopts},
    deps = [":c10d"],
)

# Facts about this LibTorch, as settings that select() can ask for.
[
    (
        bool_setting(
            name = "_" + name,
            build_setting_default = value,
        ),
        config_setting(
            name = name,
            flag_values = {":_" + name: "True"},
        ),
    )
    for name, value in %{settings}.items()
]
