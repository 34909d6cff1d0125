"""Sessions recorded on two GPUs: figures of the reports against the raw bytes and against what the programs launched.

``both``: one process on both devices, 15 passes of a pipeline (three products on one device, a copy to the other, two
products there, a copy back, a copy to the host). ``rank0`` and ``rank1``: 12 steps of four all-reduces beside matrix
products, of which rank 1 has three where rank 0 has two. Made by ``benchmarks/gpu/two_gpus.py --keep``.
"""

import json
import pathlib
import struct
from collections import Counter

import pytest

from gpusense import _sessionfile as file
from gpusense.report import html, perfetto, text
from gpusense.report import json as report_json
from gpusense.session import load, merge

DATA = pathlib.Path(__file__).resolve().parents[1] / "data" / "two_gpus"
KERNEL, MEMCPY, MEMCPY2 = 10, 1, 22
PASSES, SIZE = 15, 2048 * 2048 * 4
STEPS, LAYERS = 12, 4


def raw_records(name):
    """(kind, start, end, device, bytes) of kernels and copies, walked by hand."""
    strides, found = {}, []
    with file.Reader(DATA / f"{name}.gpusense") as reader:
        for chunk in reader:
            if chunk.type == file.LAYOUT:
                strides = {int(kind): stride for kind, stride in chunk.json()["strides"].items()}
            elif chunk.type == file.BUFFER:
                data, at = bytes(chunk.buffer().data), 0
                while at < len(data):
                    (kind,) = struct.unpack_from("<I", data, at)
                    if kind == KERNEL:
                        start, end = struct.unpack_from("<QQ", data, at + 16)
                        found.append((kind, start, end, struct.unpack_from("<I", data, at + 40)[0], 0))
                    elif kind in (MEMCPY, MEMCPY2):
                        size, start, end = struct.unpack_from("<QQQ", data, at + 8)
                        found.append((kind, start, end, struct.unpack_from("<I", data, at + 32)[0], size))
                    at += strides[kind]
    return found


def union(intervals):
    total, reach = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


@pytest.fixture(scope="module")
def both():
    return load(DATA / "both.gpusense")


@pytest.fixture(scope="module")
def ranks():
    return merge([load(DATA / f"rank{rank}.gpusense") for rank in range(2)])


def test_kernels_copies_and_blocks_are_what_the_program_did(both):
    kernels = Counter((kernel.path, kernel.device) for kernel in both.kernels if kernel.path)
    assert kernels == {(("pipeline", "stage 0"), 0): 3 * PASSES, (("pipeline", "stage 1"), 1): 2 * PASSES}
    copies = Counter(
        (copy.path[-1], copy.direction, copy.source_device, copy.destination_device, copy.bytes)
        for copy in both.transfers
        if copy.path
    )
    assert copies.pop(("hand over", "gpu_to_gpu", 0, 1, SIZE)) == PASSES
    assert copies.pop(("back", "gpu_to_gpu", 1, 0, SIZE)) == PASSES
    assert [(key[:2], count) for key, count in copies.items()] == [(("result", "gpu_to_cpu"), PASSES)]
    counters = both.counters
    assert (counters.lost_markers, counters.ambiguous, counters.dropped, counters.missed) == (0, 0, 0, 0)
    assert len({device.uuid for device in both.devices}) == 2


@pytest.mark.parametrize("name", ["both", "rank0", "rank1"])
def test_busy_time_is_the_union_of_the_raw_records(name):
    raw, session = raw_records(name), load(DATA / f"{name}.gpusense")
    assert {row.device for row in session.busy} == {device for *_, device, _ in raw}
    for row in session.busy:
        mine = [record for record in raw if record[3] == row.device]
        kernels = [(start, end) for kind, start, end, *_ in mine if kind == KERNEL]
        assert row.kernel_ns == union(kernels)
        assert row.busy_ns >= union((start, end) for _, start, end, *_ in mine)  # memsets are busy time, too


def test_every_report_has_both_devices_and_both_directions(both, tmp_path):
    report = json.loads(json.dumps(report_json.to_dict(both)))
    pairs = {
        (row["source_device"], row["destination_device"]): (row["count"], row["bytes"])
        for row in report["transfers"]
        if row["direction"] == "gpu_to_gpu"
    }
    assert pairs == {(0, 1): (PASSES + 1, (PASSES + 1) * SIZE), (1, 0): (PASSES, PASSES * SIZE)}
    lines = "\n".join(text.full(both))
    assert "cuda 0: busy" in lines
    assert "cuda 1: busy" in lines
    assert "0 → 1" in lines
    assert "1 → 0" in lines
    html.write(both, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "0 → 1" in page or "0 \\u2192 1" in page
    perfetto.write(both, tmp_path / "trace.pftrace")
    trace = (tmp_path / "trace.pftrace").read_bytes()
    assert all(str(device.name).encode() in trace for device in both.devices)


def test_the_slower_rank_is_found(ranks):
    report = report_json.to_dict(ranks)
    (found,) = report["analysis"]["ranks"]
    collectives = STEPS * LAYERS + 1
    assert (found["straggler"], found["collectives"]) == (1, collectives)
    rows = {row["rank"]: row for row in found["ranks"]}
    for rank, row in rows.items():
        mine = Counter("nccl" in kernel.name for kernel in ranks.kernels if kernel.device == rank)
        assert mine[True] == collectives
        kernels = sum(end - start for kind, start, end, *_ in raw_records(f"rank{rank}") if kind == KERNEL)
        assert row["compute_ns"] + row["collective_ns"] == pytest.approx(kernels, rel=0.02)
    assert rows[1]["compute_ns"] > rows[0]["compute_ns"]
    assert sum(row["last_arrivals"] for row in rows.values()) == collectives
    assert "Rank 1 arrives last" in report["verdict"]["title"]
