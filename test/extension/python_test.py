#!/usr/bin/env python3
"""torch.ops.torch_dcp in Python's own process, against PyTorch's own torch.distributed.checkpoint.

Started again with RANK PORT FOLDER it is one of two ranks.
"""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import unittest
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as python_dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

torch.ops.load_library("torch_dcp/extension/libtorch_dcp.so")
ops = torch.ops.torch_dcp

WORLD_SIZE = 2
RANK_TIMEOUT = 400  # seconds


def numbers(*shape, dtype=torch.float32):
    count = int(torch.tensor(shape).prod()) if shape else 1
    return (torch.arange(count) % 120).to(dtype).reshape(shape)


def make_state():
    """Dtypes, layouts, sizes and owners of every kind."""
    return {
        "float32": numbers(3, 4) / 7,
        "bfloat16": numbers(5, dtype=torch.bfloat16) / 3,
        "float8": numbers(4, 2, dtype=torch.float8_e4m3fn),
        "int64": numbers(6, dtype=torch.int64) << 40,
        "bool": numbers(7) % 2 == 0,
        "complex64": torch.complex(numbers(2, 3), -numbers(2, 3)),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "transposed": numbers(4, 6).t(),
        "slice": numbers(10, 10)[2:9:3, 1:8:2],
        "layer.weight": torch.nn.Parameter(numbers(2, 2) / 9),
    }


def blank(tensor):
    """The same shape, strides and dtype, other bits."""
    fresh = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    fresh.untyped_storage().fill_(0xAA) if tensor.dtype != torch.bool else fresh.zero_()
    return torch.nn.Parameter(fresh) if isinstance(tensor, torch.nn.Parameter) else fresh


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


class Case(unittest.TestCase):
    def assert_same_bits(self, one, other):
        self.assertEqual(list(one), list(other))
        for key, tensor in one.items():
            self.assertEqual(tensor.dtype, other[key].dtype, key)
            self.assertEqual(tensor.shape, other[key].shape, key)
            self.assertEqual(bits(tensor), bits(other[key]), key)

    @contextlib.contextmanager
    def assert_raises(self, *words):
        with self.assertRaises(RuntimeError) as caught:
            yield
        self.assertIs(type(caught.exception), RuntimeError)
        for word in words:
            self.assertIn(word, str(caught.exception))


