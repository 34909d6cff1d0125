"""Passes of wgpu are called passes in every report, and a processor that plays a GPU is called a CPU."""

import io
import json
import re

import pytest
from support.protobuf import fields, one
from support.sessions import H100, MS, US, block, copy, kernel, session, sync, training

from gpusense._records.records import Aggregate, DeviceInfo, GpuKernel, GpuMemoryTransfer, GpuSync
from gpusense.analysis.facts import Facts
from gpusense.analysis.findings import findings
from gpusense.report import chrome, flamegraph, text
from gpusense.report.divisions import Divisions
from gpusense.report.html.data import page_data
from gpusense.report.html.page import page_file
from gpusense.report.perfetto import packets
from gpusense.report.style import PLAIN

WIDE = PLAIN._replace(width=240)
LLVMPIPE = DeviceInfo(0, "llvmpipe (LLVM 15.0.6, 256 bits)", "unknown", "wgpu", kind="cpu")
STEPS = 40


def rendered(device=LLVMPIPE, more=()):
    """Frames of 10 ms: a pass, a copy on the device, then a wait for what the host reads back."""
    records = [
        record
        for at in range(0, 10 * STEPS, 10)
        for record in (
            block(("frame",), at * MS, (at + 10) * MS, number=at // 10 + 1),
            kernel("scene", at * MS, (at + 5) * MS, backend="wgpu", stream=None, path=("frame",)),
            copy("on_device", 4 << 20, (at + 5) * MS, (at + 7) * MS, backend="wgpu", stream=None, path=("frame",)),
            copy("gpu_to_cpu", 1 << 20, (at + 7) * MS, (at + 8) * MS, backend="wgpu", stream=None, timing="host")
            ._replace(name="read_buffer(picture)", path=("frame",)),
        )
    ]  # fmt: skip
    return session(*records, *more, devices=(device,), end=10 * STEPS * MS)


def everything(run):
    """Each report as a text, and the strings of Perfetto's."""
    out = io.StringIO()
    chrome.write(run, out)
    strings = b"\n".join(re.findall(rb"[ -~\xc2\xb7]{4,}", b"".join(packets(run)))).decode("utf-8", "replace")
    facts = page_data(run).facts
    facts["phases"] = [
        {**phase, "operations": [{**row, "kind": None, "colour": None} for row in phase["operations"]]}
        for phase in facts["phases"]
    ]  # what the page's script goes by, and shows nowhere
    facts["flame"] = None
    return {
        "text": "\n".join(text.full(run, WIDE)),
        "summary": "\n".join(text.summary(run, WIDE)),
        "page": json.dumps(facts, default=str, ensure_ascii=False),
        "chrome": out.getvalue(),
        "perfetto": strings,
        "flame graph": "\n".join(flamegraph.collapsed(run)),
    }


def test_passes_are_no_kernels_and_a_processor_is_no_gpu_0():
    for name, report in everything(rendered()).items():
        assert "ernel" not in report.replace("kernel_", ""), name
        assert "GPU 0" not in report, name
        assert name == "flame graph" or "CPU (llvmpipe)" in report, name


def test_where_passes_stand():
    run = rendered()
    page_facts = page_data(run).facts
    (judged,) = [phase for phase in page_facts["phases"] if phase["judged"]]
    tiles = {tile["label"]: tile["value"] for tile in judged["tiles"]}
    assert (tiles["CPU busy"], tiles["Passes"]) == ("70 %", f"{judged['breakdown'][0]['steps']}")
    scene = judged["operations"][0]
    assert (scene["kind"], scene["what"], scene["card"]) == ("kernel", "pass", "CPU (llvmpipe)")
    assert [family for family, _ in judged["breakdown"][0]["families"]] == ["passes", "copies and memsets"]
    assert ("CPU (llvmpipe)", "passes") in {(row["group"], row["name"]) for row in page_facts["timeline"]["rows"]}
    (blocks,) = [table for table in page_facts["tables"] if table["title"] == "Blocks"]
    assert "passes" in blocks["heads"]
    full = "\n".join(text.full(run, WIDE))
    assert re.search(r"phase +length +CPU busy +most of it", full)
    assert "  [CPU] scene" in full
    assert all(f"row.{name}" in page_file("table.js") for name in ("what", "card"))


def test_copies_of_wgpu_stand_among_the_copies_and_in_findings():
    run = rendered()
    (table,) = [one for one in page_data(run).facts["tables"] if one["title"] == "Copies"]
    assert table["heads"] == ("Direction", "Calls", "Bytes", "Time", "Rate", "Fastest")  # of memory and link nothing
    assert [row[:4] for row in table["rows"]] == [
        ("copies on the device", f"{STEPS}", "168 MB", "80.0 ms"),
        ("copies device to host: read_buffer(picture)", f"{STEPS}", "41.9 MB", "40.0 ms"),
    ]
    assert table["rows"][1][4:] == ("–", "–")  # the call's time is no rate of a link
    (exposed,) = [one for one in findings(run) if one.kind == "exposed_copies"]
    assert "copies and passes take turns" in exposed.title
    assert "stream" not in exposed.fix


def test_no_finding_on_passes_speaks_of_cuda():
    """Whatever was seen: pauses before new passes, waits, copies in turn."""
    frames = [
        record
        for at in range(60)
        for record in (
            kernel(f"scene {at % 3 and at}", (10 * at + 4) * MS, (10 * at + 6) * MS),
            copy("on_device", 4 << 20, (10 * at + 6) * MS, (10 * at + 8) * MS),
            sync((10 * at + 5) * MS, (10 * at + 8) * MS, name="queue_synchronize"),
            kernel("blur", (10 * at + 8) * MS, (10 * at + 9) * MS),
        )
    ]
    runs = [session(*frames, end=600 * MS, devices=(LLVMPIPE,)), session(*frames[::2], end=600 * MS), training(8)]
    said = []
    for run in runs:
        run.records = [_as_wgpu(record) for record in run.records if type(record) in _OF_WGPU]
        said += findings(run)
    assert {found.kind for found in said} >= {"exposed_copies", "recompilation"}
    for found in said:
        sentences = " ".join((found.title, *found.evidence, found.fix))
        assert not re.search(r"kernel|CUDA|cuda|stream|torch", sentences), found


_OF_WGPU = (GpuKernel, GpuMemoryTransfer, GpuSync)


def _as_wgpu(record):
    """The record as wgpu's would be: of no stream, no kind of memory, no family."""
    lost = {name: None for name in ("stream", "source", "destination", "full_name") if name in record._fields}
    return record._replace(backend="wgpu", name=record.name.replace("kernel", "pass").replace("nccl", ""), **lost)


@pytest.mark.parametrize("counted", [False, True])
def test_a_card_that_cuda_and_wgpu_reach_is_one(counted):
    """One device, one row of reasons, and each piece of work called what it is."""
    more = [kernel("gemm", (at + 8) * MS, (at + 9) * MS) for at in range(0, 10 * STEPS, 10)]
    run = rendered(H100, more)
    if counted:  # a short pass has a row and no record
        short = kernel("tiny", 9500 * US, 9501 * US, backend="wgpu", stream=None)
        run.take_work(rendered(H100, [*more, short]).work)
        run.aggregates.append(Aggregate((), "kernel", "tiny", "wgpu", 0, None, 1, US, US, US, US * US))
        run.counters = run.counters._replace(aggregated=1)
    facts = page_data(run).facts
    (judged,) = [phase for phase in facts["phases"] if phase["judged"]]
    assert [one["device"] for one in judged["breakdown"]] == [f"GPU 0 · {H100.name}"]
    assert [family for family, _ in judged["breakdown"][0]["families"]][:1] == ["passes"]
    called = {row["name"]: (row["what"], row["card"]) for row in judged["operations"] if row["kind"] == "kernel"}
    assert (called["scene"], called["gemm"]) == (("pass", "GPU 0"), ("kernel", "GPU 0"))
    assert "Kernels and passes" in {tile["label"] for tile in judged["tiles"]}
    names = [row["name"] for row in facts["timeline"]["rows"] if row["group"].startswith("GPU 0")]
    assert names == ["stream 7", "passes", "copies on the device", "idle: why"]
    assert ("tiny" in facts["timeline"]["names"]) is counted
    (copies,) = [table for table in facts["tables"] if table["title"] == "Copies"]
    assert "Device" not in copies["heads"]
    assert _perfetto_tracks(run).count("idle: why") == 1
    divisions = Divisions(Facts(run))
    gaps = [list(divisions.gaps((backend, 0))) for backend in ("cuda", "wgpu")]
    assert gaps[0]
    assert gaps[0] == gaps[1]
    scene = next(row for row in divisions.judged[0].operations if row.name == "scene")
    assert len(divisions.lengths(divisions.judged[0].phase, scene)) == scene.count


def _perfetto_tracks(run):
    packets_read = (one(body) for _, body in fields(b"".join(packets(run))))
    return [one(packet[60]).get(2, b"").decode() for packet in packets_read if 60 in packet]
