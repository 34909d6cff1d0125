"""Sessions recorded on two GPUs: every figure of every report, worked out again from the raw bytes of the files.

``tests/data/two_gpus`` was recorded on 2 × NVIDIA H200 (driver 580.159.04, CUDA 13.0, torch 2.11) by
``benchmarks/gpu/two_gpus.py --keep``, which says what was launched: ``both`` is one process that works on both devices
in turn and copies between them; ``rank0`` and ``rank1`` reduce with NCCL beside matrix products, rank 1 with half as
many products again. Nothing here comes from the package but the container of the chunks and the reports themselves.
"""

import io
import json
import math
import re
import statistics
from collections import Counter, defaultdict

import pytest
from support.pages import page_of
from support.protobuf import fields, one
from support.raw_two_gpus import (
    COPIES,
    DATA,
    DEVICE_WORK,
    LAYERS,
    MATRIX,
    NAMES,
    PASSES,
    STEPS,
    Raw,
    covered,
    of,
    points,
    raw_records,
)

from gpusense.analysis.idle import REASONS
from gpusense.report import chrome, perfetto, text
from gpusense.report.json import to_dict
from gpusense.report.style import PLAIN
from gpusense.report.tracks import label
from gpusense.session import load, merge

WIDE = PLAIN._replace(width=240)


@pytest.fixture(scope="module")
def raw():
    return {name: raw_records(name) for name in NAMES}


@pytest.fixture(scope="module")
def sessions():
    return {name: load(DATA / f"{name}.gpusense") for name in NAMES}


@pytest.fixture(scope="module")
def merged(sessions):
    return merge([sessions["rank0"], sessions["rank1"]])


@pytest.fixture(scope="module")
def everything(raw, sessions, merged):
    """(records as they lie in the buffers, session) of the one process, and of the two ranks together."""
    return {"both": (raw["both"], sessions["both"]), "ranks": (raw["rank0"] + raw["rank1"], merged)}


# -- what was launched ---------------------------------------------------------------------------------------------


def test_the_recording_holds_what_the_programs_launched(raw):
    both = raw["both"]
    products = Counter(record.device for record in of(both, "kernel") if "gemm" in record.name)
    assert products == {0: PASSES * 3 + 1, 1: PASSES * 2 + 1}  # and one of each before
    assert Counter(record.pair for record in of(both, "peer")) == {(0, 1): PASSES + 1, (1, 0): PASSES}
    assert {record.bytes for record in of(both, "peer")} == {MATRIX}
    assert [record.bytes for record in of(both, "copy") if record.way == 2] == [MATRIX] * PASSES
    for rank in (0, 1):
        mine = raw[f"rank{rank}"]
        assert {record.device for record in mine} == {rank}
        assert len(of(mine, "kernel", collective=True)) == STEPS * LAYERS + 1
        gemms = [record for record in of(mine, "kernel") if "gemm" in record.name]
        assert len(gemms) == STEPS * LAYERS * (2 + rank) + 1


def test_blocks_have_what_was_launched_in_them_on_the_device_it_went_to(sessions, merged):
    session = sessions["both"]
    kernels = Counter((kernel.path, kernel.device) for kernel in session.kernels if kernel.path)
    assert kernels == {(("pipeline", "stage 0"), 0): 3 * PASSES, (("pipeline", "stage 1"), 1): 2 * PASSES}
    copies = Counter(
        (copy.path, copy.direction, copy.device, copy.source_device, copy.destination_device, copy.bytes)
        for copy in session.transfers
        if copy.path
    )
    assert copies == {
        (("pipeline", "hand over"), "gpu_to_gpu", 0, 0, 1, MATRIX): PASSES,
        (("pipeline", "back"), "gpu_to_gpu", 1, 1, 0, MATRIX): PASSES,
        (("pipeline", "result"), "gpu_to_cpu", 0, None, None, MATRIX): PASSES,
    }
    assert len({device.uuid for device in session.devices}) == 2
    ranks = Counter(
        (*kernel.path[:1], kernel.device, "nccl" in kernel.name)
        for kernel in merged.kernels
        if kernel.path[1:] == ("step", "backward")
    )
    assert ranks == {
        ("rank 0", 0, True): STEPS * LAYERS,
        ("rank 0", 0, False): STEPS * LAYERS * 2,
        ("rank 1", 1, True): STEPS * LAYERS,
        ("rank 1", 1, False): STEPS * LAYERS * 3,
    }
    for session in (*sessions.values(), merged):
        counters = session.counters
        assert counters.ambiguous == counters.lost_markers == counters.dropped == counters.missed == 0


