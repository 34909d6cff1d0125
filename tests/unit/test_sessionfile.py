"""The session file survives cuts, flips, hostile lengths, full disks and threads; sessions survive the file."""

import os
import pathlib
import random
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
import zlib

import pytest
from draws import examples
from hypothesis import given
from hypothesis import strategies as st

from gpusense import _config
from gpusense import _sessionfile as file
from gpusense._errors import SessionError
from gpusense._following import Following
from gpusense._metrics import GpuMetrics, Power
from gpusense._records import (
    Aggregate,
    BlockRecord,
    ComputeBlock,
    Counters,
    DeviceBusy,
    DeviceInfo,
    GpuAllocation,
    GpuKernel,
    GpuMemoryTransfer,
    UnseenStretch,
)
from gpusense._sessionwriter import Writer
from gpusense._tally import Watched
from gpusense.session import Session, fold, load, save

ROOT = pathlib.Path(file.__file__).parent.parent


def chunks(path):
    with file.Reader(path) as reader:
        return list(reader), reader.damage


def small(path):
    """A file with a chunk of most types; returns what each chunk holds."""
    writer = Writer(path, clock=lambda: 99)
    writer.json(file.META, {"version": "1", "pid": 3})
    writer.layout(1, {10: 160}, library="13.0")
    writer.names({0x1000: b"kern\xff", 0x2000: b""})
    writer.buffer(bytes(range(256)) * 2, thread=1 << 63, layout=1)
    writer.rows(file.BOUNDARY, [["open", 1, 5], ["close", 1, 9]])
    writer.records([GpuKernel("k", 1, 2)])
    writer.close()
    found, damage = chunks(path)
    assert damage == []
    return found


def session():
    device = DeviceInfo(0, "H100", "nvidia", "cuda", uuid="GPU-1", cuda_index=0)
    return Session(
        meta={"version": "1", "pid": 3, "start_ns": 0, "end_ns": 1000, "threshold_ns": 10, "trace_all": False},
        devices=(device,),
        records=[
            GpuKernel("k", 1, 40, device=0, path=("a",), block_id=1),
            GpuMemoryTransfer("c", "cpu_to_gpu", 10, 50, 90, device=0),
            GpuAllocation("alloc", 64, 5, 0xDEAD),
            ComputeBlock("c", 1, 900),
            BlockRecord("a", 1, None, ("a",), 0, 5, 77, attributes={"batch": 64}),
        ],
        aggregates=[Aggregate((), "kernel", "s", "cuda", 0, 7, 3, 9, 2, 4, 29)],
        metrics=[GpuMetrics(device, 5, 6, power=Power(90.0))],
        busy=[DeviceBusy(0, 39, 40, 79, 1, 90)],
        unseen=[UnseenStretch(0, 1, "before attaching")],
        counters=Counters(seen=8, kept=5, aggregated=3),
    )


# ---- round trips


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


@given(st.dictionaries(st.integers(0, 2**64 - 1), st.binary(max_size=300)))
def test_names_come_back(names):
    class Keep(Writer):
        def __init__(self):
            self.parts = b""

        def append(self, kind, *parts, compress=True):
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


# ---- damage


def test_cut_at_every_offset_the_part_before_loads(tmp_path):
    whole = small(tmp_path / "s")
    data = (tmp_path / "s").read_bytes()
    ends = [chunk.offset for chunk in whole[1:]] + [len(data)]
    cut = tmp_path / "cut"
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        if length < 16:
            with pytest.raises(SessionError, match="is empty" if not length else "not a gpusense session"):
                file.Reader(cut)
            continue
        found, damage = chunks(cut)
        padding = 7  # zeros that may be missing after the payload
        expected = sum(end <= length + padding for end in ends)
        assert expected - 1 <= len(found) <= expected
        assert found == whole[: len(found)]
        assert damage or len(found) == expected, length
        assert loaded_is_complete(cut) == (len(found) == len(whole))


