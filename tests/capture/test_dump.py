"""What a dump holds and where it lies: of a recorder without capture, and of rows that were put there."""

import errno
import os
from types import SimpleNamespace

import pytest
from support.cupti import T0

from gpusense._aggregation.recent import Recent
from gpusense._aggregation.same_kernels import SameKernels
from gpusense._capture import dump
from gpusense._capture.flight import Reason, Taken
from gpusense._records.records import BlockRecord, ComputeBlock, Counters, GpuCollective, GpuKernel, UnseenInterval
from gpusense._records.work import COLUMNS, WorkKind, WorkTable
from gpusense._runtime import cache
from gpusense._runtime.errors import SessionError
from gpusense.session import load
from gpusense.testing import device, metrics

S = 1_000_000_000
ASKED = Taken([Reason("asked", T0 + 20 * S)], 0, None)


class Known:
    old = ()

    def __init__(self):
        self.unseen = [UnseenInterval(T0, T0 + S, "long ago"), UnseenInterval(T0 + 15 * S, None, "paused")]

    def meta(self):
        return {"start_ns": T0, "mode": "live", "threshold_ns": 100, "overhead": {"drain_cpu_ns": 9 * S}, "pid": 7}

    def devices(self):
        return (device(),)

    def samples(self):
        sample = metrics(device(), {"power.draw_watts": 3.0})
        return [sample._replace(time_ns=T0 + at * S) for at in (5, 15)]

    def all_unseen(self):
        return self.unseen

    def of_old(self):
        return self.old


@pytest.fixture
def recent():
    return Recent(1 << 62, WorkTable())


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gpusense" / "runs"


def rows(recent, *times, block=3, ambiguous=()):
    table = recent.table
    kind = table.kind_of(WorkKind("kernel", "gemm", device=0, stream=7))
    starts, ends = [T0 + start for start, _ in times], [T0 + end for _, end in times]
    columns = table.append([kind] * len(times), [(len(times), table.path_of(("request",)))], starts, ends)
    recent.add_rows(columns, [(len(times), block, ambiguous)], max(ends))


def block(end_s, number=3, **more):
    return BlockRecord("request", number, None, ("request",), T0 + S, T0 + end_s * S, 5, **more)


def dumped(recent, path, taken=ASKED, known=None, from_s=10, until_s=20, read=True, **lost):
    what = dump.held(recent, T0 + from_s * S, T0 + until_s * S, read, lost)
    return load(dump.write(path, what, taken, known or Known(), lambda: None))


def test_it_holds_all_of_its_time_one_by_one(recent, tmp_path):
    rows(recent, (8 * S, 8 * S + 9), (11 * S, 11 * S + 9), (12 * S, 12 * S + 200))
    rows(recent, (21 * S, 21 * S + 9))
    rows(recent, (13 * S, 13 * S + 9), block=0, ambiguous=(3, 4))
    for item in (block(9, 1), block(14, 3, attributes={"user": "a"}), block(21, 5)):
        recent.add(item)
    recent.add(ComputeBlock("sum", T0 + 12 * S, T0 + 13 * S, path=("request",)))
    passes = [GpuKernel("pass", 0, 0, device=1, backend="wgpu", path=("request",), block_id=3)]
    recent.add(SameKernels(passes, [0, 0], [T0 + 9 * S, T0 + 11 * S], [5, 6]))
    session = dumped(recent, tmp_path / "a", dropped=2)
    gemm = [kernel for kernel in session.kernels if kernel.name == "gemm"]
    assert [(one.start_ns - T0, one.block_id, one.ambiguous, one.is_slow) for one in gemm] == [
        (11 * S, 3, (), False),
        (12 * S, 3, (), True),
        (13 * S, None, (3, 4), False),
    ]
    assert [one.block_id for one in session.blocks] == [3]
    assert session.blocks[0].attributes == {"user": "a"}
    assert [one.name for one in session.compute_blocks] == ["sum"]
    (wgpu,) = [kernel for kernel in session.kernels if kernel.backend == "wgpu"]
    assert (wgpu.start_ns, wgpu.block_id) == (T0 + 11 * S, 3)
    assert len(session.work) == 4
    assert session.work.complete
    assert (session.meta["start_ns"], session.meta["end_ns"]) == (T0 + 10 * S, T0 + 20 * S)
    assert session.counters == Counters(seen=9, kept=6, pre_session=3, ambiguous=1, dropped=2)
    assert [one.reason for one in session.unseen] == ["paused"]
    assert [one.time_ns for one in session.metrics] == [T0 + 15 * S]
    assert session.devices == (device(),)
    assert session.meta["damage"] == []
    assert session.meta["complete"]


def test_what_led_to_a_hang_is_in_it_however_old_it_is(recent, tmp_path):
    old, inside = (GpuCollective("AllReduce", T0 + at * S, T0 + at * S + 5, "ab", sequence=at) for at in (3, 12))
    hangs = inside._replace(start_ns=T0 + 13 * S, end_ns=T0 + 13 * S + 5, sequence=13, device_start_ns=T0 + 14 * S)
    recent.add(inside)
    known = Known()
    known.old = [old, inside, hangs]
    session = dumped(recent, tmp_path / "a", known=known)
    assert [each.sequence for each in session.collectives] == [12, 3, 13]
    assert session.meta["start_ns"] == T0 + 10 * S
    assert (session.counters.kept, session.meta["damage"]) == (3, [])


