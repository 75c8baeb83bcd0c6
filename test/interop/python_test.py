#!/usr/bin/env python3
"""What this library writes, opened by the real PyTorch; and training that goes on from one side to the other."""

import json
import os
import subprocess
import sys
import unittest

import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

from interop import CHECK, DCP, FIXTURES, Folders, check, checker, lacks_dtypes

TRAINER = "test/interop/trainer"
SAFETENSORS_COPY = "test/interop/safetensors_copy"
EXAMPLE = "torch_dcp/examples/train"

# Fixtures of which a copy has all that the checker looks at.
COPIED = [
    "alignment", "dtensor_2d_mesh", "dtensor_4ranks", "dtypes", "empty_checkpoint", "file_per_item", "keys", "many_keys",
    "no_collectives_sharded", "objects", "objects_unflattened", "old_torch_2_0", "optimizer_lbfgs", "optimizers_flat", "optimizers_nested",
    "replicated_3ranks", "sharded_tensor_3ranks", "single_model_adam_nested", "strides", "threads2",
    "zstd",
]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class PythonOpensCopies(Folders):
    """`dcp copy` on 1 and on 3 ranks: uneven and empty shards, several threads."""

    def check_copy(self, fixture, ranks, threads, *options):
        copy = self.path("-".join((fixture, str(ranks), *options)))
        if fixture == "dtypes" and lacks_dtypes():
            with self.assertRaisesRegex(AssertionError, "'t_bcomplex32': this LibTorch has no dtype bcomplex32"):
                run(DCP, "copy", f"{FIXTURES}/{fixture}/ckpt", copy, "--ranks", str(ranks), *options)
            return
        run(DCP, "copy", f"{FIXTURES}/{fixture}/ckpt", copy, "--ranks", str(ranks), "--threads", str(threads), *options)
        with open(f"{FIXTURES}/{fixture}/expected.json") as file:
            expected = json.load(file)
        # Ours is always of the present form, whatever form the source had.
        expected.pop("lenient_form", None)
        expected.pop("ranks", None)
        with open(self.path("expected.json"), "w") as file:
            json.dump(expected, file)
        code, printed = check(copy, self.path("expected.json"))
        self.assertEqual(code, 0, printed)

    def test_copies(self):
        for fixture in COPIED:
            for ranks, threads in ((1, 1), (3, 2)):
                with self.subTest(fixture=fixture, ranks=ranks):
                    self.check_copy(fixture, ranks, threads)

    def test_compressed_copies(self):
        for fixture in ("dtensor_4ranks", "dtypes", "objects", "zstd"):
            with self.subTest(fixture=fixture):
                self.check_copy(fixture, 3, 2, "--zstd")

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


class PythonOpensSafetensors(Folders):
    """What SafetensorsWriter saved on 1 and 3 ranks, through PyTorch's own reader and the safetensors package."""

    FIXTURES = ["hf_single", "hf_mapped", "hf_sharded_4ranks", "hf_consolidated_2ranks"]
    FORMS = [("whole", 1), ("mapped", 1), ("sharded", 1), ("sharded", 3), ("consolidated", 3), ("mapped_consolidated", 3)]

    def check_folder(self, folder, expected):
        """Also against the package's own view of each file: what it opens, and that its bytes are the package's."""
        code, printed = check(folder, expected, "--kind", "hf")
        self.assertEqual(code, 0, printed)
        for name in os.listdir(folder):
            if not name.endswith(".safetensors"):
                continue
            path = os.path.join(folder, name)
            with safetensors.safe_open(path, framework="pt") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}
                metadata = file.metadata()
            self.assertEqual(metadata["format"], "pt")
            with open(path, "rb") as file:
                ours = file.read()
            theirs = safetensors.torch.save(tensors, {"format": "pt"})
            self.assertEqual(self.data_of(ours), self.data_of(theirs), path)

    @staticmethod
    def data_of(file):
        """The tensors' part of the header, and the elements."""
        size = int.from_bytes(file[:8], "little")
        if size % 8:
            raise AssertionError(f"data begin at byte {8 + size}")
        header = json.loads(file[8:8 + size])
        header.pop("__metadata__", None)
        return list(header.items()), file[8 + size:]

    def test_forms(self):
        # The first has every dtype and shape; the others are of different forms themselves.
        for form, ranks in self.FORMS:
            self.check_form(self.FIXTURES[0], form, ranks)
        for fixture in self.FIXTURES[1:]:
            self.check_form(fixture, "mapped_consolidated", 3)

    def check_form(self, fixture, form, ranks):
        with self.subTest(fixture=fixture, form=form, ranks=ranks):
            source, expected = f"{FIXTURES}/{fixture}/ckpt", f"{FIXTURES}/{fixture}/expected.json"
            copy = self.path(f"{fixture}-{form}-{ranks}")
            run(SAFETENSORS_COPY, source, copy, form, str(ranks))
            self.check_folder(copy, expected)
            if form.endswith("consolidated"):
                self.check_folder(os.path.join(copy, "sharded"), expected)
            if form != "sharded":
                self.check_index(copy, expected)

    def check_index(self, folder, expected):
        with open(os.path.join(folder, "model.safetensors.index.json")) as file:
            index = json.load(file)
        with open(expected) as file:
            entries = json.load(file)["entries"]
        self.assertEqual(sorted(index["weight_map"]), sorted(entries))
        self.assertEqual(index["metadata"]["total_size"], sum(len(entry["hex"]) // 2 for entry in entries.values()))
        for key, name in index["weight_map"].items():
            with safetensors.safe_open(os.path.join(folder, name), framework="pt") as file:
                self.assertIn(key, file.keys())

    def test_pytorch_fails_on_a_save_that_did_not_end(self):
        folder = self.path("copy")
        run(SAFETENSORS_COPY, f"{FIXTURES}/hf_mapped/ckpt", folder, "whole", "1")
        with open(os.path.join(folder, "model-save-unfinished.safetensors"), "w") as file:
            file.write("unfinished: a save into this folder has not come to its end\n")
        with self.assertRaisesRegex(Exception, "header"):
            HuggingFaceStorageReader(folder).read_metadata()


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
    if name == "rmsprop":
        return torch.optim.RMSprop(model.parameters(), lr=0.0625, alpha=0.75, momentum=0.5, centered=True, eps=0.125)
    if name == "adagrad":
        return torch.optim.Adagrad(model.parameters(), lr=0.125, lr_decay=0.25, initial_accumulator_value=0.5)
    if name == "lbfgs":
        return torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=2, history_size=4)
    return torch.optim.SGD(model.parameters(), lr=0.0625, momentum=0.5)


def train(model, optimizer, steps):
    batch = (torch.arange(12, dtype=torch.float32).reshape(3, 4) - 6) / 8

    def loss():
        optimizer.zero_grad()
        total = model(batch).square().sum()
        total.backward()
        return total

    for _ in range(steps):
        optimizer.step(loss)


def load(model, optimizer, path):
    if isinstance(optimizer, torch.optim.LBFGS):
        # Python cannot make its state before the first step, which needs a closure, and misses a state of the other
        # parameters if it is strict.
        state = _load_state_dict_from_keys(checkpoint_id=path)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"],
                       options=StateDictOptions(strict=False))
        return
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
    OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop", "adagrad", "lbfgs")

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
