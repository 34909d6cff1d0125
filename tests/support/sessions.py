"""Sessions made by hand, and what a tracer recorded or is asked."""

import pathlib
import random
from weakref import ref

from gpusense._records.counter_samples import CounterColumns
from gpusense._records.counters import BlockCounters
from gpusense._records.metrics import Clocks, GpuMetrics, Memory, Pcie, Power, Thermal, Utilization
from gpusense._records.records import (
    BlockRecord,
    ComputeBlock,
    Counters,
    DeviceInfo,
    GpuAllocation,
    GpuCollective,
    GpuKernel,
    GpuMemoryTransfer,
    GpuMemset,
    GpuSync,
)
from gpusense.session import Session

#: A training of 13 steps on an H100, with every record: its raw buffers are the tests' oracle.
RECORDED = pathlib.Path(__file__).resolve().parent.parent / "data" / "h100" / "training.gpusense"

T0 = 1_795_814_054_123_456_789  # beyond what a double holds exactly
US = 1_000
MS = 1_000_000

H100 = DeviceInfo(
    0,
    "NVIDIA H100 80GB HBM3",
    "nvidia",
    "cuda",
    uuid="GPU-00000000-0000-0000-0000-000000000000",
    pci_bus_id="0000:1b:00.0",
    memory_total_bytes=85_520_809_984,
    compute_capability=(9, 0),
    sm_count=132,
    clock_max_mhz=1980.0,
    memory_clock_max_mhz=2619.0,
    cuda_index=0,
    nvml_index=0,
    threads_per_sm=2048,
    shared_memory_per_sm_bytes=233_472,
    registers_per_sm=65_536,
    memory_bus_width_bits=5120,
)

H200 = H100._replace(
    name="NVIDIA H200",
    memory_total_bytes=150_109_880_320,
    memory_clock_max_mhz=3201.0,
    memory_bus_width_bits=6016,  # as its driver says
)

#: Names that break careless writers.
HOSTILE = (
    "</script><script>document.title='PWNED'</script>",
    "<img src=x onerror=document.title='PWNED'>",
    "quote\"apos'back\\slash",
    "line\nbreak\ttab\x00nul\x1b[31mescape\u2028sep\u2029",
    "semi;colon and space",
    "void kernel<" + "at::native::Functor<float, " * 160 + ">",  # 4 KiB of template arguments
    "",
    "\ud800 lone surrogate",
    "-->]]><!--",
)


def kernel(name, start, end, *, device=0, stream=7, **fields):
    """A kernel by offsets from ``T0``."""
    return GpuKernel(name, T0 + start, T0 + end, device=device, stream=stream, **fields)


def copy(direction, size, start, end, *, device=0, stream=7, **fields):
    return GpuMemoryTransfer(direction, direction, size, T0 + start, T0 + end, device=device, stream=stream, **fields)


def memset(size, start, end, *, device=0, stream=7, **fields):
    return GpuMemset("memset", size, T0 + start, T0 + end, device=device, stream=stream, **fields)


def sync(start, end, *, name="stream_synchronize", device=0, **fields):
    return GpuSync(name, T0 + start, T0 + end, device=device, **fields)


def alloc(size, at, address, *, name="alloc", device=0, **fields):
    return GpuAllocation(name, size, T0 + at, address, device=device, **fields)


def compute(name, start, end, **fields):
    return ComputeBlock(name, T0 + start, T0 + end, **fields)


def block(path, start, end, *, number=1, parent=None, thread=1, **fields):
    return BlockRecord(path[-1], number, parent, tuple(path), T0 + start, T0 + end, thread, **fields)


def block_counters(path, start, end, *, tensor=(), flops=(), read=None, written=None, device=0, number=None, **fields):
    """Counters of a pass by offsets from ``T0``, which the device worked through."""
    return BlockCounters(
        path[-1],
        T0 + start,
        T0 + end,
        device,
        end - start,
        tensor_ops=tuple(dict(tensor).items()),
        flops=tuple(dict(flops).items()),
        dram_read_bytes=read,
        dram_write_bytes=written,
        path=tuple(path),
        block_id=number,
        **fields,
    )


