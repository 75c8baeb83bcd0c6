"""WORKSPACE mode: what torch_dcp's build needs, for itself and for its users.

tools/bazel overrides each of these but @libtorch with Debian's package of it,
so that nothing is fetched; any other Bazel fetches them.
"""

load("@bazel_tools//tools/build_defs/repo:http.bzl", "http_archive")
load("//third_party:system_libraries.bzl", "system_libraries")
load("//third_party/libtorch:libtorch_configure.bzl", "libtorch_configure")

_GITHUB = "https://github.com/"

def torch_dcp_repositories():
    """Declares every repository that the caller has not declared before."""
    have = native.existing_rules()
    if "rules_cc" not in have:
        http_archive(
            name = "rules_cc",
            sha256 = "2037875b9a4456dce4a79d112a8ae885bbc4aad968e6587dca6e64f3a0900cdf",
            strip_prefix = "rules_cc-0.0.9",
            url = _GITHUB + "bazelbuild/rules_cc/releases/download/0.0.9/rules_cc-0.0.9.tar.gz",
        )
    if "bazel_skylib" not in have:
        http_archive(
            name = "bazel_skylib",
            sha256 = "bc283cdfcd526a52c3201279cda4bc298652efa898b10b4db0837dc51652756f",
            url = _GITHUB + "bazelbuild/bazel-skylib/releases/download/1.7.1/bazel-skylib-1.7.1.tar.gz",
        )
    if "platforms" not in have:
        http_archive(
            name = "platforms",
            sha256 = "218efe8ee736d26a3572663b374a253c012b716d8af0c07e842e82f238a0a7ee",
            url = _GITHUB + "bazelbuild/platforms/releases/download/0.0.10/platforms-0.0.10.tar.gz",
        )
    if "googletest" not in have:
        http_archive(
            name = "googletest",
            sha256 = "7b42b4d6ed48810c5362c265a17faebe90dc2373c885e5216439d37927f02926",
            strip_prefix = "googletest-1.15.2",
            url = _GITHUB + "google/googletest/releases/download/v1.15.2/googletest-1.15.2.tar.gz",
        )
    if "libtorch" not in have:
        libtorch_configure(name = "libtorch")
    system_libraries(have)