# -- busy, idle, overlap -------------------------------------------------------------------------------------------


def busy_by_device(records):
    return {
        device: (
            covered(of(records, *DEVICE_WORK, device=device)),
            covered(of(records, "kernel", device=device)),
            covered(of(records, *COPIES, device=device)),
        )
        for device in (0, 1)
    }


@pytest.mark.parametrize("name", NAMES)
def test_busy_time_of_each_file_is_the_union_of_its_records(raw, sessions, name):
    expected = busy_by_device(raw[name])
    found = {row.device: (row.busy_ns, row.kernel_ns, row.transfer_ns) for row in sessions[name].busy}
    assert found == {record.device: expected[record.device] for record in raw[name]}


@pytest.mark.parametrize("which", ["both", "ranks"])
def test_busy_time_by_device_is_the_union_of_its_records(everything, which):
    records, session = everything[which]
    report = to_dict(session)
    expected = busy_by_device(records)
    assert {row["device"]: (row["busy_ns"], row["kernel_ns"], row["transfer_ns"]) for row in report["busy"]} == expected
    kept = {row.device: (row.busy_ns, row.kernel_ns, row.transfer_ns) for row in session.busy}
    assert kept == expected
    seen = [report["window_ns"] - covered(off(session, device)) for device in (0, 1)]
    assert [row["busy_share"] for row in report["busy"]] == [expected[device][0] / seen[device] for device in (0, 1)]


@pytest.mark.parametrize("which", ["both", "ranks"])
def test_idle_time_is_divided_as_the_records_lie(everything, which):
    records, session = everything[which]
    report = to_dict(session)
    for row in report["idle"]:
        device = row["device"]
        computing = of(records, "kernel", device=device, collective=False)
        collectives = of(records, "kernel", device=device, collective=True)
        copies = of(records, *COPIES, device=device)
        assert row["compute_ns"] == covered(computing)
        assert row["collective_ns"] == covered(collectives, computing)
        assert row["copy_ns"] == covered(copies, computing, collectives)
        assert sum(row[f"{part}_ns"] for part in REASONS) == row["window_ns"] == report["window_ns"]
        # Empty inside blocks or not: what the outermost blocks of the processes that use the device cover.
        roots = {
            record.path[0] for record in session.records if getattr(record, "device", None) == device and record.path
        }
        inside = [
            Raw("block", device, 0, block.start_ns, block.end_ns)
            for block in session.blocks
            if which == "both" or block.path[0] in roots
        ]
        shifted = work_of(session, device)  # a merged session has one clock
        unseen = off(session, device)
        assert row["host_ns"] + row["synchronisation_ns"] == covered(inside, [*shifted, *unseen])
        assert row["unseen_ns"] == covered(unseen, shifted)
        assert row["no_work_ns"] == report["window_ns"] - covered([*inside, *shifted, *unseen])


def off(session, device):
    """When capture was off: of several processes together that of those which used the device."""
    start, end = session.meta["start_ns"], session.meta["end_ns"]
    unseen = session.unseen
    if len(session.meta.get("processes") or ()) > 1:
        roots = {kernel.path[0] for kernel in session.kernels if kernel.device == device}
        unseen = [row for row in unseen if row.reason.split(": ")[0] in roots]
        assert unseen
    return [Raw("off", 0, 0, max(start, row.start_ns), min(end, row.end_ns or end)) for row in unseen]


def work_of(session, device):
    return [
        Raw("work", device, 0, record.start_ns, record.end_ns)
        for record in (*session.kernels, *session.transfers, *session.memsets)
        if record.device == device
    ]


@pytest.mark.parametrize("which", ["both", "ranks"])
def test_hidden_and_exposed_are_what_lies_beside_computing_kernels(everything, which):
    records, session = everything[which]
    rows = to_dict(session)["analysis"]["overlap"]
    assert [row["device"] for row in rows] == [0, 1]
    for row in rows:
        computing = of(records, "kernel", device=row["device"], collective=False)
        copies = of(records, *COPIES, device=row["device"])
        collectives = of(records, "kernel", device=row["device"], collective=True)
        assert row["copy_ns"] == covered(copies)
        assert row["copy_exposed_ns"] == covered(copies, computing)
        assert row["copy_hidden_ns"] == covered(copies) - covered(copies, computing)
        assert row["collective_ns"] == covered(collectives)
        assert row["collective_exposed_ns"] == covered(collectives, computing)
        assert bool(collectives) == (which == "ranks")


