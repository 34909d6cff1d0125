"""Raw session files made by hand, read back."""

import time

from cupti_bytes import STRIDES, T0, kernel

from gpusense import _sessionfile as file
from gpusense._attribution import CLOSE, LEAVE, OPEN, SWITCH
from gpusense.session import load

MAIN = 5


def write(path, *chunks):
    """``chunks``: lists of boundary rows, and tuples of correlation ids of kernels in one buffer."""
    writer = file.Writer(str(path))
    writer.json(file.META, {"start_ns": T0, "threshold_ns": 0})
    writer.layout(1, STRIDES, marker=[])
    writer.names({0x100: b"k"})
    for chunk in chunks:
        if isinstance(chunk, list):
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
