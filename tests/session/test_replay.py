"""Raw session files made by hand, read back."""

import struct
import subprocess
import sys
import time

import pytest
from support.cupti import STRIDES, T0, kernel, view

from gpusense._attribution import attributor, timelines
from gpusense._attribution.attributor import Attributor
from gpusense._attribution.boundaries import CLOSE, ENDED, LEAVE, OPEN, PLACED, SWITCH, taken_apart
from gpusense.session import _format as file
from gpusense.session import load
from gpusense.session._block_chunks import Packer
from gpusense.session._writer import Writer

MAIN = 5


def write(path, *chunks):
    """``chunks``: lists of boundary rows, or of the parts of a chunk of blocks; tuples of correlation ids of kernels in
    one buffer."""
    writer = Writer(str(path))
    writer.json(file.META, {"start_ns": T0, "threshold_ns": 0})
    writer.layout(1, STRIDES, marker=[])
    writer.names({0x100: b"k"})
    for chunk in chunks:
        if isinstance(chunk, list) and isinstance(chunk[0], bytes):
            writer.append(file.BLOCKS, *chunk)
        elif isinstance(chunk, list):
            writer.rows(file.BOUNDARY, chunk)
        else:
            records = [kernel(T0 + corr * 1000, T0 + corr * 1000 + 500, corr) for corr in chunk]
            writer.buffer(memoryview(b"".join(records)), thread=MAIN, layout=1)
    writer.close(end_ns=time.time_ns())
    return {record.correlation_id: record.path for record in load(str(path)).kernels}


def row(op, block, parent, at, name="", corr=1):
    return [op, block, parent, MAIN, T0 + at, T0 + at, name, 0, corr]


def test_a_block_opened_while_nothing_could_be_marked_begins_about_there(tmp_path):
    paths = write(
        tmp_path / "a.gpusense",
        [row(OPEN, 1, None, 0, "before capture", corr=0)],
        (10, 11),
        [row(OPEN, 2, 1, 20_000, "while another profiler ran")],
        (30, 31),
        [row(CLOSE, 2, None, 40_000)],
        (50,),
    )
    inner = ("before capture", "while another profiler ran")
    assert paths == {10: inner[:1], 11: inner[:1], 30: inner, 31: inner, 50: inner[:1]}


@pytest.mark.parametrize("ended", [T0 + 10**6, None])
def test_work_that_ends_after_the_recording_is_of_another_clock(tmp_path, ended):
    """Where the recording was not ended, nobody knows."""
    writer = Writer(str(tmp_path / "a.gpusense"), clock=lambda: 0)
    writer.json(file.META, {"start_ns": T0, "threshold_ns": 0})
    writer.layout(1, STRIDES, marker=[])
    records = [kernel(T0 + 10, T0 + 20, 1), kernel(T0 + 10**18, T0 + 10**18 + 10, 2)]
    writer.buffer(memoryview(b"".join(records)), thread=MAIN, layout=1)
    writer.close(**({"end_ns": ended} if ended else {}))
    session = load(tmp_path / "a.gpusense")
    assert len(session.kernels) == (1 if ended else 2)
    assert session.counters.in_future == session.counters.invalid == (1 if ended else 0)


def test_switches_between_tasks(tmp_path):
    paths = write(
        tmp_path / "a.gpusense",
        [row(OPEN, 1, None, 0, "a", corr=0), row(OPEN, 2, None, 1, "b", corr=0), row(SWITCH, 0, 1, 2, corr=0)],
        (10,),
        [row(SWITCH, 0, 2, 20_000)],
        (30,),
        [row(CLOSE, 2, 0, 40_000)],
        (50,),
        [row(SWITCH, 0, 1, 60_000)],
        (70,),
        [row(LEAVE, 0, 0, 80_000)],
        (90,),
    )
    assert paths == {10: ("a",), 30: ("b",), 50: (), 70: ("a",), 90: ()}


def test_boundaries_that_were_read_are_found_in_files_of_format_1_2_and_as_numbers(tmp_path):
    crossed = [
        (PLACED, OPEN, 1, None, MAIN, T0, "step", 0),
        (PLACED, OPEN, 2, 1, MAIN, T0 + 20_000, "forward", 11),
        (PLACED, CLOSE, 2, None, MAIN, T0 + 40_000, "", 31),
    ]
    ended = (ENDED, None, MAIN, 51, "step", 1, None, ("step",), T0, T0 + 60_000, MAIN, {"batch": 3}, None)
    packer = Packer()
    assert packer.add([*crossed, ended]) == []
    read = [
        [op, block, parent, thread, time, time, name, 0, None, newest]
        for _, op, block, parent, thread, time, name, newest in (*crossed, taken_apart([ended])[0][0])
    ]
    for name, boundaries in (("numbers", packer.take()), ("rows", read)):
        expected = {
            10: ("step",),
            11: ("step",),
            12: ("step", "forward"),
            31: ("step", "forward"),
            40: ("step",),
            70: (),
        }
        assert write(tmp_path / name, boundaries, tuple(expected)) == expected
    (block,) = load(str(tmp_path / "numbers")).blocks
    assert (block.path, block.start_ns, block.end_ns, block.attributes) == (("step",), T0, T0 + 60_000, {"batch": 3})
    assert load(str(tmp_path / "numbers")).counters.seen == 7


# --- session files that somebody made up ----------------------------------------------------------------------------


def packed(items):
    packer = Packer()
    packer.add(items)
    return packer.take()


