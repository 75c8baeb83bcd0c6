"""A program that the system may have, as a fact: @name//:defs.bzl with HAVE.

For tests that need a program which not every machine has: they are left out by
target_compatible_with where HAVE is False.
"""

def _impl(rctx):
    found = rctx.which(rctx.attr.program)
    have = False
    if found and rctx.attr.min_major:
        version = rctx.execute([found, "--version"])
        for word in version.stdout.split(" ") if version.return_code == 0 else []:
            major = word.split(".")[0]
            if "." in word and major.isdigit():
                have = int(major) >= rctx.attr.min_major
                break
    elif found:
        have = True
    rctx.file("defs.bzl", "HAVE = %s\n" % have)
    rctx.file("BUILD.bazel", "")

system_program = repository_rule(
    implementation = _impl,
    attrs = {
        "program": attr.string(mandatory = True),
        "min_major": attr.int(doc = "The lowest major version that counts, by what --version prints; 0: any."),
    },
    environ = ["PATH"],
    configure = True,
    local = True,
)