def test_it_says_why_it_is_there(recent, tmp_path):
    slow = Reason("slow", T0 + 20 * S, ("request",), 3, 50_000_000, 5_000_000, 900)
    more = [slow._replace(duration_ns=40_000_000 - number) for number in range(4)]
    session = dumped(recent, tmp_path / "a", Taken([slow, *more], 12, slow))
    told = session.meta["flight"]
    assert told["reasons"][0] == {**slow._asdict(), "path": ["request"], "text": slow.text}
    assert (len(told["reasons"]), told["passed_over"], told["passed_over_worst"]) == (5, 12, slow.text)
    notes = session.meta["notes"]
    assert notes[0] == "written because block “request” took 50.0 ms; its p99 is 5.00 ms, over 900 passes"
    assert notes[3:] == [
        "written also for 2 more reasons at the same time",
        f"12 reasons made no dump since the one before; the worst: {slow.text}",
    ]


def test_where_there_was_no_room_it_begins_later_and_says_so(tmp_path):
    recent = Recent(1 << 62, WorkTable(), most_bytes=4_000)
    for at in range(20):
        rows(recent, (at * S, at * S + 9))
    session = dumped(recent, tmp_path / "a")
    assert session.meta["start_ns"] == session.kernels[0].start_ns - S + 9
    assert session.meta["flight"]["missing_ns"] == session.meta["start_ns"] - T0 - 10 * S > 0
    assert session.meta["notes"][1].startswith(
        "not seen: the first 6.00 s of the time before, for which there was no room"
    )


def test_what_could_not_be_read_in_time_is_not_seen(recent, tmp_path):
    rows(recent, (11 * S, 12 * S))
    session = dumped(recent, tmp_path / "a", read=False)
    assert session.unseen[-1] == UnseenInterval(T0 + 12 * S, None, "not all of it was read when this was written")


def test_many_rows_are_several_chunks_with_the_runs_of_each(recent, tmp_path, monkeypatch):
    monkeypatch.setattr(dump, "_ROWS", 10)
    for number in range(25):
        rows(
            recent, *[(11 * S + number, 11 * S + number + 1)] * 3, block=number, ambiguous=(1,) if number == 20 else ()
        )
    session = dumped(recent, tmp_path / "a")
    assert [kernel.block_id or 0 for kernel in session.kernels] == [number for number in range(25) for _ in range(3)]
    assert [kernel.ambiguous for kernel in session.kernels if kernel.ambiguous] == [(1,)] * 3


def test_rows_keep_their_kinds_when_the_table_forgets_some(recent, tmp_path):
    table = recent.table
    for number, name in enumerate("abc"):
        if name == "c":  # of the rows in the table those before are gone
            for column, _ in COLUMNS:
                del getattr(table, column)[:]
            table.tidy(())
            recent.renumbered()
        start = T0 + 11 * S + number
        columns = table.append(
            [table.kind_of(WorkKind("kernel", name))], [(1, table.path_of((name,)))], [start], [start]
        )
        recent.add_rows(columns, [(1, 3, ())], start)
    assert [(one.name, one.path) for one in dumped(recent, tmp_path / "a").kernels] == [
        ("a", ("a",)), ("b", ("b",)), ("c", ("c",)),
    ]  # fmt: skip


# --- where it lies ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX")
def test_the_last_ten_lie_in_the_cache_for_their_owner_alone(recent, home, monkeypatch):
    numbers = iter(range(12))  # three in a second
    monkeypatch.setattr(dump.time, "strftime", lambda _: f"20260101-00000{next(numbers) // 3}")
    what = dump.held(recent, T0, T0 + S, True, {})
    paths = [dump.write(None, what, ASKED, Known(), lambda: None) for _ in range(12)]
    assert len(set(paths)) == 12
    assert cache.flights() == paths[-dump.KEPT :]
    assert len(os.listdir(home)) == dump.KEPT
    assert {os.stat(path).st_mode & 0o777 for path in (home, *cache.flights())} == {0o700, 0o600}


def test_a_full_disk_leaves_nothing_behind_and_is_named(recent, home, monkeypatch):
    def full(fd, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gpusense.session._writer.os.write", full)
    with pytest.raises(SessionError, match="No space left on device"):
        dump.write(None, dump.held(recent, T0, T0 + S, True, {}), ASKED, Known(), lambda: None)
    assert os.listdir(home) == []


def test_a_session_that_it_replaces_stays_until_it_is_whole(recent, tmp_path, monkeypatch):
    dumped(recent, tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    broken = SimpleNamespace(meta=lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        dumped(recent, tmp_path / "a", known=broken)
    assert (tmp_path / "a").read_bytes() == before
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX")
def test_what_is_somebody_elses_is_not_touched(recent, home, tmp_path):
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(SessionError, match="not a gpusense session"):
        dumped(recent, tmp_path / "letter")
    assert (tmp_path / "letter").read_text() == "dear"
    home.mkdir(parents=True, mode=0o700)
    home.chmod(0o777)
    with pytest.raises(SessionError, match=r"can be changed by other users; give it to this user alone \(mode 700\)"):
        dumped(recent, None)


def test_without_a_home_it_says_what_would_help(recent, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(SessionError, match="set XDG_CACHE_HOME to a folder"):
        dumped(recent, None)


def test_a_folder_that_cannot_be_made_is_named(recent, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SessionError, match=r"file/gpusense/runs: Not a directory"):
        dumped(recent, None)


def test_the_work_is_done_in_parts(recent, tmp_path):
    for number in range(300):
        recent.add(block(15, number))
    rows(recent, (11 * S, 12 * S))
    pauses = []
    dump.write(tmp_path / "a", dump.held(recent, T0, T0 + 20 * S, True, {}), ASKED, Known(), lambda: pauses.append(1))
    assert len(pauses) >= 300 // dump._RECORDS + 3
