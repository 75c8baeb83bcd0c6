"""Fuzz targets: one source each, which defines LLVMFuzzerTestOneInput."""

load("//tools:cc.bzl", "dcp_cc_binary", "dcp_cc_test")

def fuzz_target(name, srcs, corpus, deps):
    """Makes NAME_fuzz, a fuzzer, and NAME_replay_test, which runs the same over a corpus.

    The fuzzer is built with --config=fuzz only, the test with any compiler.

    Args:
      name: NAME.
      srcs: the source.
      corpus: folder of ./corpus.
      deps: what the source includes.
    """
    dcp_cc_binary(
        name = name + "_fuzz",
        srcs = srcs,
        args = ["-rss_limit_mb=2048", "-timeout=10"],
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = deps + [":expected_error"],
    )
    dcp_cc_test(
        name = name + "_replay_test",
        srcs = srcs,
        args = ["test/fuzz/corpus/" + corpus],
        data = native.glob(["corpus/" + corpus + "/**"]),
        main = False,
        deps = deps + [
            ":expected_error",
            ":replay_main",
        ],
    )