# -- operations and copies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["both", "ranks"])
def test_operations_add_up_by_device(everything, which):
    records, session = everything[which]
    rows = to_dict(session)["operations"]
    for device in (0, 1):
        for kind, kinds in (("kernel", ("kernel",)), ("transfer", ("copy", "peer")), ("memset", ("memset",))):
            mine = [row for row in rows if (row["device"], row["kind"]) == (device, kind)]
            theirs = of(records, *kinds, device=device)
            assert sum(row["count"] for row in mine) == len(theirs)
            assert sum(row["total_ns"] for row in mine) == sum(record.length for record in theirs)
            assert sum(row["bytes"] for row in mine) == sum(record.bytes for record in theirs)
        gemm = next(row for row in rows if row["device"] == device and "gemm" in row["name"])
        lengths = [record.length for record in of(records, "kernel", device=device) if "gemm" in record.name]
        assert (gemm["count"], gemm["min_ns"], gemm["max_ns"]) == (len(lengths), min(lengths), max(lengths))
        assert gemm["median_ns"] == statistics.median(lengths)
        assert gemm["std_ns"] == pytest.approx(statistics.pstdev(lengths))
        assert gemm["share"] == pytest.approx(sum(lengths) / sum(record.length for record in records))


def test_copies_between_the_devices_by_pair(raw, sessions):
    rows = {
        (row["source_device"], row["destination_device"]): row
        for row in to_dict(sessions["both"])["transfers"]
        if row["direction"] == "gpu_to_gpu"
    }
    pairs = defaultdict(list)
    for record in of(raw["both"], "peer"):
        pairs[record.pair].append(record)
    assert set(rows) == set(pairs) == {(0, 1), (1, 0)}
    for pair, copies in pairs.items():
        spent, size = sum(copy.length for copy in copies), sum(copy.bytes for copy in copies)
        row = rows[pair]
        assert (row["count"], row["bytes"], row["total_ns"], row["device"]) == (len(copies), size, spent, pair[0])
        assert row["bandwidth_bytes_per_s"] == pytest.approx(size * 1e9 / spent)
        assert row["peak_bytes_per_s"] == pytest.approx(max(copy.bytes * 1e9 / copy.length for copy in copies))


# -- ranks ---------------------------------------------------------------------------------------------------------


def test_ranks_are_compared_as_their_collectives_say(raw, merged):
    (job,) = to_dict(merged)["analysis"]["ranks"]
    lists = [
        sorted(of(raw[f"rank{rank}"], "kernel", collective=True), key=lambda record: record.start) for rank in (0, 1)
    ]
    matched = list(zip(*lists, strict=True))
    assert job["collectives"] == len(matched) == STEPS * LAYERS + 1
    apart = statistics.median(second.end - first.end for first, second in matched)
    error = statistics.median(abs(second.end - first.end - apart) for first, second in matched)
    late = [second.start - first.start - apart for first, second in matched]  # of rank 1
    last = Counter(int(wait > 0) for wait in late)
    # Clocks as recorded here, joined there: the same up to the rounding of one offset.
    near = {"abs": len(matched)}
    assert [row["last_arrivals"] for row in job["ranks"]] == [last[0], last[1]]
    assert job["ranks"][0]["waited_ns"] == pytest.approx(sum(wait for wait in late if wait > 0), **near)
    assert job["ranks"][1]["waited_ns"] == pytest.approx(-sum(wait for wait in late if wait < 0), **near)
    assert job["clock_error_ns"] == pytest.approx(error, abs=1)
    assert job["straggler"] == 1
    computing = []
    for rank, row in enumerate(job["ranks"]):
        mine = of(raw[f"rank{rank}"], "kernel", collective=False)
        collectives = of(raw[f"rank{rank}"], "kernel", collective=True)
        computing.append(covered(mine))
        assert row["rank"] == rank
        assert row["compute_ns"] == covered(mine)
        assert row["collective_ns"] == covered(collectives)
        assert row["collective_exposed_ns"] == covered(collectives, mine)
    assert job["imbalance"] == pytest.approx(max(computing) / (sum(computing) / 2) - 1)
    # Rank 1 has three products where rank 0 has two, and the devices are alike.
    assert computing[1] > computing[0]
    assert any("Rank 1 arrives last" in finding["title"] for finding in to_dict(merged)["findings"])


# -- text ----------------------------------------------------------------------------------------------------------