def test_every_flipped_bit_costs_one_chunk_at_most(tmp_path):
    whole = small(tmp_path / "s")
    data = (tmp_path / "s").read_bytes()
    flipped = tmp_path / "flipped"
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 1 << (position * 5 % 8)
        flipped.write_bytes(broken)
        found, damage = chunks(flipped)
        assert len(found) >= len(whole) - 1, position
        assert all(chunk in whole for chunk in found), position
        if len(found) < len(whole):
            assert any("offset" in sentence for sentence in damage), position


@examples(80)
@given(st.binary(max_size=300), st.data())
def test_any_bytes_after_the_header_are_survived(tmp_path_factory, noise, data):
    path = tmp_path_factory.mktemp("s") / "s"
    small(path)
    good = path.read_bytes()
    at = data.draw(st.integers(16, len(good)))
    path.write_bytes(good[:at] + noise + good[at:])
    found, _ = chunks(path)
    assert all(chunk.type in file.TYPES for chunk in found)
    load_without_buffers(path)


def load_without_buffers(path):
    from gpusense.session import Builder

    builder = Builder()
    with file.Reader(path) as reader:
        for chunk in reader:
            builder.take(chunk)
    return builder.session()


def loaded_is_complete(path):
    with file.Reader(path) as reader:
        for _ in reader:
            pass
        return reader.complete


def forge(path, *headers, tail=b""):
    """A file of hand-made chunks: ``(type, flags, stored, length, payload)``, every checksum right."""
    small(path)
    data = path.read_bytes()[:16]
    for sequence, (kind, flags, stored, length, payload) in enumerate(headers):
        head = file.HEADER.pack(file.MARKER, kind, flags, stored, length, sequence, zlib.crc32(payload))
        data += head + struct.pack("<I", zlib.crc32(head)) + payload + bytes(-len(payload) % 8)
    path.write_bytes(data + tail)


def test_a_huge_declared_length_reads_nothing(tmp_path):
    path = tmp_path / "s"
    forge(path, (file.META, 0, 0xFFFFFFFF, 4, b"{}"))
    assert chunks(path)[0] == []
    assert "cut inside the chunk META at offset 16" in chunks(path)[1][0]
    with open(path, "r+b") as sparse:
        sparse.truncate(100 << 20)
    forge(path, (file.META, 0, 90 << 20, 90 << 20, b""))
    with open(path, "r+b") as sparse:
        sparse.truncate(100 << 20)
    found, damage = chunks(path)
    assert found == []
    assert f"declares {90 << 20} bytes" in damage[0]


def test_a_bomb_is_not_inflated(tmp_path):
    bomb = zlib.compress(bytes(200 << 20), 9)
    forge(tmp_path / "s", (file.META, 1, len(bomb), 10, bomb), (file.META, 0, 2, 2, b"{}"))
    found, damage = chunks(tmp_path / "s")
    assert [chunk.payload for chunk in found] == [b"{}"]
    assert "does not hold the 10 bytes" in damage[0]


def test_what_claims_to_be_compressed_and_is_not(tmp_path):
    forge(tmp_path / "s", (file.META, 1, 4, 9, b"what"), (file.META, 1, 0, 0, b""))
    found, damage = chunks(tmp_path / "s")
    assert [chunk.payload for chunk in found] == [b""]
    assert "offset 16" in damage[0]


def test_unknown_types_are_named_and_skipped(tmp_path):
    forge(tmp_path / "s", (4711, 0, 3, 3, b"new"), (file.META, 0, 2, 2, b"{}"))
    found, damage = chunks(tmp_path / "s")
    assert [chunk.type for chunk in found] == [file.META]
    assert "type 4711 at offset 16 is unknown" in damage[0]


def test_chunks_that_are_gone_are_missed(tmp_path):
    whole = small(tmp_path / "s")
    data = (tmp_path / "s").read_bytes()
    (tmp_path / "s").write_bytes(data[: whole[2].offset] + data[whole[4].offset :])
    found, damage = chunks(tmp_path / "s")
    assert len(found) == len(whole) - 2
    assert damage == [f"chunks 2 to 3 are missing before offset {whole[2].offset}"]


