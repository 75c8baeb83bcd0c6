#!/usr/bin/env python3
"""What `dcp convert` writes, opened by the real PyTorch, and what PyTorch's own conversions make of it."""

import json
import os
import subprocess
import sys
import unittest

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp

from interop import DCP, FIXTURES, Folders, check, checker, lacks_dtypes

# Without objects that this library does not understand, which no torch.save file of its own can hold.
TO_TORCH = [
    "alignment", "dtensor_4ranks", "dtypes", "file_per_item", "keys", "many_keys", "optimizer_lbfgs", "optimizers_flat",
    "optimizers_nested", "replicated_3ranks", "single_model_adam_nested", "strides", "threads2", "torch_save_file",
]
# With tensors of no other dtypes than safetensors have.
TO_SAFETENSORS = ["alignment", "dtensor_2d_mesh", "dtensor_4ranks", "optimizers_nested", "sharded_tensor_3ranks"]


class Conversions(Folders):
    def convert(self, *arguments):
        done = subprocess.run([DCP, "convert", "--follow-links", *arguments], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def check(self, path, expected):
        with open(self.path("expected.json"), "w") as file:
            json.dump(expected, file)
        code, printed = check(path, self.path("expected.json"))
        self.assertEqual(code, 0, printed)

    def expected(self, fixture):
        with open(f"{FIXTURES}/{fixture}/expected.json") as file:
            expected = json.load(file)
        # What is written here is always of the present form, whatever form the source had.
        expected.pop("lenient_form", None)
        return expected

    def test_to_torch_save_and_back(self):
        for fixture in TO_TORCH:
            with self.subTest(fixture=fixture):
                there, back = self.path(fixture + ".pt"), self.path(fixture + "-back")
                if fixture == "dtypes" and lacks_dtypes():
                    with self.assertRaisesRegex(AssertionError, "'t_bcomplex32': this LibTorch has no dtype bcomplex32"):
                        self.convert(f"{FIXTURES}/{fixture}/ckpt", there)
                    continue
                self.convert(f"{FIXTURES}/{fixture}/ckpt", there)
                self.check(there, self.expected(fixture))
                self.convert(there, back)
                self.check(back, self.expected(fixture))

    def test_to_safetensors_and_back(self):
        for fixture in TO_SAFETENSORS:
            with self.subTest(fixture=fixture):
                expected = self.expected(fixture)
                tensors = {k: e for k, e in expected["entries"].items() if e["kind"] == "tensor"}
                for entry in tensors.values():
                    entry.pop("path", None)
                expected["entries"] = tensors
                there, back = self.path(fixture + "-there"), self.path(fixture + "-back")
                self.convert(f"{FIXTURES}/{fixture}/ckpt", there, "--to", "safetensors", "--drop-objects")
                self.check(there, expected)
                self.convert(there, back)
                self.check(back, expected)

    def test_pytorch_reads_it_as_it_reads_its_own(self):
        for fixture in ("optimizers_nested", "single_model_adam_nested"):
            with self.subTest(fixture=fixture):
                ours, theirs = self.path(fixture + "-ours.pt"), self.path(fixture + "-theirs.pt")
                self.convert(f"{FIXTURES}/{fixture}/ckpt", ours)
                dcp_to_torch_save(f"{FIXTURES}/{fixture}/ckpt", theirs)
                torch.load(ours, weights_only=True)
                self.assertEqual(*(self.spell(torch.load(path, weights_only=False)) for path in (ours, theirs)))
                torch_save_to_dcp(ours, self.path(fixture + "-dcp"))
                self.check(self.path(fixture + "-dcp"), self.expected(fixture))

    def spell(self, value):
        """A value with its types, for comparison; dicts without their order."""
        if isinstance(value, torch.Tensor):
            return ("tensor", value.dtype, tuple(value.shape), value.requires_grad, checker.raw_bytes(value))
        if isinstance(value, dict):
            return ("dict", type(value), {key: self.spell(element) for key, element in value.items()})
        if isinstance(value, (list, tuple)):
            return (type(value), [self.spell(element) for element in value])
        return (type(value), value)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
