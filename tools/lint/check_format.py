#!/usr/bin/env python3
"""Checks that clang-format would change no C++ file of the tree.

    tools/env/enter.sh tools/lint/check_format.py      (tools/bazel test //test/lint:format)
"""

import re
import subprocess
import sys

from source_tree import Finding, SourceTree, workspace_root

_VIOLATION = re.compile(r"(.*?):(\d+):\d+: (?:error|warning): code should be clang-formatted")


def main():
    root = workspace_root(__file__)
    files = [p for p in SourceTree(root).paths if p.endswith((".cc", ".h")) and p.split("/")[0] in ("torch_dcp", "test", "tools")]
    run = subprocess.run(["clang-format", "--dry-run", "-Werror", *files], cwd=root, stderr=subprocess.PIPE, text=True)
    first = {}  # of each file: one line says enough
    for match in map(_VIOLATION.match, run.stderr.splitlines()):
        if match:
            first.setdefault(match[1], int(match[2]))
    for path, line in first.items():
        print(Finding(path, line, "format", f"run tools/env/enter.sh clang-format -i {path}"))
    if run.returncode and not first:
        print(run.stderr)
    return 1 if run.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