def sample(
    at, *, device=H100, watts=None, used=None, gpu=None, sm_mhz=None, celsius=None, joules=None, pcie=None, why=()
):
    return GpuMetrics(
        device,
        T0 + at,
        at,
        utilization=Utilization(gpu_percent=gpu),
        memory=Memory(total_bytes=device.memory_total_bytes, used_bytes=used),
        thermal=Thermal(gpu_celsius=celsius),
        power=Power(draw_watts=watts, energy_joules=joules),
        clocks=Clocks(sm_mhz=sm_mhz, throttle_reasons=why),
        pcie=pcie or Pcie(generation=5, width=16, max_generation=5, max_width=16),
    )


def session(*records, end=None, devices=(H100,), aggregates=(), metrics=(), busy=(), unseen=(), counters=None, **meta):
    """A session over ``T0 … T0 + end``; without ``end`` it has not ended."""
    facts = {
        "version": "0.1.0",
        "pid": 4242,
        "start_ns": T0,
        "end_ns": None if end is None else T0 + end,
        "threshold_ns": 100_000,
        "trace_all": True,
        "backends": {"cupti": "13.0"},
        "rank": None,
        "world_size": None,
        "mode": "live",
        "overhead": {},
        "capture": {},
        "damage": [],
        **meta,
    }
    return Session(
        meta=facts,
        devices=devices,
        records=list(records),
        aggregates=list(aggregates),
        metrics=list(metrics),
        busy=list(busy),
        unseen=list(unseen),
        counters=counters or Counters(seen=len(records), kept=len(records)),
    )


def training(steps=20, *, seed=1, layers=12):
    """A training loop as a laptop's eye sees it: batches copied, forward, backward, collectives, waits, samples."""
    rng = random.Random(seed)
    records, metrics = [], []
    at, number = 3 * MS, 1
    for step in range(steps):
        begin, step_id = at, number
        number += 1
        slow = 6 if step == 0 else 1
        loaded = at + rng.randint(900, 1400) * US * slow
        path = ("train", "step")
        records.append(
            compute("tokenize", at + 20 * US, loaded, path=(*path, "load"), block_id=number, elements=64_000)
        )
        records.append(block((*path, "load"), at, loaded, number=number, parent=step_id))
        number += 1
        at = loaded
        size = 64 * 1024 * 1024
        records.append(
            copy("cpu_to_gpu", size, at, at + 5_200 * US // 2, stream=14, source="pageable", destination="device",
                 path=path, block_id=step_id)
        )  # fmt: skip
        at += 2_600 * US
        for phase, factor in (("forward", 1), ("backward", 2)):
            phase_begin, phase_id = at, number
            number += 1
            for layer in range(layers):
                for name, mean, grid in (
                    ("sm90_xmma_gemm_bf16", 180, 264),
                    ("flash_fwd_kernel" if factor == 1 else "flash_bwd_kernel", 120, 128),
                    ("vectorized_elementwise_kernel", 9, 1024),
                    ("layer_norm_kernel", 6, 64),
                ):
                    length = max(2, int(rng.gauss(mean, mean * 0.03))) * US * factor * (3 if step == 0 else 1)
                    if step == 13 and layer == 5 and name.startswith("sm90") and factor == 1:
                        length *= 8
                    records.append(
                        kernel(name, at, at + length, grid=(grid, 1, 1), block=(256, 1, 1), registers_per_thread=64,
                               full_name=f"void {name}<float, {factor}>(Params)", path=(*path, phase),
                               block_id=phase_id, correlation_id=number * 1000 + layer)
                    )  # fmt: skip
                    at += length + rng.randint(1, 6) * US
                if factor == 2 and layer % 4 == 3:
                    records.append(
                        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", at - 150 * US, at + 260 * US, stream=20,
                               grid=(24, 1, 1), block=(544, 1, 1), path=(*path, phase), block_id=phase_id)
                    )  # fmt: skip
            records.append(block((*path, phase), phase_begin, at, number=phase_id, parent=step_id))
        records.append(memset(4096, at, at + 2 * US, path=path, block_id=step_id))
        records.append(
            copy("gpu_to_cpu", 4, at + 3 * US, at + 5 * US, destination="pageable", path=path, block_id=step_id)
        )
        records.append(sync(at - 900 * US, at + 6 * US, source_line="train.py:41", path=path, block_id=step_id))
        at += rng.randint(150, 260) * US
        records.append(block(path, begin, at, number=step_id, attributes={"batch": step}))
    for tick in range(0, at, 10 * MS):
        phase = tick / at
        watts = 310 + 220 * min(1, phase * 3) + rng.uniform(-20, 20)
        busy = min(100, 70 + rng.uniform(-15, 30))
        used = int(12e9 + 30e9 * min(1, phase * 2))
        metrics.append(
            sample(tick, watts=watts, gpu=busy, used=used, sm_mhz=1980 - 60 * phase, celsius=41 + 17 * phase)
        )
    records.append(block(("train",), 2 * MS, at, number=number))
    records.sort(key=lambda record: record.start_ns)
    return session(*records, end=at + 2 * MS, metrics=metrics)


