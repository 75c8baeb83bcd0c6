#!/usr/bin/env python3
"""Checks the rules that the compiler does not: the floors and the form of the tree.

    tools/lint/check_floors.py [ROOT]      (tools/bazel test //test/lint:floors)

The table of the floors is in floors.py. Each finding is a line `file:line: rule: what to do`.
"""

import posixpath
import re
import sys

from build_files import NAMES, BuildFile
from floors import EVERYONES, LIBRARIES, PART_TARGETS, PARTS, ROOMS, UMBRELLA, library_of, libtorch_part
from source_tree import Finding, SourceTree, workspace_root

_INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
_CODE = (".cc", ".h")
_MAX_LINES = {"torch_dcp": 450, "tools": 450, "test": 900}

# The project's text names no machine's folders, no packages' hosts, and nothing that is left undone.
_WORDS = [
    ("machine-path", re.compile(r"(?:^|[^a-zA-Z0-9_.])/(?:work|root|srv|home)/"),
     "write a path from the workspace, a temporary folder or a variable"),
    ("package-host", re.compile(r"\b(?:pypi\.org|pythonhosted\.org|(?:npmjs|yarnpkg)\.(?:org|com)|crates\.io|rubygems\.org"
                                r"|anaconda\.(?:org|com)|(?:deb|snapshot|ftp|security)\.debian\.org|bcr\.bazel\.build"
                                r"|proxy\.golang\.org)\b"),
     "name the package, not the host it comes from"),
    ("unfinished", re.compile(r"\b(?:TO[D]O|FIX[M]E|GTEST_SKI[P]|X[X]X)\b|\bDISABLED[_]\w"),
     "finish it, or leave it out"),
]


class Source:
    """A C++ file of the tree: where it stands, and what it includes."""

    def __init__(self, path, lines):
        self.path, self.lines = path, lines
        self.is_header = path.endswith(".h")
        self.stem = posixpath.splitext(posixpath.basename(path))[0]
        self.is_internal = self.stem.endswith("_internal")
        self.folder = folder_of(path)  # of torch_dcp; None elsewhere
        self.includes = []  # (line, quote, path)
        for number, line in enumerate(lines, 1):
            if match := _INCLUDE.match(line):
                self.includes.append((number, *match.groups()))


def folder_of(path):
    """torch_dcp/io/file_system.h -> io; torch_dcp/dcp.h -> the empty string; None outside torch_dcp."""
    parts = path.split("/")
    if parts[0] != "torch_dcp":
        return None
    return parts[1] if len(parts) > 2 else ""


def room_of(folder):
    return UMBRELLA if folder == "" else ROOMS.get(folder)


def allowed(room):
    return ", ".join(sorted(room.folders)) or "no other folder"


def check_own_includes(source):
    """Includes of torch_dcp's own headers, by the table."""
    room = room_of(source.folder)
    for line, _, header in source.includes:
        target = folder_of(header)
        if target is None or target == source.folder or header in EVERYONES:
            continue
        part = PARTS.get((source.folder, target))
        name = posixpath.basename(header)
        if target not in room.folders and not (target == "" and source.folder == "examples"):
            yield Finding(source.path, line, "floor-include",
                          f"{source.folder or 'torch_dcp'}/ may include {allowed(room)}, not {target or 'the umbrella'}: "
                          "move the code to the floor it belongs to")
        elif part is not None and (name not in part or part[name] is not None and source.stem not in part[name]):
            yield Finding(source.path, line, "floor-include",
                          f"{source.folder}/ works on {target}'s interfaces, never on {name}: take it as an argument")
        elif name.endswith("_internal.h"):
            yield Finding(source.path, line, "internal-header", f"{name} is for {target}/ alone: use its other headers")
        elif source.folder == "examples" and not room_of(target).public:
            yield Finding(source.path, line, "internal-header", f"examples use public headers: {target}/ has none")


def check_library_includes(source):
    """Includes of LibTorch and other libraries, by the table and the policy for headers."""
    room = room_of(source.folder)
    public = source.is_header and room.public and not source.is_internal and source.folder != "examples"
    for line, _, header in source.includes:
        part, library = libtorch_part(header), library_of(header)
        if library and library not in room.libraries:
            yield Finding(source.path, line, "library", f"{source.folder or 'torch_dcp'}/ does not use {library}: see tools/lint/floors.py")
        if part is None:
            continue
        if part == "umbrella" and part not in room.libtorch:
            yield Finding(source.path, line, "torch-umbrella", "torch/torch.h is for examples and tests: include the header that is needed")
        elif part not in room.libtorch:
            yield Finding(source.path, line, "libtorch-part",
                          f"{source.folder or 'torch_dcp'}/ uses {', '.join(sorted(room.libtorch))} of LibTorch, not {part}: see tools/lint/floors.py")
        elif not source.is_header or source.folder == "examples" or (source.folder == "fsdp" and header == "torch/nn/module.h"):
            continue
        elif part in ("nn", "c10d", "umbrella"):
            yield Finding(source.path, line, "heavy-header", f"include {header} in the .cc, and torch_dcp/fwd.h here")
        elif public and part != "c10" and header != "ATen/core/Tensor.h":
            yield Finding(source.path, line, "public-header",
                          f"a public header includes c10/... and ATen/core/Tensor.h of LibTorch, not {header}: include it in the .cc")


