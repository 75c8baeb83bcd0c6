#!/usr/bin/env python3
"""`dcp verify` and `dcp convert`: what they print, what they leave, and their exit codes."""

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

DCP = "tools/dcp/dcp"
# Under Bazel its data are links, which are refused in a checkpoint.
FIXTURES = shutil.copytree("test/golden/fixtures", os.path.join(tempfile.mkdtemp(), "fixtures"))
FINE, BAD, CANNOT_LOOK = 0, 1, 2

# Nested dicts, lists, tuples, plain values, empty tensors; nothing that this library does not understand.
WHOLE = ["single_model_adam_nested", "optimizers_nested", "optimizer_two_groups", "strides", "keys", "threads2"]
# Nothing but tensors that safetensors can hold.
TENSORS = ["dtensor_4ranks", "dtensor_2d_mesh", "alignment", "zstd"]


def run(*arguments, **options):
    return subprocess.run([DCP, *arguments], capture_output=True, text=True, timeout=300, **options)


def libtorch_version():
    return tuple(int(part) for part in re.search(r"LibTorch (\d+)\.(\d+)", run("--version").stdout).groups())


class Folders(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def copy_of(self, fixture, folder="ckpt"):
        copy = self.path(fixture)
        shutil.copytree(os.path.join(FIXTURES, fixture, folder), copy)
        for name in os.listdir(copy):
            os.chmod(os.path.join(copy, name), 0o755 if os.path.isdir(os.path.join(copy, name)) else 0o644)
        return copy

    def fine(self, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, FINE, done.stdout + done.stderr)
        self.assertEqual(done.stderr, "")
        return done.stdout

    def entries(self, path):
        """All that a dump tells, but for where things lie and for what other forms do not know."""
        entries = json.loads(self.fine("dump", "--json", path))["entries"]
        for entry in entries.values():
            entry.pop("stored")
            entry.pop("requires_grad", None)
        return entries

    def flip(self, path, position):
        with open(path, "r+b") as file:
            file.seek(position)
            byte = file.read(1)
            file.seek(position)
            file.write(bytes([byte[0] ^ 1]))

    def flip_first_tensor(self, checkpoint):
        """Damages one tensor; returns its file and key."""
        entries = json.loads(self.fine("dump", "--json", checkpoint))["entries"]
        key, entry = next((k, e) for k, e in entries.items() if e["kind"] == "tensor" and e["hex"])
        place = entry["stored"][0]
        data = os.path.join(checkpoint, place["file"])
        with open(data, "rb") as file:
            self.flip(data, file.read().index(bytes.fromhex(entry["hex"]), place["offset"]))
        return place["file"], key


class Verify(Folders):
    def test_sound(self):
        for arguments in ((), ("--threads", "4")):
            printed = self.fine("verify", self.copy_of("objects"), *arguments)
            self.assertTrue(printed.splitlines()[-1].endswith(" files: sound"), printed)
            self.assertIn("opaque: ", printed)
            shutil.rmtree(self.path("objects"))

    def test_other_kinds(self):
        shutil.copy(f"{FIXTURES}/torch_save_file/model.pt", self.path("model.pt"))
        self.assertIn("(torch)", self.fine("verify", self.path("model.pt")))
        self.assertIn("(safetensors)", self.fine("verify", self.copy_of("hf_mapped")))

    def test_faults(self):
        copy = self.copy_of("threads2")
        file, key = self.flip_first_tensor(copy)
        done = run("verify", copy)
        self.assertEqual(done.returncode, BAD)
        self.assertEqual(done.stderr, "")
        lines = done.stdout.splitlines()
        self.assertTrue(lines[0].startswith(f"fault: {file}: {key} at "), done.stdout)
        self.assertIn("CRC-32", lines[0])
        self.assertTrue(lines[-1].endswith(": 1 fault"), done.stdout)

    def test_json(self):
        copy = self.copy_of("threads2")
        with open(os.path.join(copy, "notes"), "w") as file:
            file.write("x")
        report = json.loads(self.fine("verify", "--json", copy))
        self.assertEqual((report["is_sound"], report["faults"], report["strays"]), (True, [], ["notes"]))
        self.assertEqual(report["kind"], "dcp")
        self.assertGreater(report["tensors"], 0)
        file, key = self.flip_first_tensor(copy)
        done = run("verify", "--json", copy)
        self.assertEqual(done.returncode, BAD)
        report = json.loads(done.stdout)
        self.assertFalse(report["is_sound"])
        self.assertEqual([(f["file"], f["kind"]) for f in report["faults"]], [(file, "CorruptData")])
        self.assertTrue(report["faults"][0]["key"].startswith(key))

    def test_no_metadata_is_a_fault(self):
        copy = self.copy_of("threads2")
        os.remove(os.path.join(copy, ".metadata"))
        done = run("verify", copy)
        self.assertEqual(done.returncode, BAD)
        self.assertIn("incomplete checkpoint", done.stdout)

    def test_cannot_look(self):
        text = self.path("text")
        with open(text, "w") as file:
            file.write("no checkpoint")
        for path in (self.path("missing"), text):
            done = run("verify", path)
            self.assertEqual(done.returncode, CANNOT_LOOK)
            self.assertEqual(done.stdout, "")
            self.assertIn(path, done.stderr)
        self.assertEqual(run("verify").returncode, CANNOT_LOOK)
        self.assertEqual(run("verify", text, "--threads", "0").returncode, CANNOT_LOOK)

    def test_links_are_followed_when_asked_for(self):
        copy = self.copy_of("no_crc")
        data = os.path.join(copy, "__0_0.distcp")
        os.rename(data, self.path("elsewhere"))
        os.symlink(self.path("elsewhere"), data)
        self.assertEqual(run("verify", copy).returncode, BAD)
        self.fine("verify", "--follow-links", copy)

    def test_progress_on_a_terminal(self):
        master, terminal = pty.openpty()
        done = subprocess.run([DCP, "verify", self.copy_of("threads2")], stdout=subprocess.PIPE, stderr=terminal,
                              text=True, timeout=300)
        os.close(terminal)
        shown = ""
        with contextlib.suppress(OSError):  # the end of what is no longer open
            while part := os.read(master, 4096):
                shown += part.decode()
        os.close(master)
        self.assertEqual(done.returncode, FINE)
        self.assertIn("verify [", shown)
        self.assertIn("##############################]", shown)
        self.assertIn(" MB", shown)
        self.assertTrue(done.stdout.endswith("sound\n"), done.stdout)


class Convert(Folders):
    def test_to_torch_and_back(self):
        for fixture in WHOLE:
            with self.subTest(fixture=fixture):
                source, there, back = self.copy_of(fixture), self.path(fixture + ".pt"), self.path(fixture + "-back")
                self.assertIn("(dcp) -> ", self.fine("convert", source, there))
                self.assertIn("(torch): ", self.fine("verify", there))
                self.assertIn("(torch) -> ", self.fine("convert", there, back))
                self.fine("verify", back)
                self.assertEqual(self.entries(source), self.entries(back))

    def test_to_safetensors_and_back(self):
        for fixture in TENSORS:
            for suffix in (".safetensors", ""):
                with self.subTest(fixture=fixture, suffix=suffix):
                    source = self.path(fixture)
                    if not os.path.exists(source):
                        self.copy_of(fixture)
                    there, back = self.path(fixture + "-there" + suffix), self.path(fixture + "-back" + suffix[:3])
                    printed = self.fine("convert", source, there, "--to", "safetensors", "--drop-objects")
                    self.assertIn("(safetensors)", printed)
                    self.fine("verify", there)
                    self.assertEqual(os.path.isdir(there), suffix == "")
                    self.fine("convert", there, back, "--to", "dcp")
                    expected = {k: e for k, e in self.entries(source).items() if e["kind"] == "tensor"}
                    self.assertGreater(len(expected), 0)
                    for key, entry in expected.items():
                        entry["path"] = [key]
                    self.assertEqual(self.entries(back), expected)

    def test_ranks_without_collectives_become_one(self):
        source = self.copy_of("no_collectives_sharded")
        self.fine("convert", source, self.path("one.pt"))
        self.fine("convert", self.path("one.pt"), self.path("back"))
        tensors = [e for e in self.entries(self.path("back")).values() if e["kind"] == "tensor"]
        self.assertGreater(len(tensors), 0)

    def test_between_the_two(self):
        self.fine("convert", f"{FIXTURES}/torch_save_file/model.pt", self.path("a.safetensors"), "--drop-objects")
        self.fine("convert", self.path("a.safetensors"), self.path("b.pth"))
        self.fine("convert", self.path("b.pth"), self.path("c.safetensors"))
        with open(self.path("a.safetensors"), "rb") as a, open(self.path("c.safetensors"), "rb") as c:
            self.assertEqual(a.read(), c.read())

    def test_both_forms_of_torch_save_are_read(self):
        for name in ("model", "model_legacy"):
            self.fine("convert", f"{FIXTURES}/torch_save_file/{name}.pt", self.path(name))
        self.assertEqual(self.entries(self.path("model")), self.entries(self.path("model_legacy")))

    def test_objects_are_refused_by_name(self):
        source, there = self.copy_of("optimizers_nested"), self.path("x.safetensors")
        done = run("convert", source, there)
        self.assertEqual(done.returncode, BAD)
        objects = [k for k, e in self.entries(source).items() if e["kind"] == "bytes"]
        self.assertGreater(len(objects), 1)
        for key in objects:
            self.assertIn(f"key '{key}'", done.stderr)
        self.assertEqual(os.listdir(self.folder.name), ["optimizers_nested"])
        dropped = [line for line in self.fine("convert", source, there, "--drop-objects").splitlines()
                   if line.startswith("dropped: ")]
        self.assertEqual(len(dropped), len(objects))

    def test_what_is_not_understood_stays_out_of_torch_save(self):
        source, there, back = self.copy_of("objects"), self.path("x.pt"), self.path("back")
        done = run("convert", source, there)
        self.assertEqual(done.returncode, BAD)
        self.assertFalse(os.path.exists(there))
        printed = self.fine("convert", source, there, "--drop-objects")
        dropped = {line.split(": ")[1] for line in printed.splitlines() if line.startswith("dropped: ")}
        self.assertGreater(len(dropped), 0)
        for key in dropped:
            self.assertIn(f"key '{key}'", done.stderr)
        self.fine("convert", there, back)
        self.assertEqual(self.entries(back), {k: e for k, e in self.entries(source).items() if k not in dropped})
        # To DCP it goes as it is.
        self.fine("convert", source, self.path("again"))
        self.assertEqual(self.entries(source), self.entries(self.path("again")))

    def test_nothing_is_overwritten_unasked(self):
        source = self.copy_of("threads2")
        other = self.copy_of("no_crc")
        for name in ("x.pt", "x"):
            there = self.path(name)
            self.fine("convert", source, there)
            before = self.fine("verify", "--json", there)
            done = run("convert", other, there)
            self.assertEqual(done.returncode, BAD)
            self.assertIn(there, done.stderr)
            self.assertEqual(self.fine("verify", "--json", there), before)
            self.fine("convert", other, there, "--overwrite")
            self.assertNotEqual(self.fine("verify", "--json", there), before)
        # A file is no place for a directory, nor the reverse.
        self.assertEqual(run("convert", source, self.path("x.pt"), "--to", "dcp", "--overwrite").returncode, BAD)
        self.assertEqual(run("convert", source, self.path("x"), "--to", "torch", "--overwrite").returncode, BAD)
        self.fine("verify", self.path("x"))

    def test_damaged_source(self):
        source = self.copy_of("threads2")
        file, key = self.flip_first_tensor(source)
        for name in ("x.pt", "x.safetensors", "x"):
            done = run("convert", source, self.path(name), "--drop-objects")
            self.assertEqual(done.returncode, BAD)
            self.assertIn(f"{file}: {key}", done.stderr)
            self.assertEqual(os.listdir(self.folder.name), ["threads2"])

    def test_failures_leave_nothing(self):
        # Complex numbers have no form in safetensors.
        source = self.copy_of("dtypes")
        for name in ("x.safetensors", "x"):
            done = run("convert", source, self.path(name), "--to", "safetensors", "--drop-objects")
            self.assertEqual(done.returncode, BAD)
            # LibTorch 2.6 lacks some dtypes of the fixture, which is found before that.
            self.assertIn("complex128" if libtorch_version() >= (2, 14) else "no dtype bcomplex32", done.stderr)
            self.assertEqual(os.listdir(self.folder.name), ["dtypes"])
        self.assertEqual(run("convert", self.path("missing"), self.path("x")).returncode, BAD)
        self.assertEqual(os.listdir(self.folder.name), ["dtypes"])

    def test_wrong_use(self):
        for arguments in (("convert",), ("convert", "a"), ("convert", "a", ""), ("convert", "a", "b", "--to", "zip")):
            with self.subTest(arguments=arguments):
                self.assertEqual(run(*arguments).returncode, 2)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
