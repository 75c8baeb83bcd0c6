#!/usr/bin/env python3
"""PyTorch's side of the benchmark: a request of JSON on each line of stdin, an answer on each line of stdout."""

import gc
import json
import os
import pickle
import sys
import time
import traceback

try:
    import torch
    import torch.distributed.checkpoint as dcp
except ImportError as error:
    print(f"no PyTorch for Python here: {error}", file=sys.stderr)
    sys.exit(1)

import warnings

from torch.distributed.checkpoint import planner_helpers
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType

warnings.filterwarnings("ignore")


def timed(call):
    gc.collect()
    begin = time.perf_counter()
    call()
    return {"seconds": time.perf_counter() - begin}


class SlicePlanner(DefaultLoadPlanner):
    """Asks for some rows of one tensor."""

    def __init__(self, key, row):
        super().__init__()
        self.key, self.row = key, row

    def set_up_planner(self, state_dict, metadata=None, is_coordinator=False):
        self.target, self.metadata, self.is_coordinator = state_dict[self.key], metadata, is_coordinator

    def create_local_plan(self):
        chunk = self.metadata.state_dict_metadata[self.key].chunks[0]
        return LoadPlan([
            planner_helpers._create_read_item_for_tensor(
                dest_index=MetadataIndex(self.key), dest_offsets=(0, 0),
                storage_index=MetadataIndex(self.key, chunk.offsets, 0), storage_offsets=(self.row, 0),
                lengths=self.target.shape)
        ])

    def resolve_tensor(self, read_item):
        return self.target

    def commit_tensor(self, read_item, tensor):
        pass


class Peer:
    def __init__(self):
        self.state = {}

    def make(self, count, bytes_each):
        self.state = {f"t{i:05d}": torch.rand(bytes_each // 4) for i in range(count)}
        return {}

    def drop(self):
        self.state = {}
        return {}

    def save(self, path, durable, threads):
        writer = dcp.FileSystemWriter(path, single_file_per_rank=True, sync_files=durable, thread_count=threads)
        return timed(lambda: dcp.save(self.state, storage_writer=writer, no_dist=True))

    def load(self, path):
        reader = dcp.FileSystemReader(path)
        return timed(lambda: dcp.load(self.state, storage_reader=reader, no_dist=True))

    def load_rows(self, path, key, row, rows, columns):
        state = {key: torch.zeros(rows, columns)}
        reader = dcp.FileSystemReader(path)
        planner = SlicePlanner(key, row)
        return timed(lambda: dcp.load(state, storage_reader=reader, planner=planner, no_dist=True))

    def plan(self, ranks, sharded, replicated):
        plans = []
        for rank in range(ranks):
            items = []
            paths = {}
            for i in range(sharded + replicated):
                is_sharded = i < sharded
                group, number = ("layers", i) if is_sharded else ("norms", i - sharded)
                key = f"{group}.{number}.weight"
                paths[key] = (group, str(number), "weight")
                size = torch.Size((8 * ranks, 64) if is_sharded else (64, 64))
                offsets = torch.Size((8 * rank, 0) if is_sharded else (0, 0))
                chunk = ChunkStorageMetadata(offsets=offsets, sizes=torch.Size((8, 64)) if is_sharded else size)
                items.append(WriteItem(
                    index=MetadataIndex(key, offsets), type=WriteItemType.SHARD,
                    tensor_data=TensorWriteData(chunk=chunk, properties=TensorProperties(), size=size)))
            plans.append(SavePlan(items, planner_data=paths))
        planner = DefaultSavePlanner()
        planner.set_up_planner({}, is_coordinator=True)
        pickled = [pickle.dumps(plan) for plan in plans]
        del plans
        received, planned = [], []
        load = timed(lambda: received.extend(pickle.loads(data) for data in pickled))
        answer = timed(lambda: planned.append(planner.create_global_plan(received)))
        dump = timed(lambda: [pickle.dumps(plan) for plan in planned[0][0]])
        return answer | {
            "load_seconds": load["seconds"],
            "dump_seconds": dump["seconds"],
            "bytes": sum(map(len, pickled))
        }

    def metadata(self, path):
        with open(path, "rb") as file:
            data = file.read()
        held = []
        gc.collect()
        begin = time.perf_counter()
        held.append(pickle.loads(data))
        middle = time.perf_counter()
        held.append(pickle.dumps(held[0]))
        return {"load_seconds": middle - begin, "dump_seconds": time.perf_counter() - middle}


def main():
    # What libraries print must not get into the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = Peer()
    print(json.dumps({"torch": torch.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(peer, request.pop("do"))(**request)
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
