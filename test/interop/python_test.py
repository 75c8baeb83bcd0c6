#!/usr/bin/env python3
"""What this library writes, opened by the real PyTorch; and training that goes on from one side to the other."""

import json
import math
import os
import subprocess
import sys
import tempfile
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
SPLIT_COPY = "test/interop/split_copy"
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

    def test_replicated_tensors_in_pieces(self):
        """Each rank writes its pieces of tensors that all have whole: plain tensors in several chunks."""
        for fixture in ("replicated_3ranks", "optimizers_nested", "strides", "dtensor_2d_mesh"):
            with self.subTest(fixture=fixture):
                copy = self.path(fixture)
                cut_count = int(run(SPLIT_COPY, f"{FIXTURES}/{fixture}/ckpt", copy, "3", "8"))
                self.assertGreater(cut_count, 0)
                code, printed = check(copy, f"{FIXTURES}/{fixture}/expected.json")
                self.assertEqual(code, 0, printed)

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


def make_optimizer(name, model, shift=0.0):
    """`shift` is of the rate: one that is loaded must not be there already."""
    kind, rate, options = OPTIMIZERS[name]
    return kind(model.parameters(), lr=rate + shift, **options)


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, 0.07, {}),
    "sgd_momentum": (torch.optim.SGD, 0.07, {"momentum": 0.6, "dampening": 0.3, "weight_decay": 0.1}),
    "sgd_nesterov": (torch.optim.SGD, 0.07, {"momentum": 0.9, "nesterov": True}),
    "rmsprop": (torch.optim.RMSprop, 0.03, {"alpha": 0.7, "weight_decay": 0.1}),
    "rmsprop_momentum": (torch.optim.RMSprop, 0.03, {"alpha": 0.7, "momentum": 0.6, "eps": 1e-3}),
    "rmsprop_centered": (torch.optim.RMSprop, 0.03, {"alpha": 0.7, "momentum": 0.6, "centered": True, "eps": 1e-3}),
    "adagrad": (torch.optim.Adagrad, 0.1, {"lr_decay": 0.3, "weight_decay": 0.1, "initial_accumulator_value": 0.6}),
    "adam": (torch.optim.Adam, 0.1, {"betas": (0.7, 0.9)}),
    "adam_amsgrad": (torch.optim.Adam, 0.1, {"amsgrad": True, "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, 0.1, {"weight_decay": 0.2}),
    "lbfgs": (torch.optim.LBFGS, 0.5, {"max_iter": 2, "history_size": 4}),
}

# How far LibTorch's parameters and state may be from Python's, in units in the last place of the element, after three
# steps that both made from the same state with the same gradients: not at all but for what stands here. The mean of
# gradients is the only thing that the two compute in another way: LibTorch as `mean * beta + grad * (1 - beta)`, Python
# as `lerp`, which is `mean + (grad - mean) * (1 - beta)`. Adam's and AdamW's `exp_avg` is such a mean, and so is a
# centered RMSprop's `grad_avg`; parameters follow it, and squares of gradients follow the parameters where the weight
# decay is part of a gradient. Where two summands almost cancel, one rounding is many units of what is left: of its
# tensor's largest element no difference is more than `ULPS_OF_LARGEST`. The numbers are the largest that were measured
# with PyTorch 2.14.1, in both directions and with each of LibTorch's sets of instructions (ATEN_CPU_CAPABILITY default,
# avx2, avx512).
ULPS = {
    "rmsprop_centered": {"parameter": 2, "grad_avg": 40, "momentum_buffer": 8},
    "adam": {"parameter": 2, "exp_avg": 40},
    "adam_amsgrad": {"parameter": 7, "exp_avg": 48, "exp_avg_sq": 1, "max_exp_avg_sq": 1},
    "adamw": {"parameter": 128, "exp_avg": 128},
}
ULPS_OF_LARGEST = 2


def make_gradients(steps):
    """Gradients of each step and parameter, which float32 holds exactly."""
    parameters = dict(make_model().named_parameters())
    return {f"step{step}": {name: numbers_like(parameter, 104729 * step + 1299709 * index)
                            for index, (name, parameter) in enumerate(parameters.items())}
            for step in range(steps)}


def numbers_like(tensor, seed):
    return (((torch.arange(tensor.numel()) * 7919 + seed) % 8191 - 4095).float() / 2048).reshape(tensor.shape)


def step_with(gradients, model, optimizer, first, last):
    """The steps from `first` to before `last`, each tensor by itself, as LibTorch makes them."""
    for step in range(first, last):
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[f"step{step}"][name].clone()
        chosen = [{key: group[key] for key in ("foreach", "fused") if key in group} for group in optimizer.param_groups]
        for group, choice in zip(optimizer.param_groups, chosen):
            group.update(dict.fromkeys(choice, False))
        optimizer.step()
        for group, choice in zip(optimizer.param_groups, chosen):
            group.update(choice)


def train(model, optimizer, steps):
    batch = (torch.arange(12, dtype=torch.float32).reshape(3, 4) - 6) / 8

    def loss():
        optimizer.zero_grad()
        total = model(batch).square().sum()
        total.backward()
        return total

    for _ in range(steps):
        optimizer.step(loss)


def options_of(form):
    return StateDictOptions(flatten_optimizer_state_dict=form == "flat")


def load(model, optimizer, path, form="nested"):
    if isinstance(optimizer, torch.optim.LBFGS):
        # Python cannot make its state before the first step, which needs a closure, and misses a state of the other
        # parameters if it is strict.
        state = _load_state_dict_from_keys(checkpoint_id=path)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"],
                       options=StateDictOptions(strict=False))
        return
    model_state, optimizer_state = get_state_dict(model, optimizer, options=options_of(form))
    state = {"model": model_state, "optim": optimizer_state}
    dcp.load(state, checkpoint_id=path, no_dist=True)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"],
                   options=options_of(form))


