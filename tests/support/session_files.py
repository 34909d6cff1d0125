"""A small session file with most types of chunks, and a session with most kinds of records."""

import pathlib

from gpusense._attribution.boundaries import ENDED, OPEN, PLACED
from gpusense._records.metrics import GpuMetrics, Power
from gpusense._records.records import (
    Aggregate,
    BlockRecord,
    ComputeBlock,
    Counters,
    DeviceBusy,
    DeviceInfo,
    GpuAllocation,
    GpuKernel,
    GpuMemoryTransfer,
    UnseenInterval,
)
from gpusense.session import Session
from gpusense.session import _format as file
from gpusense.session._block_chunks import Packer
from gpusense.session._writer import Writer

ROOT = pathlib.Path(file.__file__).parent.parent


def chunks(path):
    with file.Reader(path) as reader:
        return list(reader), reader.damage


def small(path):
    """A file with a chunk of most types; returns what each chunk holds."""
    writer = Writer(path, clock=lambda: 99)
    writer.json(file.META, {"version": "1", "pid": 3})
    writer.layout(1, {10: 160}, library="13.0")
    writer.names({0x1000: b"kern\xff", 0x2000: b""})
    writer.buffer(bytes(range(256)) * 2, thread=1 << 63, layout=1)
    writer.rows(file.BOUNDARY, [["open", 1, 5], ["close", 1, 9]])
    packer = Packer()
    packer.add(
        [
            (PLACED, OPEN, 1, None, 5, 5, "step", 0),
            (ENDED, None, 5, 1, "step", 1, None, ("step",), 5, 9, 5, None, None),
        ]
    )
    writer.append(file.BLOCKS, *packer.take())
    writer.records([GpuKernel("k", 1, 2)])
    writer.close()
    found, damage = chunks(path)
    assert damage == []
    return found


def session():
    device = DeviceInfo(0, "H100", "nvidia", "cuda", uuid="GPU-1", cuda_index=0)
    return Session(
        meta={"version": "1", "pid": 3, "start_ns": 0, "end_ns": 1000, "threshold_ns": 10, "trace_all": False},
        devices=(device,),
        records=[
            GpuKernel("k", 1, 40, device=0, path=("a",), block_id=1),
            GpuMemoryTransfer("c", "cpu_to_gpu", 10, 50, 90, device=0),
            GpuAllocation("alloc", 64, 5, 0xDEAD),
            ComputeBlock("c", 1, 900),
            BlockRecord("a", 1, None, ("a",), 0, 5, 77, attributes={"batch": 64}),
        ],
        aggregates=[Aggregate((), "kernel", "s", "cuda", 0, 7, 3, 9, 2, 4, 29)],
        metrics=[GpuMetrics(device, 5, 6, power=Power(90.0))],
        busy=[DeviceBusy(0, 39, 40, 79, 1, 90)],
        unseen=[UnseenInterval(0, 1, "before attaching")],
        counters=Counters(seen=8, kept=5, aggregated=3),
    )


def loaded_is_complete(path):
    with file.Reader(path) as reader:
        for _ in reader:
            pass
        return reader.complete
