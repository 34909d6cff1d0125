"""Sessions survive the file, and chunks come back."""

import os
import stat
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples
from support.session_files import chunks, session, small

from gpusense._aggregation.block_totals import Watched
from gpusense._records.records import (
    Counters,
    GpuKernel,
)
from gpusense._runtime import threads
from gpusense._runtime.errors import SessionError
from gpusense.session import Session, load, save
from gpusense.session import _format as file
from gpusense.session._following import Following
from gpusense.session._session import fold
from gpusense.session._writer import Writer


def test_a_session_comes_back_equal(tmp_path):
    before = session()
    save(before, tmp_path / "s.gpusense")
    after = load(tmp_path / "s.gpusense")
    assert after.meta.pop("damage") == []
    assert after.meta.pop("complete") is True
    assert after.meta.pop("path") == str(tmp_path / "s.gpusense")
    assert after.meta.pop("file")["bytes_dropped"] == 0
    for part in Session.__slots__:
        assert getattr(after, part) == getattr(before, part), part


def test_saving_a_loaded_session_changes_nothing(tmp_path):
    save(session(), tmp_path / "a.gpusense")
    save(load(tmp_path / "a.gpusense"), tmp_path / "b.gpusense")
    one, two = load(tmp_path / "a.gpusense"), load(tmp_path / "b.gpusense")
    assert one.meta | {"path": ""} == two.meta | {"path": ""}
    assert one.records == two.records


