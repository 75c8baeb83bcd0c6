"""Writes layouts.json or strided_layouts.json: what PyTorch's DTensor gives each rank.

Run with the PyTorch to be followed (both files were made with 2.14.1):

    python3 make_layouts.py paired OUT.json SEED CASES
    python3 make_layouts.py free OUT.json SEED CASES

`paired`: a strided shard is followed by a plain one that splits the same tensor dimension, as FSDP2 over tensor
parallel makes it; each rank then holds one run of indices. `free`: strided shards of any split factor, alone or
several of them, which leave a rank with many runs.

Each case: global shape, mesh shape, placements ("R", "S<dim>", "SS<dim>:<split factor>"), and per rank (row-major
coordinates of the mesh): local shape, global offset as PyTorch's function gives it (the first element for a strided
shard), and for each tensor dim the global indices that the local tensor holds there, from really splitting an index
vector. Where the two disagree about the size, the case is left out and counted.
"""
import itertools
import json
import random
import sys

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard


def name(p):
    if isinstance(p, Replicate):
        return "R"
    if isinstance(p, _StridedShard):
        return f"SS{p.dim}:{p.split_factor}"
    return f"S{p.dim}"


def held(n, dim, mesh, coordinate, placements):
    """Global indices along one tensor dim that a rank holds."""
    index = torch.arange(n)
    for axis, p in enumerate(placements):
        if isinstance(p, (Shard, _StridedShard)) and p.dim == dim:
            one = _StridedShard(0, split_factor=p.split_factor) if isinstance(p, _StridedShard) else Shard(0)
            parts, _ = one._split_tensor(index, mesh[axis], with_padding=False, contiguous=True)
            index = parts[coordinate[axis]]
    return index.tolist()


def paired_placements(rng, mesh, ndim):
    placements = []
    for axis in range(len(mesh)):
        kind = rng.random()
        if ndim == 0 or kind < 0.25:
            placements.append(Replicate())
        elif kind < 0.6:
            placements.append(Shard(rng.randrange(ndim)))
        else:
            dim = rng.randrange(ndim)
            later = [a for a in range(axis + 1, len(mesh))]
            if not later:
                placements.append(Shard(dim))
                continue
            placements.append(_StridedShard(dim, split_factor=mesh[later[0]]))
    for axis, p in enumerate(placements):
        if isinstance(p, _StridedShard):
            placements[axis + 1] = Shard(p.dim)
    return placements


def free_placements(rng, mesh, ndim):
    placements = []
    for _ in mesh:
        kind = rng.random()
        if ndim == 0 or kind < 0.1:
            placements.append(Replicate())
        elif kind < 0.3:
            placements.append(Shard(rng.randrange(ndim)))
        else:
            placements.append(_StridedShard(rng.randrange(ndim), split_factor=rng.choice([1, 2, 2, 3, 4, 7])))
    return placements


def main():
    kind, out, seed, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    make_placements = {"paired": paired_placements, "free": free_placements}[kind]
    rng = random.Random(seed)
    cases, odd, seen = [], 0, set()
    while len(cases) < wanted:
        mesh = [rng.choice([1, 2, 2, 3, 4, 5, 8]) for _ in range(rng.choice([1, 1, 2, 2, 2, 3]))]
        world = 1
        for m in mesh:
            world *= m
        if world > 8:
            continue
        ndim = rng.choice([0, 1, 1, 2, 2, 3])
        shape = [rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 17]) for _ in range(ndim)]
        placements = make_placements(rng, mesh, ndim)
        key = (tuple(shape), tuple(mesh), tuple(name(p) for p in placements))
        if key in seen:
            continue
        seen.add(key)
        ranks, fine = [], True
        for coordinate in itertools.product(*[range(m) for m in mesh]):
            local, offset = _compute_local_shape_and_global_offset(shape, tuple(mesh), list(coordinate), placements)
            indices = [held(n, d, mesh, coordinate, placements) for d, n in enumerate(shape)]
            fine = fine and [len(i) for i in indices] == list(local)
            ranks.append({"local_shape": list(local), "global_offset": list(offset), "indices": indices})
        if not fine:
            odd += 1
            continue
        cases.append({"shape": shape, "mesh": mesh, "placements": [name(p) for p in placements], "ranks": ranks})
    with open(out, "w") as f:
        json.dump({"torch": torch.__version__.split("+")[0], "left_out": odd, "cases": cases}, f, separators=(",", ":"))
        f.write("\n")
    print(len(cases), "cases,", odd, "left out")


main()