def save(model, optimizer, path, form="nested"):
    model_state, optimizer_state = get_state_dict(model, optimizer, options=options_of(form))
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


def elements(entry, dtype):
    return torch.frombuffer(bytearray.fromhex(entry["hex"]), dtype=dtype)


def ulps(one, other):
    """The largest distance of elements, as the number of steps from one float32 value to the next."""
    def places(entry):
        bits = elements(entry, torch.int32).to(torch.int64)
        return torch.where(bits < 0, -2**31 - 1 - bits, bits)  # -0.0 is one below 0.0

    return int((places(one) - places(other)).abs().max())


def ulps_of_largest(one, other):
    """The largest distance of elements, in units in the last place of the largest of them."""
    values, others = (elements(each, torch.float32).double() for each in (one, other))
    return float((values - others).abs().max() / 2.0 ** (math.frexp(values.abs().max())[1] - 24))


class TrainingGoesOn(Folders):
    """One side trains and saves, the other loads: the same bits. Both go on with the same gradients: the same bits
    again, or as near as `ULPS` says."""

    STEPS = 3

    def setUp(self):
        super().setUp()
        self.gradients = make_gradients(2 * self.STEPS)
        dcp.save(self.gradients, checkpoint_id=self.path("gradients"), no_dist=True)

    def for_each(self, check_one):
        for name in OPTIMIZERS:
            for form in ("nested", "flat"):
                if name != "lbfgs":
                    with self.subTest(optimizer=name, form=form):
                        check_one(name, form)

    def paths(self, *names):
        folder = tempfile.mkdtemp(dir=self.folder.name)
        return (os.path.join(folder, name) for name in names)

    def trainer(self, name, form, *commands):
        run(TRAINER, name, form, self.path("gradients"), *commands)

    def test_python_goes_on_from_ours(self):
        self.for_each(self.check_python_from_ours)

    def check_python_from_ours(self, name, form):
        ours, again, later, straight = self.paths("ours", "again", "later", "straight")
        self.trainer(name, form, f"train=0:{self.STEPS}", f"save={ours}",
                     f"train={self.STEPS}:{2 * self.STEPS}", f"save={straight}")
        code, printed = check(ours, "--lint")
        self.assertEqual(code, 0, printed)
        model = make_model()
        optimizer = make_optimizer(name, model, shift=1)
        load(model, optimizer, ours, form)
        save(model, optimizer, again, form)
        self.assert_same_state(entries(ours), entries(again))
        step_with(self.gradients, model, optimizer, self.STEPS, 2 * self.STEPS)
        save(model, optimizer, later, form)
        self.assert_near(name, entries(straight), entries(later))

    def test_ours_goes_on_from_python(self):
        self.for_each(self.check_ours_from_python)

    def check_ours_from_python(self, name, form):
        theirs, again, later, straight = self.paths("theirs", "again", "later", "straight")
        model = make_model()
        optimizer = make_optimizer(name, model)
        step_with(self.gradients, model, optimizer, 0, self.STEPS)
        save(model, optimizer, theirs, form)
        step_with(self.gradients, model, optimizer, self.STEPS, 2 * self.STEPS)
        save(model, optimizer, straight, form)
        self.trainer(name, form, f"load={theirs}", f"save={again}",
                     f"train={self.STEPS}:{2 * self.STEPS}", f"save={later}")
        self.assert_same_state(entries(theirs), entries(again))
        self.assert_near(name, entries(straight), entries(later))

    def test_lbfgs_from_ours(self):
        """Its steps need a loss, and sums over all elements: they are not compared by bits, its state is."""
        ours, again = self.path("ours"), self.path("again")
        run(TRAINER, "lbfgs", "nested", "-", "train=0:3", f"save={ours}")
        code, printed = check(ours, "--lint")
        self.assertEqual(code, 0, printed)
        model = make_model()
        optimizer = make_optimizer("lbfgs", model)
        load(model, optimizer, ours)
        save(model, optimizer, again)
        self.assert_same_state(entries(ours), entries(again))
        train(model, optimizer, 2)
        self.compare_with_straight_run(5, model)

    def test_lbfgs_from_python(self):
        theirs, again, later = self.path("theirs"), self.path("again"), self.path("later")
        model = make_model()
        optimizer = make_optimizer("lbfgs", model)
        train(model, optimizer, 3)
        save(model, optimizer, theirs)
        run(TRAINER, "lbfgs", "nested", "-", f"load={theirs}", f"save={again}", "train=3:5", f"save={later}")
        self.assert_same_state(entries(theirs), entries(again))
        load(model, optimizer, later)
        self.compare_with_straight_run(5, model)

    def assert_same_state(self, one, other):
        """The same bits in every tensor, the same numbers in every option. Of a state without entries Python stores
        nothing, this library an empty dict."""
        one, other = ({key: entry for key, entry in each.items() if entry.get("value") != {"t": "dict", "v": []}}
                      for each in (one, other))
        self.assertEqual(sorted(one), sorted(other))
        for key, entry in one.items():
            for field in ("kind", "dtype", "shape", "hex", "path"):
                self.assertEqual(entry.get(field), other[key].get(field), f"{key}: {field}")
            if entry["kind"] == "bytes":
                self.assertEqual(number(entry["value"]), number(other[key]["value"]), key)

    def assert_near(self, name, straight, later):
        measured = {}
        for key in straight:
            if straight[key]["kind"] == "tensor" and straight[key]["hex"] != later[key]["hex"]:
                field = "parameter" if key.startswith("model.") else key.rpartition(".")[2]
                measured[field] = max(measured.get(field, 0), ulps(straight[key], later[key]))
                self.assertLessEqual(ulps_of_largest(straight[key], later[key]), ULPS_OF_LARGEST, f"{name}: {key}")
                later[key] = straight[key]
        self.assert_same_state(straight, later)
        for field, distance in measured.items():
            self.assertLessEqual(distance, ULPS.get(name, {}).get(field, 0), f"{field}; all: {measured}")

    def compare_with_straight_run(self, steps, model):
        straight = make_model()
        train(straight, make_optimizer("lbfgs", straight), steps)
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