def test_a_session_is_replaced_once_the_new_one_is_whole(tmp_path, monkeypatch):
    """It was empty while the new one was written, and gone where that failed."""
    path, link = tmp_path / "s.gpusense", tmp_path / "link"
    save(session(), path)
    link.symlink_to(path)
    before, seen = path.read_bytes(), []
    records = Writer.records
    monkeypatch.setattr(Writer, "records", lambda *some: seen.append(path.read_bytes()) or records(*some))
    save(Session(records=[GpuKernel("new", 1, 2)]), link)
    assert seen == [before]
    assert [kernel.name for kernel in load(path).kernels] == ["new"]
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(tmp_path.iterdir()) == [link, path]


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["interrupt", "too long", "value"])
def test_a_session_is_kept_where_the_new_one_fails(tmp_path, monkeypatch, name):
    path = tmp_path / "s.gpusense"
    save(session(), path)
    before, new = path.read_bytes(), Session(records=[GpuKernel("k", 1, 2, attributes={"text": "x" * 4000})])
    expected = {"interrupt": KeyboardInterrupt, "too long": SessionError, "value": TypeError}[name]
    if name == "interrupt":
        monkeypatch.setattr(Writer, "records", interrupted)
    elif name == "too long":
        monkeypatch.setattr(file, "MAX_CHUNK_BYTES", 3000)
    else:
        new.devices = 5
    with pytest.raises(expected):
        save(new, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


FULL = """
import resource, sys
from gpusense import GpuKernel
from gpusense.session import Session, save
save(Session(records=[GpuKernel("old", 1, 2)]), sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (5500, 5500))
many = [GpuKernel(str(hash(str(n))), n, n + 2) for n in range(5000)]
for path in sys.argv[1:]:
    try:
        save(Session(records=many), path)
    except Exception as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_a_full_disk_costs_no_session_that_was_there(tmp_path, run_python):
    done = run_python(FULL, str(tmp_path / "s"), str(tmp_path / "new"))
    assert [line.partition(" after")[0] for line in done.stdout.splitlines()] == [
        f"{tmp_path / name}: File too large" for name in ("s", "new")
    ], done.stderr
    assert [kernel.name for kernel in load(tmp_path / "s").kernels] == ["old"]
    assert load(tmp_path / "new").meta["complete"]  # what of a new one could be written can be read
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "s"]


@pytest.mark.skipif(sys.platform == "win32", reason="locks of files are for POSIX")
def test_a_session_that_is_being_recorded_is_not_replaced(tmp_path):
    recording = Writer(tmp_path / "s")
    with pytest.raises(SessionError, match="another process is writing it"):
        save(session(), tmp_path / "s")
    assert recording.buffer(b"more")
    recording.close()
    assert [chunk.type for chunk in chunks(tmp_path / "s")[0]] == [file.BUFFER, file.END]
    (tmp_path / "folder").mkdir()
    for odd in (tmp_path / "folder", os.devnull):
        with pytest.raises(SessionError, match="not a regular file"):
            save(session(), odd)


payloads = st.lists(st.tuples(st.sampled_from(sorted(file.TYPES)), st.binary(max_size=400)), max_size=12)


@examples(60)
@given(payloads, st.booleans())
def test_chunks_come_back_in_order(tmp_path_factory, parts, compress):
    path = tmp_path_factory.mktemp("s") / "s.gpusense"
    writer = Writer(path)
    for kind, payload in parts:
        assert writer.append(kind, payload[:7], payload[7:], compress=compress)
    writer.close()
    assert os.path.getsize(path) == writer.size_bytes
    assert writer.size_bytes % 8 == 0
    found, damage = chunks(path)
    assert damage == []
    assert [(chunk.type, chunk.payload) for chunk in found[:-1]] == parts
    assert [chunk.sequence for chunk in found] == list(range(len(parts) + 1))


@examples(60)
@given(
    st.lists(st.tuples(st.sampled_from(["append", "hold", "large", "release"]), st.sampled_from(sorted(file.TYPES))))
)
def test_what_is_held_is_written_with_what_comes_next(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("s") / "s.gpusense"
    writer = Writer(path)
    expected, held = [], 0
    for number, (step, kind) in enumerate(steps):
        before, payload = os.path.getsize(path), bytes([number % 256]) * (300_000 if step == "large" else 8)
        if step == "release":
            assert writer.release()
        else:
            assert writer.append(kind, payload, compress=False, hold=step != "append")
            expected.append((kind, payload))
            held += file.HEADER_SIZE + len(payload)
        waits = held < 1 << 20 and step not in ("append", "release")
        assert os.path.getsize(path) == writer.size_bytes == before + (0 if waits else held)
        held = held if waits else 0
    writer.close()
    found, damage = chunks(path)
    assert damage == []
    assert [(chunk.type, chunk.payload) for chunk in found[:-1]] == expected
    assert [chunk.sequence for chunk in found] == list(range(len(expected) + 1))


@given(st.dictionaries(st.integers(0, 2**64 - 1), st.binary(max_size=300)))
def test_names_come_back(names):
    class Keep(Writer):
        def __init__(self):
            self.parts = b""

        def append(self, kind, *parts, compress=True, hold=False):
            self.parts = b"".join(parts)
            return True

    writer = Keep()
    writer.names(names)
    assert file.Chunk(file.NAME, 0, 0, writer.parts).names() == names


def test_what_a_cut_name_chunk_still_holds():
    entry = struct.pack("<QI", 1, 2) + b"ab"
    assert file.Chunk(file.NAME, 0, 0, entry + struct.pack("<QI", 2, 9) + b"cut").names() == {1: b"ab"}
    assert file.Chunk(file.NAME, 0, 0, entry[:-3]).names() == {}


def test_a_buffer_keeps_its_thread_and_layout(tmp_path):
    found = {chunk.type: chunk for chunk in small(tmp_path / "s")}
    buffer = found[file.BUFFER].buffer()
    assert (buffer.thread, buffer.layout, bytes(buffer.data)) == (1 << 63, 1, bytes(range(256)) * 2)
    assert found[file.LAYOUT].json() == {"id": 1, "strides": {"10": 160}, "library": "13.0"}
    assert found[file.END].json()["end_ns"] == 99
    with pytest.raises(ValueError, match="3 bytes"):
        file.Chunk(file.BUFFER, 0, 0, b"abc").buffer()


def test_a_name_may_be_given_again(tmp_path):
    writer = Writer(tmp_path / "s")
    for name in (b"first", b"second"):
        writer.names({8: name})
        writer.buffer(b"x")
    writer.close()
    found, _ = chunks(tmp_path / "s")
    assert [chunk.names()[8] for chunk in found if chunk.type == file.NAME] == [b"first", b"second"]


def test_a_higher_threshold_folds_exactly(tmp_path):
    save(session(), tmp_path / "s")
    loaded = load(tmp_path / "s", threshold_us=0.04)
    assert [type(record).__name__ for record in loaded.records] == [
        "GpuMemoryTransfer",  # exactly at the threshold: kept
        "GpuAllocation",
        "ComputeBlock",
        "BlockRecord",
    ]
    folded = loaded.aggregates[-1]
    assert (folded.path, folded.kind, folded.name, folded.device) == (("a",), "kernel", "k", 0)
    assert (folded.count, folded.total_ns, folded.min_ns, folded.sum_squares_ns2) == (1, 39, 39, 39 * 39)
    assert loaded.counters == Counters(seen=8, kept=4, aggregated=4)
    assert loaded.meta["threshold_ns"] == 40


def test_a_lower_threshold_and_trace_all_bring_nothing_back(tmp_path):
    save(session(), tmp_path / "s")
    assert load(tmp_path / "s", threshold_us=0).records == session().records
    assert load(tmp_path / "s", threshold_us=0.04, trace_all=True).records == session().records


def test_folding_keeps_owners_apart():
    whole = Session(
        records=[GpuKernel("k", 0, length, owner=owner) for length, owner in ((5, ("a",)), (7, None), (9, ("a",)))]
    )
    fold(whole, 100)
    assert {row.owner: (row.count, row.total_ns) for row in whole.aggregates} == {("a",): (2, 14), None: (1, 7)}


@given(st.lists(st.integers(0, 200), max_size=30), st.integers(0, 200))
def test_folding_keeps_count_and_time(lengths, threshold):
    whole = Session(records=[GpuKernel("k", 0, length) for length in lengths])
    fold(whole, threshold)
    kept = [kernel.duration_ns for kernel in whole.kernels]
    assert all(length >= threshold for length in kept)
    assert len(kept) + sum(row.count for row in whole.aggregates) == len(lengths)
    assert sum(kept) + sum(row.total_ns for row in whole.aggregates) == sum(lengths)


def test_a_file_that_grows_is_read_on_from_where_it_was_whole(tmp_path):
    path, grown, at, found = tmp_path / "grown", tmp_path / "growing", file.FILE_HEADER.size, []
    writer = Writer(path)
    for number in range(9):
        writer.json(file.META, {"n": number, "text": "x" * 100 * number})
        writer.buffer(bytes(number), thread=number)
    writer.close()
    data = path.read_bytes()
    for size in [*range(file.FILE_HEADER.size, len(data), 37), len(data)]:
        grown.write_bytes(data[:size])
        with file.Reader(grown) as reader:
            for chunk, behind in reader.begin_at(at, frozenset({file.META, file.BUFFER})):
                at, found = behind, [*found, chunk]
    assert found[-1] is None  # END is none of those that were asked for
    assert found[:-1] == chunks(path)[0][:-1]
    assert at == len(data)


def test_nobody_adds_to_totals_while_they_are_copied(tmp_path):
    writer = Writer(tmp_path / "run")
    following = Following(writer.path, Watched())
    assert following.bring_up_to_date(lambda: threads.mine(following._lock)) is True
    assert following.bring_up_to_date(lambda: following.bring_up_to_date(lambda: 5)) == 5  # a handler meanwhile
    writer.close()
