"""What the tests of this folder share: the checkpoints that Python wrote, the checker, and a folder for each test."""

import contextlib
import functools
import importlib.util
import io
import os
import re
import shutil
import subprocess
import tempfile
import unittest

CHECK = "test/golden/check_with_pytorch.py"
# Under Bazel its data are links, which are refused in a checkpoint.
FIXTURES = shutil.copytree("test/golden/fixtures", os.path.join(tempfile.mkdtemp(), "fixtures"))
DCP = "tools/dcp/dcp"

_spec = importlib.util.spec_from_file_location("check_with_pytorch", CHECK)
checker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(checker)


def check(*arguments):
    """Runs the checker; returns its exit code and what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = checker.main(list(arguments))
    return code, out.getvalue()


@functools.cache
def lacks_dtypes():
    """Whether this LibTorch lacks a dtype of the fixture `dtypes`: all have been there since 2.14."""
    printed = subprocess.run([DCP, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in re.search(r"LibTorch (\d+)\.(\d+)", printed).groups()) < (2, 14)


class Folders(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)
