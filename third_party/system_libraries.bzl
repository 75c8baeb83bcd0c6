"""The libraries that Debian packages and torch_dcp links, for both of Bazel's modes."""

load("//third_party:system_library.bzl", "system_library")
load("//third_party:system_program.bzl", "system_program")
load("//third_party:system_python_module.bzl", "system_python_module")

# repository: what system_library needs to know.
_LIBRARIES = {
    "system_isal": dict(target = "isal", header = "isa-l/crc.h", libs = ["isal"], package = "libisal-dev"),
    "system_zlib": dict(target = "zlib", header = "zlib.h", libs = ["z"], package = "zlib1g-dev"),
    "system_zstd": dict(target = "zstd", header = "zstd.h", libs = ["zstd"], package = "libzstd-dev"),
    "system_benchmark": dict(target = "benchmark", header = "benchmark/benchmark.h", libs = ["benchmark"], package = "libbenchmark-dev"),
    "system_nlohmann_json": dict(target = "json", header = "nlohmann/json.hpp", package = "nlohmann-json3-dev"),
    "system_cli11": dict(target = "cli11", header = "CLI/CLI.hpp", package = "libcli11-dev"),
}

def system_libraries(have = {}):
    """Declares each library's repository that `have` does not hold yet."""
    for name, facts in _LIBRARIES.items():
        if name not in have:
            system_library(name = name, required = True, **facts)
    if "system_clang_format" not in have:
        # Older versions break lines elsewhere.
        system_program(name = "system_clang_format", program = "clang-format", min_major = 21)
    if "system_python_torch" not in have:
        system_python_module(name = "system_python_torch", module = "torch")

def _extension_impl(_mctx):
    system_libraries()

libraries = module_extension(implementation = _extension_impl)
