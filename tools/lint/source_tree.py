"""The files of a checkout, as the lint sees them."""

import os
import pathlib
import subprocess
from typing import NamedTuple


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    advice: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.rule}: {self.advice}"


class SourceTree:
    """The files under a root by their paths from it, with `/`."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.paths = self._tracked() or self._walked()

    def _tracked(self):
        """What git has or would add; None where this is no git checkout."""
        git = ["git", "-c", "safe.directory=*", "-C", str(self.root)]
        try:
            if not (self.root / ".git").exists():
                return None
            out = subprocess.run(git + ["ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                 check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        except (OSError, subprocess.CalledProcessError):
            return None
        return sorted({p for p in os.fsdecode(out).split("\0") if p and self._is_plain(self.root / p)})

    def _walked(self):
        paths = []
        for folder, folders, files in os.walk(self.root):
            folders[:] = [f for f in folders if f not in (".git", "__pycache__") and not os.path.islink(os.path.join(folder, f))]
            for name in files:
                path = pathlib.Path(folder, name)
                if self._is_plain(path):
                    paths.append(path.relative_to(self.root).as_posix())
        return sorted(paths)

    @staticmethod
    def _is_plain(path):
        return path.is_file() and not path.is_symlink()

    def lines(self, path):
        """The lines of a text file; None for a binary one."""
        data = (self.root / path).read_bytes()
        if b"\0" in data:
            return None
        try:
            return data.decode().splitlines()
        except UnicodeDecodeError:
            return None


def workspace_root(script):
    """The checkout that a script of tools/lint lies in, also when it runs as a test:
    Bazel's links lead to the sources."""
    script = pathlib.Path(script).resolve()
    root = script.parents[2]
    if script.parent != root / "tools/lint" or not (root / "WORKSPACE").exists():
        raise SystemExit(f"lint: {root} is not the checkout: this test must run outside the sandbox")
    return root
