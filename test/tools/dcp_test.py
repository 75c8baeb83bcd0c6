#!/usr/bin/env python3
"""The tool `dcp`: what it prints, what its errors name, and its exit codes."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

DCP = "tools/dcp/dcp"
# Under Bazel its data are links, which are refused in a checkpoint.
FIXTURES = shutil.copytree("test/golden/fixtures", os.path.join(tempfile.mkdtemp(), "fixtures"))
FINE, BAD_CHECKPOINT, WRONG_USE = 0, 1, 2


def run(*arguments):
    return subprocess.run([DCP, *arguments], capture_output=True, text=True, timeout=120)


class DcpTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def copy_of(self, fixture):
        copy = self.path(fixture)
        shutil.copytree(f"{FIXTURES}/{fixture}/ckpt", copy)
        for name in os.listdir(copy):
            os.chmod(os.path.join(copy, name), 0o644)
        return copy

    def assert_bad(self, done, *words):
        self.assertEqual(done.returncode, BAD_CHECKPOINT, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        for word in words:
            self.assertIn(word, done.stderr)

    def test_ls_lists_keys_dtypes_shapes_chunks_and_bytes(self):
        done = run("ls", f"{FIXTURES}/sharded_tensor_3ranks/ckpt")
        self.assertEqual(done.returncode, FINE, done.stderr)
        rows = {line.split()[0]: line for line in done.stdout.splitlines()}
        self.assertIn("[7, 5]", rows["rows"])
        self.assertIn("float32", rows["rows"])
        # Three chunks of 1577 bytes each.
        self.assertEqual(rows["rows"].split()[-2:], ["3", str(3 * 1577)])
        self.assertTrue(done.stdout.splitlines()[-1].startswith("5 keys, "))

    def test_ranks_that_saved_alone_are_seen_together(self):
        done = run("ls", f"{FIXTURES}/no_collectives_sharded/ckpt")
        self.assertEqual(done.returncode, FINE, done.stderr)
        self.assertIn("seen together", done.stdout)
        self.assertIn("[8, 3]", done.stdout)
        self.assertNotIn("rank 0:", done.stdout)
        # Two ranks with tensors of different sizes under one key: each by itself, and why.
        done = run("ls", f"{FIXTURES}/no_collectives_2ranks/ckpt")
        self.assertEqual(done.returncode, FINE, done.stderr)
        for text in ("key 'w'", "rank 0:", "rank 1:"):
            self.assertIn(text, done.stdout)

    def test_dump_is_json(self):
        done = run("dump", "--json", f"{FIXTURES}/objects/ckpt")
        self.assertEqual(done.returncode, FINE, done.stderr)
        dump = json.loads(done.stdout)
        self.assertEqual(dump["entries"]["int"]["value"], {"t": "int", "v": "7"})
        with open(f"{FIXTURES}/objects/expected.json") as file:
            self.assertEqual(dump["entries"], json.load(file)["entries"])

    def test_copy_of_a_copy_dumps_the_same(self):
        once, twice = self.path("once"), self.path("twice")
        self.assertEqual(run("copy", f"{FIXTURES}/optimizers_nested/ckpt", once, "--ranks", "3").returncode, FINE)
        self.assertEqual(run("copy", once, twice, "--ranks", "2", "--threads", "2").returncode, FINE)
        entries = [json.loads(run("dump", "--json", path).stdout)["entries"] for path in (once, twice)]
        for one in entries:
            for entry in one.values():
                entry.pop("stored")
        self.assertEqual(*entries)

    def test_wrong_use(self):
        for arguments in (
            (),
            ("ls",),
            ("frob", "x"),
            ("dump", f"{FIXTURES}/keys/ckpt"),
            ("copy", "a", "b"),
            ("copy", "a", "b", "--ranks", "0"),
            ("copy", "a", "b", "--ranks", "many"),
            ("ls", ""),
            ("copy", "a", "", "--ranks", "1"),
        ):
            with self.subTest(arguments=arguments):
                self.assertEqual(run(*arguments).returncode, WRONG_USE)
        self.assertEqual(run("--help").returncode, FINE)

    def test_no_checkpoint(self):
        missing = self.path("missing")
        for arguments in (("ls", missing), ("dump", "--json", missing), ("copy", missing, self.path("x"), "--ranks", "2")):
            with self.subTest(arguments=arguments):
                self.assert_bad(run(*arguments), missing, "incomplete checkpoint")

    def test_cut_metadata_names_the_file(self):
        copy = self.copy_of("threads2")
        metadata = os.path.join(copy, ".metadata")
        with open(metadata, "r+b") as file:
            file.truncate(os.path.getsize(metadata) // 2)
        self.assert_bad(run("ls", copy), metadata)

    def test_cut_data_names_file_and_key(self):
        copy = self.copy_of("no_crc")
        data = os.path.join(copy, "__0_0.distcp")
        with open(data, "r+b") as file:
            file.truncate(os.path.getsize(data) - 16)
        self.assert_bad(run("dump", "--json", copy), data, "w at [0, 0]")
        self.assert_bad(run("copy", copy, self.path("x"), "--ranks", "2"), data, "w at [0, 0]")

    def test_flipped_bit_is_found(self):
        copy = self.copy_of("threads2")
        entries = json.loads(run("dump", "--json", copy).stdout)["entries"]
        key, entry = next((k, e) for k, e in entries.items() if e["kind"] == "tensor" and e["hex"])
        place = entry["stored"][0]
        data = os.path.join(copy, place["file"])
        with open(data, "r+b") as file:
            content = file.read()
            position = content.index(bytes.fromhex(entry["hex"]), place["offset"])
            file.seek(position)
            file.write(bytes([content[position] ^ 1]))
        self.assert_bad(run("dump", "--json", copy), data, key, "CRC-32")

    def test_damaged_object_names_its_file(self):
        copy = self.copy_of("objects")
        place = json.loads(run("dump", "--json", copy).stdout)["entries"]["int"]["stored"][0]
        data = os.path.join(copy, place["file"])
        with open(data, "r+b") as file:
            content = file.read()
            position = content.index(b"K\x07.", place["offset"])  # the int 7
            file.seek(position + 1)
            file.write(b"\x05")
        self.assert_bad(run("dump", "--json", copy), data, "key int", "CRC-32")

    def test_ls_keeps_keys_on_their_lines(self):
        done = run("ls", f"{FIXTURES}/keys/ckpt")
        self.assertEqual(done.returncode, FINE, done.stderr)
        with open(f"{FIXTURES}/keys/expected.json") as file:
            keys = json.load(file)["entries"]
        self.assertTrue(any("\n" in key for key in keys))
        self.assertEqual(len(done.stdout.splitlines()), len(keys) + 2)

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([DCP, "ls", f"{FIXTURES}/keys/ckpt"], stdout=full, stderr=subprocess.PIPE, timeout=120)
        self.assertEqual(done.returncode, BAD_CHECKPOINT)

    def test_destination_that_is_a_file(self):
        taken = self.path("taken")
        with open(taken, "w") as file:
            file.write("mine")
        self.assert_bad(run("copy", f"{FIXTURES}/no_crc/ckpt", taken, "--ranks", "2"), taken, "rank 0", "rank 1")
        with open(taken) as file:
            self.assertEqual(file.read(), "mine")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
