#!/usr/bin/env python3
"""Files of torch.save that this library writes, opened by the real PyTorch; and PyTorch's files, read by this library."""

import collections
import json
import os
import subprocess
import sys
import unittest
import warnings

import torch

from interop import FIXTURES, Folders, check

warnings.simplefilter("ignore")

FILES = "test/interop/torch_files"
FORMS = ("zip", "legacy")


def files(*arguments):
    done = subprocess.run([FILES, *arguments], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def state(with_new_dtypes=True):
    """What a training job may hold, tied weights and views too."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.25)
    model(torch.rand(5, 3)).sum().backward()
    optimizer.step()
    base = torch.rand(6, 4)
    result = {
        "model": model.state_dict(),
        "optim": optimizer.state_dict(),
        "base": base, "tied": base, "view": base[1:4, ::2], "transposed": base.t(),
        "parameter": torch.nn.Parameter(torch.rand(2)), "frozen": torch.nn.Parameter(torch.rand(2), requires_grad=False),
        "conj": torch.rand(3, dtype=torch.complex64).conj(),
        "expanded": torch.rand(1).expand(4), "scalar": torch.tensor(3, dtype=torch.int64), "empty": torch.empty(0, 3),
        "step": 2**40, "negative": -7, "raw": b"\x00\xff", "text": "\u00e4\u4e2d", "nothing": None, "on": True,
        "ordered": collections.OrderedDict([("b", 1), ("a", (1, 2.5, "x", [None]))]),
        "many": {str(i): i for i in range(2500)},
    }
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.uint8, torch.bool):
        result[str(dtype)] = torch.arange(5).to(dtype)
    if with_new_dtypes:
        for dtype in (torch.uint16, torch.float8_e4m3fn, torch.float8_e5m2):
            result[str(dtype)] = torch.arange(5).to(torch.float32).to(dtype)
    values = torch.arange(12.0).reshape(4, 3)
    result["q"] = torch.quantize_per_tensor(values, 0.25, 3, torch.quint8)
    result["qc"] = torch.quantize_per_channel(values, torch.tensor([0.5, 0.25, 0.1], dtype=torch.float64),
                                              torch.tensor([1, 2, 3]), 1, torch.qint8)
    return result


class TorchSave(Folders):
    def assert_same(self, path, expected):
        code, printed = check(path, expected)
        self.assertEqual(code, 0, printed)

    def test_fixtures(self):
        expected = f"{FIXTURES}/torch_save_file/expected.json"
        for name in ("model.pt", "model_legacy.pt", "back.pt"):
            for form in FORMS:
                for command in ("rewrite", "stream"):
                    with self.subTest(name=name, form=form, command=command):
                        files(command, f"{FIXTURES}/torch_save_file/{name}", self.path("ours.pt"), form)
                        self.assert_same(self.path("ours.pt"), expected)

    def test_state_of_a_job(self):
        for theirs_is_legacy in (False, True):
            for form in FORMS:
                with self.subTest(theirs_is_legacy=theirs_is_legacy, form=form):
                    source = state(with_new_dtypes=form == "zip" and not theirs_is_legacy)
                    torch.save(source, self.path("theirs.pt"), _use_new_zipfile_serialization=not theirs_is_legacy)
                    files("rewrite", self.path("theirs.pt"), self.path("ours.pt"), form)
                    check(self.path("theirs.pt"), "--dump", self.path("expected.json"))
                    with open(self.path("expected.json")) as file:
                        expected = json.load(file)
                    # Read as a dict and a tuple, as the library's own values are.
                    for entry in expected["entries"].values():
                        if entry.get("value", {}).get("t") == "ordereddict":
                            entry["value"]["t"] = "dict"
                    with open(self.path("expected.json"), "w") as file:
                        json.dump(expected, file)
                    self.assert_same(self.path("ours.pt"), self.path("expected.json"))
                    # What the values do not show. No class of ours is needed.
                    ours = torch.load(self.path("ours.pt"), weights_only=True)
                    self.assertIs(ours["base"], ours["tied"])
                    pointer = ours["base"].untyped_storage().data_ptr()
                    for key in ("view", "transposed"):
                        self.assertEqual(ours[key].untyped_storage().data_ptr(), pointer, key)
                        self.assertEqual(ours[key].stride(), source[key].stride(), key)
                    self.assertEqual(ours["expanded"].stride(), (0,))
                    self.assertTrue(ours["parameter"].requires_grad)
                    self.assertFalse(ours["frozen"].requires_grad)
                    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
                    model.load_state_dict(ours["model"])
                    optimizer = torch.optim.Adam(model.parameters())
                    optimizer.load_state_dict(ours["optim"])
                    self.assertEqual(optimizer.param_groups[0]["betas"], (0.9, 0.999))

    def test_quantized_checkpoints(self):
        fixture = f"{FIXTURES}/dtypes_quantized"
        files("from_dcp", f"{fixture}/ckpt", self.path("q.pt"))
        self.assert_same(self.path("q.pt"), f"{fixture}/expected.json")
        files("to_dcp", self.path("q.pt"), self.path("folder"))
        self.assert_same(self.path("folder"), f"{fixture}/expected.json")

    def test_the_check_can_fail(self):
        torch.save({"a": torch.ones(2)}, self.path("theirs.pt"))
        files("rewrite", self.path("theirs.pt"), self.path("ours.pt"), "zip")
        torch.save({"a": torch.zeros(2)}, self.path("other.pt"))
        check(self.path("other.pt"), "--dump", self.path("expected.json"))
        code, printed = check(self.path("ours.pt"), self.path("expected.json"))
        self.assertEqual(code, 1, printed)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
