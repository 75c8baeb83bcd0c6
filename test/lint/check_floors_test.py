#!/usr/bin/env python3
"""Each rule of tools/lint/check_floors.py fires on a small made-up tree, and only there."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/lint"))

import check_floors  # noqa: E402
import floors  # noqa: E402
from build_files import BuildFile  # noqa: E402
from source_tree import SourceTree  # noqa: E402

HEADER = "#pragma once\n"


class Tree:
    """A checkout in a temporary folder, of files given as {path: text}. C++ files get a
    BUILD file that names them, unless there is one."""

    def __init__(self, files):
        self._folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self._folder.name)
        for path, text in files.items():
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text if isinstance(text, bytes) else text.encode())
            build = target.parent / "BUILD.bazel"
            if path.endswith((".cc", ".h")) and not any(f.endswith("BUILD.bazel") for f in files):
                build.write_text('cc_library(name = "x", srcs = glob(["*.cc", "*.h"]))\n')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._folder.cleanup()

    def findings(self):
        return [(f.path, f.line, f.rule) for f in check_floors.check(SourceTree(self.root))]


class LintTest(unittest.TestCase):
    def findings(self, files):
        with Tree(files) as tree:
            return tree.findings()

    def expect(self, path, text, *rules, line=1):
        """The tree of one file has these findings, all on that line."""
        self.assertEqual(self.findings({path: text}), [(path, line, rule) for rule in rules])


class Floors(LintTest):
    def test_table_has_no_way_up_and_no_neighbours(self):
        for name, room in floors.ROOMS.items():
            for folder in room.folders:
                self.assertLess(floors.ROOMS[folder].floor, room.floor, f"{name} -> {folder}")

    def test_allowed_includes(self):
        self.expect("torch_dcp/io/a.cc", '#include "torch_dcp/io/a.h"\n#include "torch_dcp/base/error.h"\n#include <vector>\n')
        self.expect("torch_dcp/dcp.h", HEADER + '#include "torch_dcp/checkpoint/save.h"\n')
        self.expect("torch_dcp/tensor/a.h", HEADER + '#include "torch_dcp/fwd.h"\n')

    def test_higher_floor(self):
        self.expect("torch_dcp/base/a.cc", '#include "torch_dcp/io/file_system.h"\n', "floor-include")

    def test_neighbour_on_the_same_floor(self):
        self.expect("torch_dcp/io/a.cc", '#include "torch_dcp/pickle/value.h"\n', "floor-include")
        self.expect("torch_dcp/plan/a.cc", '#include "torch_dcp/transform/copy.h"\n', "floor-include")

    def test_lower_floor_that_the_row_does_not_name(self):
        self.expect("torch_dcp/plan/a.cc", '#include "torch_dcp/comm/communicator.h"\n', "floor-include")

    def test_umbrella_is_for_examples(self):
        self.expect("torch_dcp/storage/a.cc", '#include "torch_dcp/dcp.h"\n', "floor-include")
        self.expect("torch_dcp/examples/a.cc", '#include "torch_dcp/dcp.h"\n')

    def test_checkpoint_names_no_backend(self):
        for stem, header, rules in [
            ("save", "storage_writer.h", []),
            ("save", "filesystem_writer.h", ["floor-include"]),
            ("save", "storage_factory.h", ["floor-include"]),
            ("by_checkpoint_id", "storage_factory.h", []),
        ]:
            self.expect(f"torch_dcp/checkpoint/{stem}.cc", f'#include "torch_dcp/storage/{header}"\n', *rules)

    def test_internal_header_of_another_folder(self):
        self.expect("torch_dcp/storage/a.cc", '#include "torch_dcp/format/zip_internal.h"\n', "internal-header")
        self.expect("torch_dcp/format/a.cc", '#include "torch_dcp/format/zip_internal.h"\n')

    def test_examples_use_public_headers(self):
        self.expect("torch_dcp/examples/a.cc", '#include "torch_dcp/pickle/value.h"\n', "internal-header")

    def test_folder_without_a_row(self):
        self.assertEqual(self.findings({"torch_dcp/attic/a.cc": ""}),
                         [("torch_dcp/attic/BUILD.bazel", 1, "unknown-folder"), ("torch_dcp/attic/a.cc", 1, "unknown-folder")])


class Libraries(LintTest):
    def test_part_of_libtorch_that_a_folder_does_not_use(self):
        self.expect("torch_dcp/pickle/a.cc", "#include <ATen/core/Tensor.h>\n", "libtorch-part")
        self.expect("torch_dcp/plan/a.cc", "#include <torch/csrc/distributed/c10d/Store.hpp>\n", "libtorch-part")
        self.expect("torch_dcp/format/a.cc", "#include <caffe2/serialize/inline_container.h>\n", "libtorch-part")
        self.expect("torch_dcp/comm/a.cc", "#include <torch/csrc/distributed/c10d/Store.hpp>\n")

    def test_torch_umbrella(self):
        self.expect("torch_dcp/model_state/a.cc", "#include <torch/torch.h>\n", "torch-umbrella")
        self.expect("torch_dcp/examples/a.cc", "#include <torch/torch.h>\n")
        self.expect("test/model_state/a_test.cc", "#include <torch/torch.h>\n")

    def test_heavy_headers_stay_in_sources(self):
        for part in ["torch/nn/module.h", "torch/optim/optimizer.h", "torch/csrc/distributed/c10d/ProcessGroup.hpp"]:
            self.expect("torch_dcp/model_state/a_internal.h", f"{HEADER}#include <{part}>\n", "heavy-header", line=2)
            self.expect("torch_dcp/model_state/a.cc", f"#include <{part}>\n")

    def test_fsdp_header_may_derive_from_module(self):
        self.expect("torch_dcp/fsdp/a.h", HEADER + "#include <torch/nn/module.h>\n")

    def test_public_header(self):
        self.expect("torch_dcp/tensor/a.h", HEADER + "#include <ATen/ATen.h>\n", "public-header", line=2)
        self.expect("torch_dcp/tensor/a.h", HEADER + "#include <torch/types.h>\n", "public-header", line=2)
        self.expect("torch_dcp/tensor/a.h", HEADER + "#include <ATen/core/Tensor.h>\n#include <c10/core/Device.h>\n")
        self.expect("torch_dcp/tensor/a_internal.h", HEADER + "#include <ATen/ATen.h>\n")

    def test_other_library(self):
        self.expect("torch_dcp/plan/a.cc", "#include <nlohmann/json.hpp>\n", "library")
        self.expect("torch_dcp/io/a.cc", "#include <zlib.h>\n", "library")
        self.expect("torch_dcp/format/a.cc", "#include <zlib.h>\n#include <isa-l/crc.h>\n")


class Form(LintTest):
    def test_include_path(self):
        self.expect("torch_dcp/io/a.cc", '#include "/usr/include/zlib.h"\n', "include-path")
        self.expect("torch_dcp/io/a.cc", '#include "b.h"\n', "include-path")
        self.expect("torch_dcp/io/a.cc", '#include "../base/error.h"\n', "include-path")
        self.expect("torch_dcp/io/a.cc", "#include <torch_dcp/base/error.h>\n", "include-path")
        self.expect("test/io/a_test.cc", '#include "test/support/ranks.h"\n#include <gtest/gtest.h>\n')

    def test_pragma_once(self):
        self.expect("torch_dcp/io/a.h", "#ifndef A\n#define A\n#endif\n", "pragma-once")

    def test_file_length(self):
        self.expect("torch_dcp/io/a.cc", "//\n" * 450)
        self.expect("torch_dcp/io/a.cc", "//\n" * 451, "file-length", line=451)
        self.expect("test/io/a_test.cc", "//\n" * 900)
        self.expect("test/io/a_test.cc", "//\n" * 901, "file-length", line=901)

    def test_words(self):
        for folder in ["work", "root", "home", "srv"]:
            self.expect("test/a.txt", f"\nsee /{folder}/x\n", "machine-path", line=2)
        self.expect("README.md", "from files.pythonhosted" + ".org\n", "package-host")
        self.expect("README.md", "from https://pypi" + ".org/simple\n", "package-host")
        for word in ["TO" + "DO", "FIX" + "ME", "GTEST_" + "SKIP()", "TEST(A, DISABLED" + "_B)"]:
            self.expect("README.md", word + "\n", "unfinished")
        self.expect("README.md", "~/.cache/x, network/, /usr/include, file/root/x\n")

    def test_binary_files_are_not_read(self):
        self.expect("test/golden/a.distcp", b"\0/" + b"work/\n")
        self.expect("test/golden/a.distcp", b"\xff/" + b"work/\n")


class BuildFiles(LintTest):
    def build(self, text, *expected, path="torch_dcp/io/BUILD.bazel"):
        self.assertEqual(self.findings({path: text}), [(path, *e) for e in expected])

    def test_dependency_by_the_table(self):
        self.build('cc_library(\n  name = "x",\n  deps = [\n    "//torch_dcp/base",\n    "//torch_dcp/plan:plan",\n  ],\n)\n', (5, "floor-dep"))
        self.build('cc_library(name = "x", deps = ["//torch_dcp/io:y", ":z", "//torch_dcp:fwd", "@libtorch//:c10"])\n')

    def test_dependency_in_a_select_or_a_constant(self):
        self.build('D = ["//torch_dcp/comm"]\ncc_library(name = "x", deps = D)\n', (1, "floor-dep"))
        self.build('cc_library(name = "x", deps = select({"//conditions:default": ["//torch_dcp/comm"]}))\n', (1, "floor-dep"))

    def test_visibility_is_no_dependency(self):
        self.build('package(default_visibility = ["//torch_dcp/storage:__subpackages__"])\n'
                   'cc_library(name = "x", visibility = ["//torch_dcp/plan:__pkg__"])\n')

    def test_checkpoint_depends_on_interfaces(self):
        path = "torch_dcp/checkpoint/BUILD.bazel"
        self.build('cc_library(name = "x", deps = ["//torch_dcp/storage:interface"])\n', path=path)
        self.build('cc_library(name = "x", deps = ["//torch_dcp/storage:filesystem"])\n', (1, "floor-dep"), path=path)

    def test_umbrella_target(self):
        self.build('cc_library(name = "x", deps = ["//torch_dcp"])\n', (1, "floor-dep"))
        self.build('cc_library(name = "x", deps = ["//torch_dcp"])\n', path="torch_dcp/examples/BUILD.bazel")

    def test_library(self):
        self.build('cc_library(name = "x", deps = ["@system_zlib//:zlib"])\n', (1, "library"))
        self.build('cc_library(name = "x", deps = ["@system_zlib//:zlib"])\n', path="torch_dcp/format/BUILD.bazel")

    def test_unreadable(self):
        self.build("cc_library(\n", (1, "build-file"))

    def test_unlisted_source(self):
        self.assertEqual(self.findings({"torch_dcp/io/BUILD.bazel": 'cc_library(name = "x", srcs = ["a.cc"], hdrs = [":b.h"])\n',
                                        "torch_dcp/io/a.cc": "", "torch_dcp/io/b.h": HEADER, "torch_dcp/io/c.cc": "",
                                        "torch_dcp/io/d/e.cc": ""}),
                         [("torch_dcp/io/c.cc", 1, "unlisted-source"), ("torch_dcp/io/d/e.cc", 1, "unlisted-source")])

    def test_source_without_any_build_file(self):
        self.assertEqual(self.findings({"torch_dcp/io/a.cc": "", "test/BUILD.bazel": ""}), [("torch_dcp/io/a.cc", 1, "unlisted-source")])

    def test_globs(self):
        build = BuildFile("a/BUILD", 'x(srcs = glob(["*.cc", "b/**/*.h"]))')
        for path, listed in [("a/x.cc", True), ("a/b/x.cc", False), ("a/b/x.h", True), ("a/b/c/d/x.h", True), ("a/c/x.h", False)]:
            self.assertEqual(build.lists(path), listed, path)


class Tracked(unittest.TestCase):
    def test_git_says_what_belongs_to_the_tree(self):
        with Tree({"torch_dcp/io/a.cc": "", ".gitignore": "ignored.txt\n", "ignored.txt": "/" + "work/\n", "new.txt": "/" + "work/\n"}) as tree:
            subprocess.run(["git", "init", "-q", str(tree.root)], check=True)
            self.assertEqual(tree.findings(), [("new.txt", 1, "machine-path")])

    def test_program(self):
        with Tree({"torch_dcp/io/a.h": ""}) as tree:
            run = subprocess.run([sys.executable, ROOT / "tools/lint/check_floors.py", tree.root], stdout=subprocess.PIPE, text=True)
            self.assertEqual(run.stdout.splitlines()[0], "torch_dcp/io/a.h:1: pragma-once: begin the header with #pragma once")
            self.assertEqual(run.returncode, 1)
            (tree.root / "torch_dcp/io/a.h").write_text(HEADER)
            run = subprocess.run([sys.executable, ROOT / "tools/lint/check_floors.py", tree.root], stdout=subprocess.PIPE, text=True)
            self.assertEqual((run.stdout, run.returncode), ("", 0))


if __name__ == "__main__":
    unittest.main()