UNITS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "GB/s": 1e9, "MB/s": 1e6}


def amounts(line):
    """Every number with a unit of a line, and how exact it is told."""
    found = []
    for digits, unit in re.findall(r"(\d[\d,]*(?:\.\d+)?) (GB/s|MB/s|ns|µs|ms|s|kB|MB|GB|B)\b", line):
        plain = digits.replace(",", "")
        found.append((float(plain) * UNITS[unit], 0.5 * UNITS[unit] / 10 ** len(plain.partition(".")[2])))
    return found


def tells(line, *expected):
    """Whether a line tells these amounts in this order, rounded as it likes."""
    found = iter(amounts(line))
    return all(any(abs(value - wanted) <= within * 1.001 for value, within in found) for wanted in expected)


@pytest.mark.parametrize("which", ["both", "ranks"])
def test_the_text_tells_the_same(everything, which):
    records, session = everything[which]
    lines = list(text.full(session, WIDE))
    assert "2 × NVIDIA H200" in lines[0]
    at = lines.index("Operations on the device, whole run")
    whole = lines[at : lines.index("", at)]
    for device, (busy, kernels, copies) in busy_by_device(records).items():
        place = next(at for at, line in enumerate(lines) if line.strip().startswith(f"GPU {device}: busy"))
        assert tells(lines[place], busy, kernels, copies), lines[place]
        computing = of(records, "kernel", device=device, collective=False)
        assert tells(lines[place + 1], covered(computing)), lines[place + 1]
        for kind in ("gemm", "nccl"):
            lengths = [record.length for record in of(records, "kernel", device=device) if kind in record.name]
            if lengths:
                (row,) = [line for line in whole if f"[{device}] " in line and kind in line]
                total, average = sum(lengths), statistics.mean(lengths)
                middle, low, high = statistics.median(lengths), min(lengths), max(lengths)
                assert tells(row, total, average, middle, low, high, statistics.pstdev(lengths)), row
                assert f" {len(lengths)} " in row
    for pair in {record.pair for record in of(records, "peer")}:
        copies = [record for record in of(records, "peer") if record.pair == pair]
        size, spent = sum(copy.bytes for copy in copies), sum(copy.length for copy in copies)
        (row,) = [line for line in lines if f"between GPUs {pair[0]} → {pair[1]}" in line]
        assert tells(row, size, spent, size * 1e9 / spent), row
        assert f" {len(copies)} " in row
    table = lines[lines.index("Copies") + 1 : lines.index("", lines.index("Copies"))]
    assert "Device" in table[0]
    assert [sum(f" GPU {device} " in row for row in table[1:]) for device in (0, 1)] == [
        len({(record.kind, record.way, record.pair) for record in of(records, "copy", "peer", device=device)})
        for device in (0, 1)
    ]


def test_the_text_compares_the_ranks(raw, merged):
    lines = list(text.full(merged, WIDE))
    (job,) = to_dict(merged)["analysis"]["ranks"]
    for rank, row in enumerate(job["ranks"]):
        line = next(line for line in lines if line.strip().startswith(f"rank {rank} ") and " of 49" in line)
        mine = of(raw[f"rank{rank}"], "kernel", collective=False)
        collectives = of(raw[f"rank{rank}"], "kernel", collective=True)
        assert tells(line, covered(mine), covered(collectives), covered(collectives, mine), row["waited_ns"]), line
        assert f"{row['last_arrivals']} of 49" in line
    assert any(line.startswith("verdict: Rank 1 arrives last in") for line in lines)