def test_sentences_are_bounded(tmp_path):
    forge(tmp_path / "s", *[(4711, 0, 0, 0, b"")] * 500)
    damage = chunks(tmp_path / "s")[1]
    assert len(damage) == 101
    assert damage[-1] == "400 more faults"


def test_zeros_after_a_crash_of_the_machine(tmp_path):
    small(tmp_path / "s")
    with open(tmp_path / "s", "r+b") as grown:
        grown.truncate(os.path.getsize(tmp_path / "s") + 4096)
    damage = chunks(tmp_path / "s")[1]
    assert len(damage) == 1
    assert "the last 4096 bytes" in damage[0]


def test_rows_that_are_no_records_are_counted(tmp_path):
    writer = Writer(tmp_path / "s")
    writer.json(file.RECORDS, [{"kind": "kernel", "name": "k", "start_ns": 5, "end_ns": 1}, {"kind": "quark"}, 7])
    writer.append(file.RECORDS, b"[1, 2")
    writer.json(file.META, {"start_ns": "soon", "rank": 2})
    writer.json(file.META, [])
    writer.json(file.DEVICES, {"not": "rows"})
    writer.records([GpuKernel("good", 1, 2)])
    writer.close()
    loaded = load(tmp_path / "s")
    assert [kernel.name for kernel in loaded.kernels] == ["good"]
    assert loaded.meta["rank"] == 2
    assert "start_ns" not in loaded.meta
    damage = "\n".join(loaded.meta["damage"])
    assert "3 rows of the chunk at offset 16 were left out; first: GpuKernel: ends 4 ns before" in damage
    assert "not JSON" in damage
    assert "start_ns in the chunk at offset" in damage


# ---- versions and other files


def header(major, minor=0):
    head = struct.pack("<8sHH", file.MAGIC, major, minor)
    return head + struct.pack("<I", zlib.crc32(head))


def test_a_version_of_the_future_is_refused_and_a_newer_minor_is_read(tmp_path):
    small(tmp_path / "s")
    data = (tmp_path / "s").read_bytes()[16:]
    (tmp_path / "next").write_bytes(header(2) + data)
    with pytest.raises(SessionError, match=r"session format 2\.0; this gpusense reads up to 1\.x"):
        load(tmp_path / "next")
    (tmp_path / "minor").write_bytes(header(1, 9) + data)
    assert chunks(tmp_path / "minor")[1] == []


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is empty"), (b"import gpusense\n" * 9, "not a gpusense session"), (b"\x89GPU", "not a")],
)
def test_other_files_are_refused(tmp_path, content, said):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(SessionError, match=said):
        load(tmp_path / "x")


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(SessionError, match="No such file"):
        load(tmp_path / "absent")
    with pytest.raises(SessionError, match="not a regular file"):
        load(tmp_path)
    with pytest.raises(SessionError, match="null"):
        load("a\0b")
    with pytest.raises(SessionError, match="null"):
        Writer("a\0b")
    with pytest.raises(SessionError, match="No such file"):
        Writer(tmp_path / "no" / "such" / "folder")
    with pytest.raises(SessionError, match="not a regular file"):
        Writer(tmp_path)
    with pytest.raises(SessionError, match="not a regular file"):
        Writer(os.devnull)


# ---- writing


def test_only_the_owner_can_read_it(tmp_path):
    path = tmp_path / "s"
    old = os.umask(0)
    try:
        Writer(path).close()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o666)
        Writer(path).close()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(old)


def test_a_file_that_is_no_session_is_not_overwritten(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("print(1)")
    with pytest.raises(SessionError, match="not a gpusense session; not overwritten"):
        Writer(path)
    assert path.read_text() == "print(1)"
    path.write_text("")
    Writer(path).close()
    Writer(path).close()
    assert len(chunks(path)[0]) == 1


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (5500, 5500))
from gpusense import _config
from gpusense._sessionwriter import Writer
writer = Writer(sys.argv[1])
import os
written = sum(writer.buffer(os.urandom(900)) for _ in range(10))
writer.close()
print(written, writer.bytes_dropped, writer.failure)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_a_full_disk_leaves_whole_chunks(tmp_path, run_python):
    done = run_python(LIMITED, str(tmp_path / "s"))
    assert done.returncode == 0, done.stderr
    written, dropped, failure = done.stdout.split(" ", 2)
    assert int(written) == 5
    assert int(dropped) == 5 * 916
    assert "File too large" in failure
    found, damage = chunks(tmp_path / "s")
    assert [chunk.type for chunk in found] == [file.BUFFER] * 5 + [file.END]
    assert damage == []
    end = found[-1].json()
    assert end["bytes_dropped"] == 5 * 916
    assert "File too large" in end["failure"]


