"""Sessions of a job's ranks, in which one may be late for a known reason."""

import random
from operator import attrgetter

from gpusense._records.records import GpuCollective, GpuKernel, GpuSync

from .sessions import H100, MS, T0, US, block, sample, session

LAUNCH = 2 * US
MEGABYTES = 25 << 20


def device(rank):
    return H100._replace(uuid=f"GPU-{rank:08}-0000-0000-0000-000000000000", pci_bus_id=f"{rank:04x}:1b:00.0")


def collective(name, rank, ranks, sequence, start, end, *, communicator="c0ffee", size=MEGABYTES, **more):
    """By times on the device, from ``T0`` on."""
    return GpuCollective(
        name,
        T0 + start - 30 * US,
        T0 + start - 10 * US,
        communicator,
        rank=rank,
        ranks=ranks,
        sequence=sequence,
        bytes=size,
        algorithm="RING",
        protocol="LL128",
        device_start_ns=T0 + start,
        device_end_ns=T0 + end,
        **more,
    )


def job_rank(rank, ranks, *, steps=20, late=None, why="", each=12, nccl=True):
    """A step is a pause in “load”, some kernels, and an all-reduce that ends on all ranks at once. ``late``: the rank
    that comes last, because of ``why``: "load", "sync", "stall", "every 5", "clock" or "batch"."""
    source, mine = random.Random(rank), rank == late
    slower = 1.4 if why in ("clock", "batch") else 1.0
    longest = round(each * (100 * US * slower * 1.03 + LAUNCH))
    records, samples, at = [], [], 0
    for step in range(steps):
        pause = {"load": 5 * MS, "sync": 0, "every 5": 20 * MS * (step % 5 == 4)}.get(why, 0)
        pause = 200 * MS * (step in (steps // 2, steps * 3 // 4)) if why == "stall" else pause
        waits = (each // 3) * 700 * US if why == "sync" else 0
        meeting = at + 200 * US + (pause + waits if late is not None else 0) + longest
        begun = moment = at + (pause if mine else source.randrange(20 * US))
        for number in range(each):
            length = round(100 * US * (slower if mine else 1.0) * source.uniform(0.99, 1.01))
            records.append(kernel_of(f"layer_{number}", moment, moment + length))
            if mine and why == "sync" and number % 3 == 2:
                line = "train.py:31 step"
                wait = (T0 + moment, T0 + moment + length)
                records.append(GpuSync("stream_synchronize", *wait, device=0, stream=7, source_line=line))
                moment += 700 * US
            moment += length + LAUNCH
        came = meeting if mine else min(moment, meeting - 20 * US)
        end = meeting + 300 * US
        records.append(kernel_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL", came, end, stream=20))
        if nccl:
            records.append(collective("AllReduce", rank, ranks, step, came + US, end - source.randrange(1, US)))
        records += [
            block(("step",), at, end, number=2 * step + 1),
            block(("step", "load"), at, max(begun, at + 1), number=2 * step + 2, parent=2 * step + 1),
        ]
        mhz = 1400.0 if mine and why == "clock" else 1980.0
        samples.append(sample(at + 50 * US, device=device(rank), gpu=90.0, sm_mhz=mhz))
        at = end + 10 * US
    records.sort(key=attrgetter("start_ns"))
    return session(
        *records,
        end=at + MS,
        rank=rank,
        world_size=ranks,
        pid=1000 + rank,
        devices=(device(rank),),
        metrics=samples,
    )


def kernel_of(name, start, end, stream=7):
    return GpuKernel(name, T0 + start, T0 + end, device=0, stream=stream, path=("step",))