# -- HTML ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["both", "ranks"])
def test_the_page_holds_the_same(everything, which):
    records, session = everything[which]
    page = page_of(session)
    report = to_dict(session)
    (whole,) = [phase for phase in page.data["phases"] if phase["name"] == "whole"]
    of_device = {row["device"]: row for row in report["busy"]}
    for entry in whole["breakdown"]:
        row = of_device[int(re.match(r"GPU (\d) · NVIDIA H200", entry["device"])[1])]
        parts = dict(entry["parts"])
        assert sum(parts.get(part, 0) for part in ("compute", "collective", "copy")) == row["busy_ns"]
        assert sum(parts.values()) == entry["window"]
    theirs = {(row["kind"], label(row["name"]), row["device"], row["direction"]): row for row in report["operations"]}
    named = [*whole["operations"], *page.data["host"]]
    assert len(named) == len(theirs)
    for mine in named:
        same = theirs[mine["kind"], mine["name"], mine["device"], mine["direction"]]
        for name in ("count", "total_ns", "min_ns", "max_ns", "bytes"):
            assert mine[name] == same[name]
    # Each event of a device's rows: their union is the device's busy time, to the nanosecond.
    starts, lengths = page.column("start"), page.column("length")
    rows = page.data["timeline"]["rows"]
    ends = [row["at"] for row in rows[1:]] + [len(starts)]
    drawn = defaultdict(list)
    for row, end in zip(rows, ends, strict=True):
        if row["busy"]:
            device = int(re.search(r"GPU (\d)", row["group"])[1])
            for start, length in zip(starts[row["at"] : end], lengths[row["at"] : end], strict=True):
                drawn[device].append(Raw("drawn", device, 0, int(start), int(start + length)))
    for device, (busy, _, _) in busy_by_device(records).items():
        assert len(drawn[device]) == len(of(records, *DEVICE_WORK, device=device))
        assert covered(drawn[device]) == busy
    (table,) = [table for table in page.data["tables"] if table["title"] == "Copies"]
    copies = [dict(zip(table["heads"], row, strict=True)) for row in table["rows"]]
    assert len({tuple(row[head] for head in ("Direction", "Device", "Memory")) for row in copies}) == len(copies)
    for device in (0, 1):
        mine = [row for row in copies if row["Device"] == f"GPU {device}"]
        theirs = of(records, "copy", "peer", device=device)
        assert sum(int(row["Calls"].replace(",", "")) for row in mine) == len(theirs)
        for pair in {record.pair for record in theirs if record.pair}:
            (row,) = [row for row in mine if row["Direction"] == f"copies between GPUs {pair[0]} → {pair[1]}"]
            assert row["Calls"] == str(sum(record.pair == pair for record in theirs))


# -- traces --------------------------------------------------------------------------------------------------------


def slices_by_device(session):
    """What the native trace draws below each device, but the reasons why it was idle; devices by their full name."""
    data = io.BytesIO()
    perfetto.write(session, data)
    parents = {}
    for _, packet in fields(data.getvalue()):
        entry = one(packet).get(60)
        if entry is not None:
            track = one(entry)
            parents[track[1]] = (track.get(2, b"").decode(), track.get(5))
    stacks, found = defaultdict(list), defaultdict(list)
    events = []
    for order, (_, packet) in enumerate(fields(data.getvalue())):
        body = one(packet)
        if 11 in body:
            events.append((body[8], order, one(body[11])))
    for time, _, event in sorted(events, key=lambda event: event[:2]):
        name, parent = parents[event[11]]
        group = parents[parent][0] if parent in parents else ""
        if event[9] == 1:
            stacks[event[11]].append(time)
        elif event[9] == 2:
            start = stacks[event[11]].pop()
            if group.startswith("GPU ") and not name.startswith("idle"):
                assert group == f"GPU {group[4]} · {session.devices[int(group[4])].name}"
                found[int(group[4])].append(Raw("slice", int(group[4]), 0, start, time))
    return found


@pytest.mark.parametrize("which", ["both", "ranks"])
def test_the_native_trace_draws_the_same(everything, which):
    records, session = everything[which]
    drawn = slices_by_device(session)
    for device, (busy, _, _) in busy_by_device(records).items():
        assert len(drawn[device]) == len(of(records, *DEVICE_WORK, device=device))
        assert covered(drawn[device]) == busy
        lengths = Counter(record.length for record in of(records, *DEVICE_WORK, device=device))
        assert Counter(record.length for record in drawn[device]) == lengths
    if which == "both":  # one process: its clock as recorded
        assert points(drawn[0] + drawn[1]) == points(of(records, *DEVICE_WORK))


@pytest.mark.parametrize("which", ["both", "ranks"])
def test_the_chrome_trace_draws_the_same(everything, which):
    records, session = everything[which]
    out = io.StringIO()
    chrome.write(session, out)
    events = json.loads(out.getvalue())["traceEvents"]
    groups = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    lanes = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    for device in (0, 1):
        mine = [
            event
            for event in events
            if event["ph"] == "X"
            and groups[event["pid"]].startswith(f"GPU {device} ")
            and not lanes[event["pid"], event["tid"]].startswith("idle")
        ]
        theirs = of(records, *DEVICE_WORK, device=device)
        assert len(mine) == len(theirs)
        assert math.isclose(sum(event["dur"] for event in mine), sum(record.length for record in theirs) / 1000)
