"""Whether the system's python3 has a module, as a fact: @name//:defs.bzl with HAVE.

For tests that run the other side of an exchange; where HAVE is False they are left
out by target_compatible_with. The module is found, not imported.
"""

def _impl(rctx):
    python = rctx.which("python3")
    have = False
    if python:
        found = rctx.execute([python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)", rctx.attr.module])
        have = found.return_code == 0
    rctx.file("defs.bzl", "HAVE = %s\n" % have)
    rctx.file("BUILD.bazel", "")

system_python_module = repository_rule(
    implementation = _impl,
    attrs = {"module": attr.string(mandatory = True)},
    environ = ["PATH"],
    configure = True,
    local = True,
)