@pytest.mark.parametrize("reused", [True, False])
def test_a_program_that_closes_every_descriptor_keeps_its_own_files(tmp_path, reused):
    """The chunks went into the file that had got the number, and that file was closed at the end."""
    writer = Writer(tmp_path / "run")
    assert writer.json(file.META, {"a": 1})
    descriptor = writer._fd
    if reused:
        own = os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT)
        os.dup2(own, descriptor)
        os.write(own, b"precious")
    else:
        os.close(descriptor)
    assert not writer.buffer(b"lost")  # with its head of 16 bytes
    assert "closed its descriptor" in writer.failure
    writer.close()
    assert "closed its descriptor" in writer.failure
    assert writer.bytes_dropped == 20
    if reused:
        os.write(descriptor, b" data")
        os.close(descriptor)
        os.close(own)
        assert (tmp_path / "own").read_bytes() == b"precious data"
    found, damage = chunks(tmp_path / "run")
    assert ([chunk.type for chunk in found], damage) == ([file.META], [])


@pytest.mark.skipif(sys.platform == "win32", reason="locks of files are for POSIX")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # other tests' threads; raised from Python 3.15 on
def test_two_writers_of_one_file_do_not_overwrite_each_other(tmp_path, run_python):
    """Ranks started with one -o: half of the chunks were gone, and nothing said so."""
    first = Writer(tmp_path / "run")
    assert first.buffer(b"first")
    with pytest.raises(SessionError, match="another process is writing it"):
        Writer(tmp_path / "run")
    other = "import sys; from gpusense._sessionwriter import Writer; Writer(sys.argv[1]).close()"
    assert "another process is writing it" in run_python(other, str(tmp_path / "run")).stderr
    found, _ = chunks(tmp_path / "run")
    assert [chunk.type for chunk in found] == [file.BUFFER]
    child = os.fork()
    if child == 0:  # lives on with the descriptor, and has no claim once the writer is closed
        time.sleep(30)
        os._exit(0)
    try:
        first.close()
        assert run_python(other, str(tmp_path / "run")).returncode == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_file_in_a_folder_that_the_program_leaves_is_found_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = Writer("run")
    monkeypatch.chdir("/")
    writer.close()
    assert writer.path == str(tmp_path / "run")
    with file.Reader(writer.path) as reader:
        assert [chunk.type for chunk in reader] == [file.END]


def test_the_size_cap_stops_buffers_not_the_end(tmp_path):
    writer = Writer(tmp_path / "s", max_bytes=4000, clock=iter(range(500, 600)).__next__)
    written = [writer.buffer(os.urandom(900)) for _ in range(6)]
    assert written == [True] * 4 + [False] * 2
    assert not writer.names({1: b"n"})
    assert writer.json(file.COUNTERS, [{"seen": 1}])
    writer.close()
    found, damage = chunks(tmp_path / "s")
    assert [chunk.type for chunk in found] == [file.BUFFER] * 4 + [file.COUNTERS, file.END]
    assert damage == []
    end = found[-1].json()
    assert (end["bytes_dropped"], end["capped_at_ns"], end["max_bytes"]) == (2 * 916 + 13, 500, 4000)
    assert end["bytes_too_long"] == 0
    assert writer.size_bytes < 4000 + 700


def test_a_full_buffer_of_the_largest_size_is_kept(tmp_path):
    """Its head made it too long for a chunk, so that every full buffer was dropped."""
    size = int(_config._RANGES["buffer_size"][1])
    writer = Writer(tmp_path / "run", max_bytes=None)
    assert writer.buffer(random.Random(0).randbytes(size))  # which cannot be compressed
    writer.close()
    with file.Reader(tmp_path / "run") as reader:
        (buffer,) = [chunk.buffer() for chunk in reader if chunk.type == file.BUFFER]
        assert len(buffer.data) == size
        assert reader.damage == []


