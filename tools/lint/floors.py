"""The floor plan of torch_dcp: the one table of who may include what.

A file includes its own folder and folders on lower floors that its row names:
never a higher floor, never a neighbour on its own floor. So there are no circles.
"""

from typing import NamedTuple


class Room(NamedTuple):
    floor: int
    folders: frozenset  # of torch_dcp that it may include, beside its own
    libtorch: frozenset  # parts of LibTorch: see libtorch_part()
    libraries: frozenset  # other libraries: see LIBRARIES
    public: bool  # whether its headers (but *_internal.h) are for users of torch_dcp


def _room(floor, folders="", libtorch="c10", libraries="", public=True):
    return Room(floor, frozenset(folders.split()), frozenset(libtorch.split()), frozenset(libraries.split()), public)


_LEFT = "transform state_dict tensor comm base"
_RIGHT = "plan state_dict tensor pickle io base"
_ALL = "peer_memory memory checkpoint storage fsdp format model_state plan transform state_dict tensor comm pickle io base"

ROOMS = {
    "base": _room(0),
    "io": _room(1, "base"),
    "pickle": _room(1, "base", public=False),
    "tensor": _room(1, "base", "c10 aten c10d"),
    "comm": _room(1, "base", "c10 aten c10d", "gloo"),
    "state_dict": _room(2, "tensor base", "c10 aten"),
    "memory": _room(2, "io base"),
    "transform": _room(3, "state_dict tensor comm io base", "c10 aten c10d"),
    "plan": _room(3, "state_dict tensor base", "c10 aten"),
    "model_state": _room(4, _LEFT, "c10 aten c10d nn"),
    "format": _room(4, _RIGHT, "c10 aten", "zlib zstd isal json", public=False),
    "fsdp": _room(5, "model_state " + _LEFT, "c10 aten c10d nn"),
    "storage": _room(5, "format plan state_dict tensor comm io base", "c10 aten c10d"),
    "checkpoint": _room(6, "storage plan transform state_dict tensor comm io base", "c10 aten c10d"),
    "peer_memory": _room(6, "memory storage format plan state_dict tensor comm io base", "c10 aten c10d"),
    "extension": _room(7, _ALL, "c10 aten c10d nn umbrella"),
    "examples": _room(7, _ALL, "c10 aten c10d nn umbrella", "gloo cli11"),
}

# torch_dcp/dcp.h gathers the users' headers of every folder and stands above them
# all; torch_dcp/fwd.h only declares, and stands below.
UMBRELLA = _room(7, _ALL)
EVERYONES = frozenset({"torch_dcp/fwd.h"})

# A dependency on part of a folder: checkpoint/ works on storage's interfaces and
# never names a backend; the one file that picks a backend asks the factory.
# (from, to): {header of `to`: the stems of `from` that may include it, or None for all}
PARTS = {
    ("checkpoint", "storage"): {
        "storage_writer.h": None,
        "storage_reader.h": None,
        "storage_factory.h": frozenset({"by_checkpoint_id"}),
    },
}
# The same for BUILD files: the targets of `to` that `from` may depend on.
PART_TARGETS = {("checkpoint", "storage"): frozenset({"interface", "factory"})}

# Library: (how its headers' paths begin, its repository in BUILD files).
LIBRARIES = {
    "gloo": (("gloo/",), None),
    "zlib": (("zlib.h",), "@system_zlib"),
    "zstd": (("zstd",), "@system_zstd"),
    "isal": (("isa-l",), "@system_isal"),
    "json": (("nlohmann/",), "@system_nlohmann_json"),
    "cli11": (("CLI/",), "@system_cli11"),
}


def libtorch_part(header):
    """Which part of LibTorch a header belongs to, or None for other headers."""
    if header.startswith("c10/"):
        return "c10"
    if header == "torch/torch.h" or header == "torch/all.h":
        return "umbrella"
    if header.startswith("torch/csrc/distributed/"):
        return "c10d"
    path = header.removeprefix("torch/csrc/api/include/")
    if path.startswith(("torch/nn", "torch/optim")):
        return "nn"
    if header.startswith("caffe2/"):
        return "caffe2"
    if header.startswith(("ATen/", "torch/")):
        return "aten"
    return None


def library_of(header):
    for name, (prefixes, _) in LIBRARIES.items():
        if header.startswith(prefixes):
            return name
    return None
