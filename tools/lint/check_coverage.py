#!/usr/bin/env python3
"""Makes test/model_state/COVERAGE.md: each behaviour of the state-dict API, and the tests that cover it.

    tools/lint/check_coverage.py --write    (tools/bazel test //test/lint:coverage checks it)

`behaviours.txt` has a behaviour a line, `ID words`; `covering_tests.txt` what covers them, `ID Suite.Test`, or `ID n/a
REASON` for what has no meaning in C++ and `ID fsdp REASON` for what waits for FSDP. Refused are a behaviour without a
line, a line without a behaviour, and a test that no source defines.
"""

import re
import sys

from source_tree import Finding, SourceTree, workspace_root

_FOLDER = "test/model_state"
_TABLE = f"{_FOLDER}/COVERAGE.md"
_NAMES = f"{_FOLDER}/behaviours.txt"
_TESTS = f"{_FOLDER}/covering_tests.txt"
_DEFINITION = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)")


def defined_tests(root):
    names = set()
    for path in SourceTree(root).paths:
        if path.startswith("test/") and path.endswith((".cc", ".h")):
            text = (root / path).read_text(encoding="utf-8")
            names.update(f"{suite}.{name}" for suite, name in _DEFINITION.findall(text))
    return names


def read(root, path):
    """Number, id and the rest of each line."""
    for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            behaviour, _, rest = line.strip().partition(" ")
            yield number, behaviour, rest.strip()


def collect(root, findings):
    """Words and covers by behaviour."""
    words, covers, tests = {}, {}, defined_tests(root)
    for number, behaviour, text in read(root, _NAMES):
        if behaviour in words:
            findings.append(Finding(_NAMES, number, "coverage", f"{behaviour} is there twice"))
        words[behaviour], covers[behaviour] = text, []
    for number, behaviour, cover in read(root, _TESTS):
        if behaviour not in words:
            findings.append(Finding(_TESTS, number, "coverage", f"no behaviour has the name {behaviour}"))
        elif cover.startswith(("n/a ", "fsdp ")):
            covers[behaviour].append("with FSDP: " + cover[5:] if cover.startswith("fsdp ") else cover)
        elif cover in tests:
            covers[behaviour].append(f"`{cover}`")
        else:
            findings.append(Finding(_TESTS, number, "coverage", f"no source has a test {cover}"))
    for behaviour, found in covers.items():
        if not found:
            findings.append(Finding(_TESTS, 1, "coverage", f"{behaviour} ({words[behaviour]}) has no test"))
    return words, covers


def table(words, covers):
    lines = [
        "# What the tests of the state-dict API cover", "",
        "Made by `tools/lint/check_coverage.py --write` from `behaviours.txt` and `covering_tests.txt`.", "",
        "| | behaviour | tests |", "| --- | --- | --- |"
    ]
    lines += [f"| {name} | {text} | {', '.join(covers[name])} |" for name, text in words.items()]
    return "\n".join(lines) + "\n"


def main():
    root = workspace_root(__file__)
    findings = []
    wanted = table(*collect(root, findings))
    path = root / _TABLE
    if sys.argv[1:] == ["--write"]:
        path.write_text(wanted, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != wanted:
        findings.append(Finding(_TABLE, 1, "coverage", "is not what tools/lint/check_coverage.py --write makes"))
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