HOSTILE = {
    "a block that is its own parent": {"boundary": [[1, 1, 1, 5, T0, T0 + 1, "n", 0, 50]]},
    "blocks in a circle": {"boundary": [[1, 1, 2, 5, T0, T0 + 1, "n", 0, 50], [1, 2, 1, 5, T0, T0 + 1, "n", 0, 60]]},
    "text for times": {"boundary": [[1, 1, None, 5, "a", "b", "n", 7, None]]},
    "text for an id": {"boundary": [[1, 1, None, 5, T0, T0 + 1, "n", 0, "x"], [1, 2, None, 5, T0, T0 + 1, "n", 0, 60]]},
    "an object for a name": {"boundary": [[1, 1, None, 5, T0, T0 + 1, {"a": 1}, 0, 50]]},
    "text for a row": {"boundary": ["row", 5]},
    "blocks that are none": {"blocks": b"\1"},
    "a number of blocks that are not there": {"blocks": b"\2\0\0\0\xff\xff\xff\xff[]"},
    "a block inside itself": {"blocks": b"".join(packed([(PLACED, OPEN, 7, 7, MAIN, T0, "n", 0)]))},
    "an id of more than 32 bits": {"blocks": b"".join(packed([(PLACED, OPEN, 7, 7, MAIN, T0, "n", 1 << 32)]))},
    "a layout without sizes": {"layout": {"id": 2, "strides": []}},
    "a list of owners": {"meta": {"graph_owners": [1]}},
    "an owner without number": {"meta": {"graph_owners": {"x": ["a"]}}},
    "an owner without path": {"meta": {"graph_owners": {"1": 5}}},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_loads_with_damage(case, tmp_path):
    writer = Writer(tmp_path / "run")
    meta = {"version": "1", "mode": "file", "start_ns": T0 - 10**9, "end_ns": T0 + 10**9}
    writer.json(file.META, meta | HOSTILE[case].get("meta", {}))
    writer.layout(1, STRIDES, marker=[])
    if "layout" in HOSTILE[case]:
        writer.json(file.LAYOUT, HOSTILE[case]["layout"])
    writer.rows(file.BOUNDARY, HOSTILE[case].get("boundary", []))
    if "blocks" in HOSTILE[case]:
        writer.append(file.BLOCKS, HOSTILE[case]["blocks"])
    records = [kernel(T0 + i * 1000, T0 + i * 1000 + 500, correlation=100 + i) for i in range(20)]
    writer.buffer(view(*records), thread=5, layout=1)
    writer.close()
    code = """
import sys
from gpusense import session
found = session.load(sys.argv[1])
print(len(found.meta["damage"]), found.counters.seen, found.counters.kept + found.counters.aggregated)
"""
    done = subprocess.run([sys.executable, "-c", code, writer.path], capture_output=True, text=True, timeout=10)
    assert done.returncode == 0, done.stderr
    damage, *counts = map(int, done.stdout.split())
    assert damage >= 1
    assert counts == [20, 20]


def test_a_bad_row_costs_itself_alone(tmp_path):
    rows = [row(OPEN, 1, None, 0, "good", corr=0), row(OPEN, 3, 3, 1, "its own parent", corr=0)]
    assert write(tmp_path / "a.gpusense", rows, (10,)) == {10: ("good",)}
    damage = load(str(tmp_path / "a.gpusense")).meta["damage"]
    assert len(damage) == 1
    assert "1 row of" in damage[0]
    assert "block 3 is inside block 3" in damage[0]


def test_owners_of_graph_nodes_that_are_fine_stay(tmp_path):
    writer = Writer(tmp_path / "run")
    writer.json(file.META, {"graph_owners": {"7": ["a", "b"], "8": "b", "-1": ["a"]}, "mode": "file"})
    writer.close()
    damage = load(writer.path).meta["damage"]
    assert damage == [f"the owner of the graph node {node!r} was left out" for node in ("8", "-1")]


def test_blocks_nested_deeper_than_pythons_stack():
    tree = Attributor()
    for block in range(1, 5001):
        tree.know(block, block - 1 or None, str(block))
    assert tree.path(5000) == tuple(map(str, range(1, 5001)))


def test_blocks_without_any_place_are_never_open_together(tmp_path, monkeypatch):
    """Where no driver is there all boundaries are before everything: an end as well as a start."""
    monkeypatch.setattr(attributor, "MAX_EVENTS", 1_000)
    crowds, crowd = [], timelines.Crowd
    monkeypatch.setattr(timelines, "Crowd", lambda *start: crowds.append(start) or crowd(*start))
    rows = [row(op, block, None, 2 * block + 1 - op, "a", corr=0) for block in range(1, 10_000) for op in (OPEN, CLOSE)]
    assert write(tmp_path / "a.gpusense", rows, (10,)) == {10: ()}
    assert crowds == []


MEMSET = struct.Struct("<IIQQQIIIIHHIQQIIII")


@pytest.mark.parametrize("contexts", [{"others_contexts": [[2, 6]]}, {}])
def test_markers_of_other_copies_are_told_by_their_context_where_the_file_has_it(tmp_path, contexts):
    writer = Writer(str(tmp_path / "a.gpusense"))
    writer.json(file.META, {"start_ns": T0, "threshold_ns": 0})
    strides = {**STRIDES, 2: MEMSET.size}
    writer.layout(1, strides, marker=[2, 0, 1, 5, True], kinds=[2], others_markers=[6, 8], **contexts)
    places = [(context, stream) for context in (1, 2) for stream in (5, 6, 8)]
    writer.buffer(
        b"".join(
            MEMSET.pack(2, 0, 4, T0 + i, T0 + i + 1, 0, context, stream, i, *[0] * 9)
            for i, (context, stream) in enumerate(places, 1)
        ),
        thread=MAIN,
        layout=1,
    )
    writer.close(end_ns=T0 + 100)
    found = [(row.context, row.stream) for row in load(writer.path).memsets]
    assert found == ([(1, 6), (2, 5)] if contexts else [(2, 5)])