def check_include_paths(source):
    for line, quote, header in source.includes:
        if header.startswith("/"):
            yield Finding(source.path, line, "include-path", "no absolute path: the build file names what is needed")
        elif quote == '"' and not header.startswith(("torch_dcp/", "test/", "tools/")):
            yield Finding(source.path, line, "include-path",
                          'write the path from the workspace ("torch_dcp/..."), or <...> for a library\'s header')
        elif quote == "<" and header.startswith("torch_dcp/"):
            yield Finding(source.path, line, "include-path", f'write "{header}" in quotes')


def check_form(source):
    if source.is_header and not any(line.strip() == "#pragma once" for line in source.lines):
        yield Finding(source.path, 1, "pragma-once", "begin the header with #pragma once")


def check_length(path, lines):
    limit = _MAX_LINES.get(path.split("/")[0])
    if limit and path.endswith(_CODE) and len(lines) > limit:
        yield Finding(path, limit + 1, "file-length",
                      f"{len(lines)} lines, more than {limit}: it has found a second subject, which has a name")


def check_words(path, lines):
    for number, line in enumerate(lines, 1):
        for rule, pattern, advice in _WORDS:
            if match := pattern.search(line):
                yield Finding(path, number, rule, f"{match.group().strip()}: {advice}")


def check_build_file(build):
    """The same table for the targets of a folder of torch_dcp."""
    folder = folder_of(build.path)
    if folder is None:
        return
    room = room_of(folder)
    for label in build.labels:
        target = folder_of(label.package + "/x")
        if target is None or target == folder or (target == "" and label.target == "fwd"):
            continue
        part = PART_TARGETS.get((folder, target))
        if target not in room.folders and not (target == "" and folder == "examples"):
            yield Finding(build.path, label.line, "floor-dep",
                          f"targets of {folder or 'torch_dcp'}/ may depend on {allowed(room)}, not on //{label.package}")
        elif part is not None and label.target not in part:
            yield Finding(build.path, label.line, "floor-dep",
                          f"targets of {folder}/ may depend on {', '.join(sorted(part))} of //{label.package}, not on {label.target}")
    for line, repository in build.repositories:
        for name, (_, owner) in LIBRARIES.items():
            if repository == owner and name not in room.libraries:
                yield Finding(build.path, line, "library", f"{folder or 'torch_dcp'}/ does not use {name}: see tools/lint/floors.py")


def nearest_build_file(path, builds):
    folder = posixpath.dirname(path)
    while True:
        if folder in builds:
            return builds[folder]
        if not folder:
            return None
        folder = posixpath.dirname(folder)


def check(tree):
    """All findings of a tree, in the order of its files."""
    builds = {}
    for path in tree.paths:
        if posixpath.basename(path) in NAMES:
            try:
                builds[posixpath.dirname(path)] = BuildFile(path, "\n".join(tree.lines(path) or []))
            except SyntaxError as error:
                yield Finding(path, error.lineno or 1, "build-file", f"cannot be read: {error.msg}")
    for path in tree.paths:
        lines = tree.lines(path)
        if lines is None:
            continue
        yield from check_words(path, lines)
        yield from check_length(path, lines)
        folder = folder_of(path)
        if folder and folder not in ROOMS:
            if path.endswith(_CODE) or posixpath.basename(path) in NAMES:
                yield Finding(path, 1, "unknown-folder", f"give {folder}/ a row in tools/lint/floors.py")
            continue
        if posixpath.basename(path) in NAMES and posixpath.dirname(path) in builds:
            yield from check_build_file(builds[posixpath.dirname(path)])
        if not path.endswith(_CODE) or path.split("/")[0] not in _MAX_LINES:
            continue
        source = Source(path, lines)
        yield from check_form(source)
        yield from check_include_paths(source)
        if folder is not None:
            yield from check_own_includes(source)
            yield from check_library_includes(source)
        build = nearest_build_file(path, builds)
        if build is None or not build.lists(path):
            where = build.path if build else posixpath.dirname(path) + "/BUILD.bazel"
            yield Finding(path, 1, "unlisted-source", f"no target of {where} names it: it is neither compiled nor tested")


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else workspace_root(__file__)
    findings = list(check(SourceTree(root)))
    for finding in findings:
        print(finding)
    if findings:
        print(f"{len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