def eventful():
    """Two ranks, one kernel of which is slow once, another at first: every analysis has something to tell."""
    records = []
    for rank in (0, 1):
        root = f"rank {rank}"
        for step in range(10):
            at = step * 10 * MS
            slow = 3 * MS if step == 0 else 0
            path, number = (root, "step"), rank * 100 + step + 1
            late = 2 * MS if (rank, step) == (1, 6) else 0
            records += [
                block(path, at, at + 5 * MS + slow, number=number),
                alloc(1000, at, rank * 0x1000 + step, path=path),
                copy("cpu_to_gpu", 2_000_000, at, at + MS, device=rank, source="pinned", path=path),
                kernel("gemm", at + MS, at + 2 * MS + late, device=rank, path=path, grid=(132, 1, 1), block=(256, 1, 1),
                       registers_per_thread=32, attributes={"flops": 10**9, "bytes": 10**6}),
                kernel("scan", at + 4 * MS, at + 4 * MS + 200 * US + slow, device=rank, path=path),
                sync(at + 4 * MS, at + 4 * MS + 300 * US, source_line="train.py:41 step", path=path),
                kernel("ncclDevKernel_AllReduce", at + 8 * MS + rank * US, at + 9 * MS, device=rank, path=(root,)),
                GpuCollective(
                    "AllReduce", T0 + at + 7 * MS, T0 + at + 8 * MS, "00c0ffee", rank=rank, ranks=2, sequence=step,
                    bytes=10**6, algorithm="RING", device_start_ns=T0 + at + 8 * MS + rank * US,
                    device_end_ns=T0 + at + 9 * MS, path=(root,),
                ),
            ]  # fmt: skip
    counted = {"tensor": {"bf16": 1e12}, "read": 1e9, "written": 1e9, "number": 2}
    records.append(block_counters(("rank 0", "step"), 10 * MS, 15 * MS, **counted))
    metrics = [sample(at, watts=300.0) for at in range(0, 101 * MS, 10 * MS)]
    processes = [{"root": f"rank {rank}", "rank": rank} for rank in (0, 1)]
    made = session(
        *records,
        end=100 * MS,
        devices=(H100, H100._replace(index=1, cuda_index=1, nvml_index=1)),
        metrics=metrics,
        processes=processes,
    )
    counted = CounterColumns(0, ("sm_active_percent", "dram_read_bytes", "dram_write_bytes"))
    counted.start.extend(range(T0, T0 + 100 * MS, MS))
    counted.end.extend(range(T0 + MS, T0 + 101 * MS, MS))
    for column, value in zip(counted.values, (75.0, 2e9, 1e9), strict=True):
        column.extend([value] * 100)
    made.counter_samples.add(counted)
    return made


def crowd(count, *, seed=3, names=40, streams=4):
    """``count`` kernels on a few streams, for sizes and speeds."""
    rng = random.Random(seed)
    at = dict.fromkeys(range(streams), 0)
    records = []
    for index in range(count):
        stream = index % streams
        start = at[stream] + rng.randint(500, 20_000)
        end = start + rng.randint(2_000, 60_000)
        at[stream] = end
        records.append(
            GpuKernel(f"kernel_{rng.randrange(names)}", T0 + start, T0 + end, device=0, stream=stream, path=("run",))
        )
    records.sort(key=lambda record: record.start_ns)
    return session(*records, end=max(at.values()) + 1000)


def blocks(tracer):
    return {record.name: record for record in tracer.session().blocks}


class Asked:
    __slots__ = ("__weakref__", "block_id", "totals")

    def __init__(self, block_id):
        self.block_id = block_id
        self.totals = None


def watch(pipeline, *block_ids):
    """Blocks by id; they live as long as ``pipeline``."""
    pipeline.asked = {block_id: Asked(block_id) for block_id in block_ids}
    pipeline.watched.blocks.update({block_id: ref(block) for block_id, block in pipeline.asked.items()})
    return pipeline.asked
