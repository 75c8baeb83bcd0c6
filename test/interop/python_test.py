#!/usr/bin/env python3
"""What this library writes, opened by the real PyTorch; and training that goes on from one side to the other."""

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

CHECK = "test/golden/check_with_pytorch.py"
FIXTURES = "test/golden/fixtures"
DCP = "tools/dcp/dcp"
TRAINER = "test/interop/trainer"
EXAMPLE = "torch_dcp/examples/train"

# Fixtures whose every key `dcp copy` can carry over; the others hold what has no reader yet
# (test/golden/fixtures_test.cc says which) or no metadata of the whole.
COPIED = [
    "alignment", "dtensor_2d_mesh", "dtensor_4ranks", "dtypes", "empty_checkpoint", "file_per_item", "keys", "many_keys",
    "objects", "objects_unflattened", "old_torch_2_0", "optimizer_lbfgs", "optimizers_flat", "optimizers_nested",
    "replicated_3ranks", "sharded_tensor_3ranks", "single_model_adam_nested", "strides", "threads2",
]

spec = importlib.util.spec_from_file_location("check_with_pytorch", CHECK)
checker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(checker)


def check(*arguments):
    """Runs the checker; returns its exit code and what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = checker.main(list(arguments))
    return code, out.getvalue()


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Folders(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)


class PythonOpensCopies(Folders):
    """`dcp copy` on 1 and on 3 ranks: uneven and empty shards, several threads."""

    def check_copy(self, fixture, ranks, threads):
        copy = self.path(f"{fixture}-{ranks}")
        run(DCP, "copy", f"{FIXTURES}/{fixture}/ckpt", copy, "--ranks", str(ranks), "--threads", str(threads))
        with open(f"{FIXTURES}/{fixture}/expected.json") as file:
            expected = json.load(file)
        # Ours is always of the present form, whatever form the source had.
        expected.pop("lenient_form", None)
        with open(self.path("expected.json"), "w") as file:
            json.dump(expected, file)
        code, printed = check(copy, self.path("expected.json"))
        self.assertEqual(code, 0, printed)

    def test_copies(self):
        for fixture in COPIED:
            for ranks, threads in ((1, 1), (3, 2)):
                with self.subTest(fixture=fixture, ranks=ranks):
                    self.check_copy(fixture, ranks, threads)

    def test_dump_is_what_pytorch_reads(self):
        copy = self.path("copy")
        run(DCP, "copy", f"{FIXTURES}/optimizers_nested/ckpt", copy, "--ranks", "2")
        with open(self.path("dump.json"), "w") as file:
            file.write(run(DCP, "dump", "--json", copy))
        code, printed = check(copy, self.path("dump.json"))
        self.assertEqual(code, 0, printed)

    def test_the_check_can_fail(self):
        copy = self.path("copy")
        run(DCP, "copy", f"{FIXTURES}/threads2/ckpt", copy, "--ranks", "1")
        with open(f"{FIXTURES}/threads2/expected.json") as file:
            expected = json.load(file)
        entry = next(e for e in expected["entries"].values() if e["kind"] == "tensor" and e["hex"])
        entry["hex"] = ("1" if entry["hex"][0] == "0" else "0") + entry["hex"][1:]
        with open(self.path("expected.json"), "w") as file:
            json.dump(expected, file)
        code, printed = check(copy, self.path("expected.json"))
        self.assertEqual(code, 1, printed)


def make_model():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.arange(parameter.numel(), dtype=torch.float32).reshape(parameter.shape)
            parameter.copy_((values - 5) / 16)
    return model


def make_optimizer(name, model):
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.125, betas=(0.75, 0.875))
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=0.125, weight_decay=0.25)
    return torch.optim.SGD(model.parameters(), lr=0.0625, momentum=0.5)


def train(model, optimizer, steps):
    batch = (torch.arange(12, dtype=torch.float32).reshape(3, 4) - 6) / 8
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).square().sum().backward()
        optimizer.step()


def load(model, optimizer, path):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optim": optimizer_state}
    dcp.load(state, checkpoint_id=path, no_dist=True)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])


def save(model, optimizer, path):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optim": optimizer_state}, checkpoint_id=path, no_dist=True)


def entries(path):
    """All that PyTorch reads from a checkpoint, by flat key."""
    return checker.read_dcp(path)[1]


class PythonOpensTheExample(Folders):
    """What the training example saved: AdamW's moments in shards of several ranks, random states, losses."""

    def test_example(self):
        run(EXAMPLE, "--text", CHECK, "--dir", self.path("run"), "--ranks", "3", "--steps", "2", "--save-every", "2",
            "--batch", "3", "--layers", "1", "--width", "20", "--context", "8")
        (name,) = os.listdir(self.path("run"))
        checkpoint = os.path.join(self.path("run"), name)
        with open(self.path("dump.json"), "w") as file:
            file.write(run(DCP, "dump", "--json", checkpoint))
        code, printed = check(checkpoint, self.path("dump.json"))
        self.assertEqual(code, 0, printed)
        read = entries(checkpoint)
        moments = [key for key in read if key.startswith("optim.state.") and key.endswith(".exp_avg")]
        self.assertTrue(any(len(read[key]["chunks"]) == 3 for key in moments), moments)
        parameters = {key.removeprefix("model.") for key in read if key.startswith("model.")}
        self.assertEqual({key[len("optim.state."):-len(".exp_avg")] for key in moments}, parameters)


