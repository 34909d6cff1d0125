"""The sessions of two GPUs as they lie in their files: what was launched, and every record of the raw buffers.

Nothing here comes from the package but the container of the chunks.
"""

import pathlib
import struct
from typing import NamedTuple

from gpusense.session import _format as file

DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "two_gpus"
NAMES = ("both", "rank0", "rank1")
STEPS, LAYERS, PASSES = 12, 4, 15
ELEMENT = 4
MATRIX, GRADIENT = 2048 * 2048 * ELEMENT, (1 << 22) * ELEMENT

DEVICE_WORK = ("kernel", "copy", "peer", "memset")
COPIES = ("copy", "peer", "memset")


class Raw(NamedTuple):
    """One record as it lies in a buffer."""

    kind: str  # "kernel", "copy", "peer", "memset"
    device: int
    stream: int
    start: int
    end: int
    bytes: int = 0
    pair: "tuple[int, int] | None" = None  # of a copy between devices
    way: int = 0  # CUPTI's copy kind: 1 to the device, 2 to the host
    name: str = ""

    @property
    def collective(self):
        return "nccl" in self.name

    @property
    def length(self):
        return self.end - self.start


def raw_records(name):
    """Everything in the buffers but the memsets that mark blocks, walked by the offsets of CUPTI's headers."""
    names, found, marks, strides = {}, [], [], {}
    with file.Reader(DATA / f"{name}.gpusense") as reader:
        for chunk in reader:
            if chunk.type == file.LAYOUT:
                facts = chunk.json()
                strides = {int(kind): stride for kind, stride in facts["strides"].items()}
                marks += [tuple(facts["marker"][3:4])] if facts.get("marker") else []
            elif chunk.type == file.NAME:
                names.update(chunk.names())
            elif chunk.type == file.BUFFER:
                found += list(walk(bytes(chunk.buffer().data), strides, names))
        assert reader.complete
        assert not reader.damage
    (streams,) = set(marks)
    return [record for record in found if not (record.kind == "memset" and record.stream in streams)]


def walk(data, strides, names):
    at = 0
    while at < len(data):
        (kind,) = struct.unpack_from("<I", data, at)
        if kind == 10:
            start, end = struct.unpack_from("<QQ", data, at + 16)
            device, _, stream = struct.unpack_from("<III", data, at + 40)
            (pointer,) = struct.unpack_from("<Q", data, at + 104)
            yield Raw("kernel", device, stream, start, end, name=names.get(pointer, b"").decode())
        elif kind in (1, 2, 22):
            size, start, end, device, _, stream = struct.unpack_from("<QQQIII", data, at + 8)
            pair = struct.unpack_from("<I4xI", data, at + 44) if kind == 22 else None
            what = {1: "copy", 2: "memset", 22: "peer"}[kind]
            yield Raw(what, device, stream, start, end, size, pair, data[at + 4] if kind != 2 else 0)
        at += strides[kind]


def points(records):
    return {(record.start, record.end) for record in records if record.end > record.start}


def covered(records, *without):
    """Nanoseconds that ``records`` cover and none of the others do: by counting what is open at every edge."""
    edges = [(moment, step, 0) for start, end in points(records) for moment, step in ((start, 1), (end, -1))]
    edges += [
        (moment, 0, step)
        for other in without
        for start, end in points(other)
        for moment, step in ((start, 1), (end, -1))
    ]
    total = open_here = open_there = before = 0
    for moment, here, there in sorted(edges):
        total += moment - before if open_here and not open_there else 0
        open_here, open_there, before = open_here + here, open_there + there, moment
    assert open_here == open_there == 0
    return total


def of(records, *kinds, device=None, collective=None):
    return [
        record
        for record in records
        if record.kind in kinds
        and device in (None, record.device)
        and (collective is None or record.collective is collective)
    ]