class OneProcess(Case):
    """Without a group."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def test_one_libtorch(self):
        with open("/proc/self/maps") as maps:
            files = {line.split()[-1] for line in maps if ".so" in line}
        for stem in ("libtorch_cpu", "libc10", "libtorch_dcp"):
            mapped = [file for file in files if re.search(rf"/{stem}\.so", file)]
            self.assertEqual(len(mapped), 1, mapped)

    def test_python_opens_what_is_saved(self):
        state = make_state()
        ops.save(state, self.path("ours"))
        loaded = {key: blank(tensor) for key, tensor in state.items()}
        python_dcp.load(loaded, checkpoint_id=self.path("ours"), no_dist=True)
        self.assert_same_bits(state, loaded)

    def test_what_python_saved_is_loaded_in_place(self):
        state = make_state()
        python_dcp.save(state, checkpoint_id=self.path("theirs"), no_dist=True)
        loaded = {key: blank(tensor) for key, tensor in state.items()}
        before = {key: (tensor, tensor.data_ptr()) for key, tensor in loaded.items()}
        ops.load(loaded, self.path("theirs"))
        self.assert_same_bits(state, loaded)
        for key, (tensor, pointer) in before.items():
            self.assertIs(loaded[key], tensor, key)
            self.assertEqual(tensor.data_ptr(), pointer, key)

    def test_training_goes_on(self):
        def train(model, optimizer, steps):
            for _ in range(steps):
                optimizer.zero_grad()
                model(numbers(3, 4) / 8).square().sum().backward()
                optimizer.step()

        def moments(optimizer):
            return {f"{number}.{name}": value for number, entry in optimizer.state_dict()["state"].items() for name, value in entry.items()}

        def make():
            torch.manual_seed(7)
            model = torch.nn.Linear(4, 2)
            return model, torch.optim.Adam(model.parameters(), lr=0.125)

        model, optimizer = make()
        train(model, optimizer, 3)
        ops.save({**model.state_dict(), **moments(optimizer)}, self.path("step"))
        train(model, optimizer, 2)
        again, its_optimizer = make()
        train(again, its_optimizer, 1)
        ops.load({**again.state_dict(), **moments(its_optimizer)}, self.path("step"))
        train(again, its_optimizer, 2)
        self.assert_same_bits(model.state_dict(), again.state_dict())
        self.assert_same_bits(moments(optimizer), moments(its_optimizer))

    def test_autograd_sees_the_load(self):
        weight = torch.nn.Parameter(numbers(3))
        ops.save({"weight": weight}, self.path("saved"))
        squares = (weight * weight).sum()
        ops.load({"weight": weight}, self.path("saved"))
        self.assertTrue(weight.requires_grad and weight.is_leaf)
        with self.assert_raises("modified by an inplace operation"):
            squares.backward()

    def test_list(self):
        python_dcp.save({"model": {"w": numbers(3, 4), "b": numbers(5, dtype=torch.bfloat16)}, "epoch": 3, "step": torch.tensor(1.0)},
                        checkpoint_id=self.path("theirs"), no_dist=True)
        expected = {"model.w": ("float32", [3, 4]), "model.b": ("bfloat16", [5]), "epoch": ("object", []), "step": ("float32", [])}
        self.assertEqual(ops.list(self.path("theirs")), expected)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is on its way out.

            @torch.jit.script
            def sizes_of(path: str, key: str) -> list[int]:
                return torch.ops.torch_dcp.list(path)[key][1]

        self.assertEqual(sizes_of(self.path("theirs"), "model.w"), [3, 4])

    def test_errors(self):
        ops.save({"a": numbers(2), "b": numbers(3)}, self.path("saved"))
        target = {"a": torch.full((2,), 9.0), "b": torch.full((4,), 9.0), "c": torch.full((2,), 9.0)}
        # All that is wrong, and nothing changed.
        with self.assert_raises("'b'", "[3]", "[4]", "'c'"):
            ops.load(target, self.path("saved"))
        self.assertTrue(all(torch.equal(tensor, torch.full_like(tensor, 9)) for tensor in target.values()))
        with self.assert_raises("incomplete checkpoint", self.path("none")):
            ops.load({"a": numbers(2)}, self.path("none"))
        with self.assert_raises("incomplete checkpoint", self.path("none")):
            ops.list(self.path("none"))
        with self.assert_raises("a", "float64", "float32"):
            ops.save({"a": numbers(2, dtype=torch.float64)}, self.path("wide"))
            ops.load({"a": numbers(2)}, self.path("wide"))
        with self.assert_raises("'sparse'", "layout"):
            ops.save({"sparse": torch.eye(3).to_sparse()}, self.path("sparse"))
        self.assertFalse(os.path.exists(os.path.join(self.path("sparse"), ".metadata")))

    def test_damage_is_told(self):
        ops.save({"weights": numbers(1000)}, self.path("saved"))
        (name,) = [name for name in os.listdir(self.path("saved")) if name.endswith(".distcp")]
        data = os.path.join(self.path("saved"), name)
        self.assertEqual(ops.verify(self.path("saved")), [])
        os.truncate(data, os.path.getsize(data) - 1000)
        with self.assert_raises(name, "weights"):
            ops.load({"weights": numbers(1000)}, self.path("saved"))
        faults = ops.verify(self.path("saved"))
        self.assertTrue(any(fault[0] == name and fault[2] == "CorruptData" and fault[3] for fault in faults), faults)


class TwoRanks(unittest.TestCase):
    def test_two_ranks(self):
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=False)
        with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as folder:
            ranks = [subprocess.Popen([sys.executable, __file__, str(rank), str(store.port), folder], stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True) for rank in range(WORLD_SIZE)]
            try:
                said = [rank.communicate(timeout=RANK_TIMEOUT)[0] for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
        for number, rank in enumerate(ranks):
            self.assertEqual(rank.returncode, 0, f"rank {number}:\n" + "\n".join(said))


class OnEachRank(Case):
    """One of the two ranks; both run the same tests in the same order."""

    rank = -1
    folder = ""

    def path(self, name):
        return os.path.join(self.folder, name)

    def group(self):
        return dist.group.WORLD.boxed()

    def own_key(self):
        return f"of_rank_{self.rank}"

    def test_python_opens_what_both_saved(self):
        state = {**make_state(), self.own_key(): numbers(3) + self.rank}
        ops.save(state, self.path("ours"), self.group())
        loaded = {key: blank(tensor) for key, tensor in state.items()}
        python_dcp.load(loaded, checkpoint_id=self.path("ours"))
        self.assert_same_bits(state, loaded)
        listed = ops.list(self.path("ours"))
        self.assertTrue({"of_rank_0", "of_rank_1"} <= set(listed), listed)

    def test_what_both_saved_in_python_is_loaded(self):
        mesh = init_device_mesh("cpu", (WORLD_SIZE,))
        whole = numbers(5, 3)
        sharded = distribute_tensor(whole, mesh, [Shard(0)])
        own = numbers(4) - self.rank
        python_dcp.save({"sharded": sharded, "both": numbers(6), self.own_key(): own}, checkpoint_id=self.path("theirs"))
        loaded = {"sharded": blank(whole), "both": blank(numbers(6)), self.own_key(): blank(own)}
        ops.load(loaded, self.path("theirs"), self.group())
        self.assert_same_bits({"sharded": whole, "both": numbers(6), self.own_key(): own}, loaded)

    def test_both_learn_of_an_error_on_one(self):
        ops.save({"a": numbers(2)}, self.path("errors"), self.group())
        with self.assert_raises("rank 1", "'only_there'"):
            ops.load({"a" if self.rank == 0 else "only_there": numbers(2)}, self.path("errors"), self.group())
        # The group is as good as before.
        loaded = {"a": blank(numbers(2))}
        ops.load(loaded, self.path("errors"), self.group())
        self.assert_same_bits({"a": numbers(2)}, loaded)

    def test_tensors_of_python_classes_are_refused(self):
        mesh = init_device_mesh("cpu", (WORLD_SIZE,))
        tensor = distribute_tensor(numbers(4), mesh, [Shard(0)])
        with self.assert_raises("'spread'", "DTensor"):
            ops.save({"spread": tensor}, self.path("refused"), self.group())
        with self.assert_raises("rank 0", "DTensor"):
            ops.save({"spread": tensor if self.rank == 0 else numbers(4)}, self.path("refused"), self.group())

    def test_group_of_some(self):
        some = dist.new_group([1])
        if self.rank == 1:
            ops.save({"alone": numbers(3)}, self.path("some"), some.boxed())
        dist.barrier()
        loaded = {"alone": blank(numbers(3))}
        ops.load(loaded, self.path("some"))
        self.assert_same_bits({"alone": numbers(3)}, loaded)


def run_rank(rank, port, folder):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.TCPStore("127.0.0.1", port, is_master=False, use_libuv=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD_SIZE)
    OnEachRank.rank, OnEachRank.folder = rank, folder
    tests = unittest.defaultTestLoader.loadTestsFromTestCase(OnEachRank)
    passed = tests.countTestCases() > 0 and unittest.TextTestRunner(sys.stdout, verbosity=2).run(tests).wasSuccessful()
    dist.destroy_process_group()
    return 0 if passed else 1


if __name__ == "__main__":
    if len(sys.argv) == 4:
        sys.exit(run_rank(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
    del OnEachRank  # of the ranks alone
    unittest.main(argv=[sys.argv[0], "-v"])