class TrainingGoesOn(Folders):
    OPTIMIZERS = ("adam", "adamw", "sgd")

    def assert_same_state(self, one, other):
        """The same bits in every tensor, the same numbers in every option."""
        self.assertEqual(sorted(one), sorted(other))
        for key, entry in one.items():
            for field in ("kind", "dtype", "shape", "hex", "path"):
                self.assertEqual(entry.get(field), other[key].get(field), f"{key}: {field}")
            if entry["kind"] == "bytes":
                self.assertEqual(number(entry["value"]), number(other[key]["value"]), key)

    def test_python_goes_on_from_ours(self):
        for name in self.OPTIMIZERS:
            with self.subTest(optimizer=name):
                ours = self.path(f"{name}-ours")
                run(TRAINER, name, "3", "-", ours)
                code, printed = check(ours, "--lint")
                self.assertEqual(code, 0, printed)
                model = make_model()
                optimizer = make_optimizer(name, model)
                load(model, optimizer, ours)
                again = self.path(f"{name}-again")
                save(model, optimizer, again)
                self.assert_same_state(entries(ours), entries(again))
                train(model, optimizer, 2)
                self.compare_with_straight_run(name, 5, model)

    def test_ours_goes_on_from_python(self):
        for name in self.OPTIMIZERS:
            with self.subTest(optimizer=name):
                theirs = self.path(f"{name}-theirs")
                model = make_model()
                optimizer = make_optimizer(name, model)
                train(model, optimizer, 3)
                save(model, optimizer, theirs)
                again = self.path(f"{name}-again")
                run(TRAINER, name, "0", theirs, again)
                self.assert_same_state(entries(theirs), entries(again))
                later = self.path(f"{name}-later")
                run(TRAINER, name, "2", theirs, later)
                load(model, optimizer, later)
                self.compare_with_straight_run(name, 5, model)

    def compare_with_straight_run(self, name, steps, model):
        # Python's and LibTorch's optimizers order their arithmetic differently, so the last bits of a step may
        # differ; that the state is the same bit for bit is compared before.
        straight = make_model()
        train(straight, make_optimizer(name, straight), steps)
        for (key, one), other in zip(straight.named_parameters(), model.parameters()):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, msg=key)


def number(value):
    """An option as a number where it is one: 0 and 0.0 are the same option."""
    if value["t"] in ("int", "float"):
        return float(value["v"])
    if value["t"] in ("tuple", "list"):
        return [number(item) for item in value["v"]]
    return value


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
