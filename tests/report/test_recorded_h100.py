"""A training recorded on an H100: every figure of the reports against the raw bytes."""

import json
import struct

import pytest
from support.sessions import RECORDED

from gpusense.analysis.findings import verdict
from gpusense.analysis.operation import operations
from gpusense.report import json as report_json
from gpusense.report import perfetto
from gpusense.report.html import page as html
from gpusense.session import _format as file
from gpusense.session import load

KERNEL, MEMCPY, MEMSET, DRIVER = 10, 1, 2, 4


def raw_records():
    """(kind, start, end, bytes, copy kind) of every record, walked by hand."""
    strides, found, marker_stream = {}, [], None
    with file.Reader(RECORDED) as reader:
        for chunk in reader:
            if chunk.type == file.LAYOUT:
                facts = chunk.json()
                strides = {int(kind): stride for kind, stride in facts["strides"].items()}
                marker_stream = facts["marker"][3] if facts.get("marker") else marker_stream
            elif chunk.type == file.BUFFER:
                data = bytes(chunk.buffer().data)
                at = 0
                while at < len(data):
                    (kind,) = struct.unpack_from("<I", data, at)
                    if kind == KERNEL:
                        found.append((kind, *struct.unpack_from("<QQ", data, at + 16), 0, 0))
                    elif kind == MEMCPY:
                        copied, start, end = struct.unpack_from("<QQQ", data, at + 8)
                        found.append((kind, start, end, copied, data[at + 4]))
                    elif kind == MEMSET:
                        size, start, end = struct.unpack_from("<QQQ", data, at + 8)
                        (stream,) = struct.unpack_from("<I", data, at + 40)
                        if stream != marker_stream:
                            found.append((kind, start, end, size, 0))
                    at += strides[kind]
    return found


def union(intervals):
    total, reach = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


@pytest.fixture(scope="module")
def raw():
    return raw_records()


@pytest.mark.parametrize("trace_all", [False, True])
def test_operations_add_up_to_the_raw_records(raw, trace_all):
    session = load(RECORDED, trace_all=trace_all)
    rows = operations(session)
    for kind, name in ((KERNEL, "kernel"), (MEMCPY, "transfer"), (MEMSET, "memset")):
        mine = [row for row in rows if row.kind == name]
        theirs = [record for record in raw if record[0] == kind]
        assert sum(row.count for row in mine) == len(theirs)
        assert sum(row.total_ns for row in mine) == sum(end - start for _, start, end, _, _ in theirs)
        assert sum(row.bytes for row in mine) == sum(size for *_, size, _ in theirs)
    up = sum(size for kind, _, _, size, copy in raw if (kind, copy) == (MEMCPY, 1))
    assert sum(row.bytes for row in rows if row.direction == "cpu_to_gpu") == up
    (busy,) = session.busy
    assert busy.busy_ns == union((start, end) for _, start, end, _, _ in raw)
    assert busy.kernel_ns == union((start, end) for kind, start, end, _, _ in raw if kind == KERNEL)
    counters = session.counters
    assert counters.seen == counters.kept + counters.aggregated
    assert counters.lost_markers == counters.ambiguous == counters.dropped == counters.missed == 0


def test_every_step_launched_the_same_number_of_kernels():
    session = load(RECORDED, trace_all=True)
    by_step = {}
    steps = [block for block in session.blocks if block.name == "step"]
    parents = {block.block_id: block.parent_id for block in session.blocks}
    for kernel in session.kernels:
        block = kernel.block_id
        while block is not None and block not in {step.block_id for step in steps}:
            block = parents.get(block)
        by_step[block] = by_step.get(block, 0) + 1
    assert len(steps) == 14
    assert len({by_step[step.block_id] for step in steps}) == 1


def test_json_and_html_say_what_the_session_says(tmp_path):
    session = load(RECORDED)
    data = json.loads(json.dumps(report_json.to_dict(session)))
    assert data["counters"]["seen"] == session.counters.seen
    assert data["verdict"]["title"] == verdict(session).title
    assert sum(row["total_ns"] for row in data["operations"] if row["kind"] == "kernel") == sum(
        row.total_ns for row in operations(session) if row.kind == "kernel"
    )
    html.write(session, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "waiting for the host" in page
    assert "http" not in page.split("<body", 1)[0].replace("http-equiv", "")
    perfetto.write(load(RECORDED, trace_all=True), tmp_path / "trace.pftrace")
    assert (tmp_path / "trace.pftrace").stat().st_size > 100_000


def test_the_analyses_of_the_json_agree_with_the_raw_records(raw):
    report = report_json.to_dict(load(RECORDED))
    analysis = report["analysis"]
    kernels = [end - start for kind, start, end, _, _ in raw if kind == KERNEL]
    (launches,) = analysis["launches"]
    assert launches["kernels"] == len(kernels)
    assert launches["avg_ns"] == pytest.approx(sum(kernels) / len(kernels))
    (coverage,) = analysis["coverage"]
    assert coverage["kernel_ns"] == sum(kernels)
    (overlap,) = analysis["overlap"]
    assert overlap["copy_ns"] == union((start, end) for kind, start, end, _, _ in raw if kind in (MEMCPY, MEMSET))
    root, *blocks = analysis["block_tree"]
    assert (root["kernels"], root["gpu_ns"]) == (len(kernels), sum(end - start for _, start, end, _, _ in raw))
    assert sum(row["own_kernel_ns"] for row in (root, *blocks)) == sum(kernels)
    assert {row["passes"] for row in blocks if row["path"] == ["step"]} == {14}
    assert [row["method"] for row in analysis["energy"]] == ["power"] * len(analysis["energy"])
