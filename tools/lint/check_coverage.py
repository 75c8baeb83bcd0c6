#!/usr/bin/env python3
"""Makes COVERAGE.md in the folders of TABLES: each behaviour of a subject, and the tests that cover it.

    tools/lint/check_coverage.py --write    (tools/bazel test //test/lint:coverage checks it)

In each folder `behaviours.txt` has a behaviour a line, `ID words`, under headings, `# words`; `covering_tests.txt` has
what covers them, a line each:

    ID Suite.Test            a test in C++
    ID module.Class.test_x   one in Python: test_x of Class in a file module.py
    ID n/a REASON            no meaning in C++
    ID fsdp REASON           waits for FSDP
    ID later SUBJECT         waits for one of the subjects in LATER; words may follow after a colon

Refused are a behaviour without a line, a line without a behaviour, and a test that no source defines.
"""

import ast
import pathlib
import re
import sys
from typing import NamedTuple

from source_tree import Finding, SourceTree, workspace_root


class Table(NamedTuple):
    folder: str
    title: str

    def file(self, name):
        return f"{self.folder}/{name}"

    @property
    def behaviours(self):
        return self.file("behaviours.txt")

    @property
    def covers(self):
        return self.file("covering_tests.txt")

    @property
    def written(self):
        return self.file("COVERAGE.md")


TABLES = [
    Table("test/checkpoint", "What the tests of save and load cover"),
    Table("test/model_state", "What the tests of the state-dict API cover"),
]

# What a behaviour may wait for.
LATER = ("async", "staging", "worker process", "transport", "Checkpointer", "FSDP")

_DEFINITION = re.compile(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)")


def defined_tests(tree):
    names = set()
    for path in tree.paths:
        if not path.startswith("test/"):
            continue
        if path.endswith((".cc", ".h")):
            names.update(f"{suite}.{name}" for suite, name in _DEFINITION.findall(_text(tree, path)))
        elif path.endswith("_test.py"):
            module = pathlib.PurePath(path).stem
            for node in ast.parse(_text(tree, path)).body:
                if isinstance(node, ast.ClassDef):
                    names.update(f"{module}.{node.name}.{inner.name}" for inner in node.body
                                 if isinstance(inner, ast.FunctionDef) and inner.name.startswith("test"))
    return names


def _text(tree, path):
    return (tree.root / path).read_text(encoding="utf-8")


def _lines(tree, path):
    """Number, first word and the rest of each line."""
    for number, line in enumerate(_text(tree, path).splitlines(), 1):
        if line.strip():
            first, _, rest = line.strip().partition(" ")
            yield number, first, rest.strip()


def _spelled(cover, tests):
    """How the table spells what covers; None for what it may not be."""
    kind, _, rest = cover.partition(" ")
    if kind == "n/a" and rest:
        return cover
    if kind == "fsdp" and rest:
        return f"with FSDP: {rest}"
    if kind == "later" and rest.partition(":")[0] in LATER:
        return f"later, with {rest}"
    return f"`{cover}`" if cover in tests else None


class Coverage:
    """One table, and what is wrong with it."""

    def __init__(self, table, tree, tests):
        self._table = table
        self._parts = []  # heading, and the ids below it
        self._words, self._covers = {}, {}
        self.findings = []
        self._read_behaviours(tree)
        self._read_covers(tree, tests)

    def _read_behaviours(self, tree):
        for number, name, text in _lines(tree, self._table.behaviours):
            if name == "#":
                self._parts.append((text, []))
                continue
            if name in self._words:
                self._find(self._table.behaviours, number, f"{name} is there twice")
                continue
            if not self._parts:
                self._parts.append((None, []))
            self._parts[-1][1].append(name)
            self._words[name], self._covers[name] = text, []

    def _read_covers(self, tree, tests):
        for number, name, cover in _lines(tree, self._table.covers):
            spelled = _spelled(cover, tests)
            if name not in self._words:
                self._find(self._table.covers, number, f"no behaviour has the name {name}")
            elif spelled is None:
                self._find(self._table.covers, number, f"no source has a test {cover}")
            elif spelled in self._covers[name]:
                self._find(self._table.covers, number, f"{name} has {cover} twice")
            else:
                self._covers[name].append(spelled)
        for name, found in self._covers.items():
            if not found:
                self._find(self._table.covers, 1, f"{name} ({self._words[name]}) has no test")

    def _find(self, path, line, advice):
        self.findings.append(Finding(path, line, "coverage", advice))

    def text(self):
        lines = [
            f"# {self._table.title}", "",
            "Made by `tools/lint/check_coverage.py --write` from `behaviours.txt` and `covering_tests.txt`.", ""
        ]
        for heading, names in self._parts:
            if heading:
                lines += [f"## {heading}", ""]
            lines += ["| | behaviour | tests |", "| --- | --- | --- |"]
            lines += [f"| {name} | {self._words[name]} | {', '.join(self._covers[name])} |" for name in names]
            lines.append("")
        return "\n".join(lines)


def check(tree, tables=None, write=False):
    """What is wrong with the tables; writes them if asked to."""
    tests, findings = defined_tests(tree), []
    for table in TABLES if tables is None else tables:
        coverage = Coverage(table, tree, tests)
        findings += coverage.findings
        path = tree.root / table.written
        if write:
            path.write_text(coverage.text(), encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != coverage.text():
            findings.append(Finding(table.written, 1, "coverage", "is not what tools/lint/check_coverage.py --write makes"))
    return findings


def main():
    findings = check(SourceTree(workspace_root(__file__)), write=sys.argv[1:] == ["--write"])
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
