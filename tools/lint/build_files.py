"""What the lint needs to know of BUILD files. Their syntax is Python's, so Python's parser reads them."""

import ast
import fnmatch
import posixpath
from typing import NamedTuple

NAMES = ("BUILD.bazel", "BUILD")
# Keywords that name who may look in, not what is looked at.
_OUTWARD = {"visibility", "default_visibility", "packages", "name"}
_SOURCES = {"srcs", "hdrs", "textual_hdrs", "src"}


class Label(NamedTuple):
    line: int
    package: str  # torch_dcp/io for //torch_dcp/io:local
    target: str


class BuildFile:
    """Raises SyntaxError for a file that Python's parser does not take."""

    def __init__(self, path, text):
        self.path = path
        self.folder = posixpath.dirname(path)
        self.labels = []  # that it depends on, of this workspace
        self.repositories = []  # (line, "@name") that it depends on
        self._names = set()
        self._globs = []
        self._visit(ast.parse(text, path))

    def lists(self, path):
        """Whether a source file is named, or caught by a glob, in it."""
        name = posixpath.relpath(path, self.folder or ".")
        return name in self._names or any(_glob_match(name, g) for g in self._globs)

    def _visit(self, node, sources=False):
        if isinstance(node, ast.Call):
            function = getattr(node.func, "id", "")
            if function in ("load", "package_group"):
                return
            if function == "glob":
                for constant in self._strings(node.args + [k.value for k in node.keywords if k.arg == "include"]):
                    self._globs.append(constant.value)
                return
        if isinstance(node, ast.keyword):
            if node.arg in _OUTWARD:
                return
            sources = node.arg in _SOURCES
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self._string(node, sources)
        for child in ast.iter_child_nodes(node):
            self._visit(child, sources)

    def _string(self, node, sources):
        text = node.value
        if text.startswith("//"):
            package, _, target = text[2:].partition(":")
            if target not in ("__pkg__", "__subpackages__"):
                self.labels.append(Label(node.lineno, package, target or posixpath.basename(package)))
        elif text.startswith("@"):
            self.repositories.append((node.lineno, text.partition("//")[0]))
        elif sources:
            self._names.add(text.removeprefix(":"))

    @staticmethod
    def _strings(nodes):
        for node in nodes:
            for child in ast.walk(node):
                if isinstance(child, ast.Constant) and isinstance(child.value, str):
                    yield child


def _glob_match(name, pattern):
    """As Bazel's glob: * stays within a folder, ** is any number of folders."""

    def match(names, patterns):
        if not patterns:
            return not names
        if patterns[0] == "**":
            return match(names, patterns[1:]) or bool(names) and match(names[1:], patterns)
        return bool(names) and fnmatch.fnmatchcase(names[0], patterns[0]) and match(names[1:], patterns[1:])

    return match(name.split("/"), pattern.split("/"))