def test_a_chunk_beyond_the_limit_is_dropped_and_counted(tmp_path):
    writer = Writer(tmp_path / "s")
    assert not writer.buffer(memoryview(bytes(file.MAX_CHUNK_BYTES + 1)))
    writer.close()
    assert writer.bytes_dropped == writer.bytes_too_long == file.MAX_CHUNK_BYTES + 17
    assert chunks(tmp_path / "s")[0][-1].json()["bytes_too_long"] == writer.bytes_too_long
    assert chunks(tmp_path / "s")[1] == []


def test_threads_append_whole_chunks(tmp_path):
    writer = Writer(tmp_path / "s")

    def work(number):
        for turn in range(200):
            writer.buffer(bytes([number]) * (turn * 7), thread=number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    writer.close()
    assert not writer.buffer(b"late")
    found, damage = chunks(tmp_path / "s")
    assert damage == []
    assert len(found) == 801
    lengths = {number: [] for number in range(4)}
    for chunk in found[:-1]:
        buffer = chunk.buffer()
        assert bytes(buffer.data) == bytes([buffer.thread]) * len(buffer.data)
        lengths[buffer.thread].append(len(buffer.data))
    assert all(seen == [turn * 7 for turn in range(200)] for seen in lengths.values())


FORKED = """
import os, sys
from gpusense import _config
from gpusense._sessionwriter import Writer
writer = Writer(sys.argv[1])
writer.buffer(b"parent")
writer._lock.acquire()          # as if another thread were writing at the moment of the fork
child = os.fork()
if child == 0:
    writer.buffer(b"child")
    writer.close()
    os._exit(0)
writer._lock.release()
assert os.waitpid(child, 0)[1] == 0
writer.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_writes_nothing_and_does_not_hang(tmp_path, run_python):
    done = run_python(FORKED, str(tmp_path / "s"), timeout=20)
    assert done.returncode == 0, done.stderr
    found, damage = chunks(tmp_path / "s")
    assert [chunk.type for chunk in found] == [file.BUFFER, file.END]
    assert damage == []


def test_a_killed_writer_leaves_what_it_wrote(tmp_path, run_python):
    done = run_python(
        "import os, sys\nfrom gpusense import _sessionfile as file\nfrom gpusense._sessionwriter import Writer\n"
        "w = Writer(sys.argv[1]); w.json(file.META, {'pid': 1}); w.buffer(b'x'); os.kill(os.getpid(), 9)",
        str(tmp_path / "s"),
    )
    assert done.returncode != 0
    found, damage = chunks(tmp_path / "s")
    assert [chunk.type for chunk in found] == [file.META, file.BUFFER]
    assert damage == []
    assert not loaded_is_complete(tmp_path / "s")


@pytest.mark.skipif(os.name == "nt" or not os.path.exists("/usr/bin/setpriv"), reason="needs setpriv")
def test_a_folder_that_cannot_be_written(tmp_path):
    """Root may write anywhere, so this runs without root's rights."""
    tmp_path.chmod(0o555)
    write = "from gpusense._sessionwriter import Writer; Writer('s')"
    code = f"try: exec({write!r})\nexcept Exception as error: print(type(error).__name__, error)"
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--reuid=65534", "--clear-groups"]
    done = subprocess.run(
        [*(drop if os.getuid() == 0 else []), sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    tmp_path.chmod(0o755)
    if not done.stdout:
        pytest.skip(f"the interpreter or the tree cannot be read without root: {done.stderr[-200:]}")
    assert done.stdout.strip() == "SessionError s: Permission denied"


# ---- loading


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
    assert following.bring_up_to_date(lambda: following._lock.mine) is True
    assert following.bring_up_to_date(lambda: following.bring_up_to_date(lambda: 5)) == 5  # a handler meanwhile
    writer.close()
