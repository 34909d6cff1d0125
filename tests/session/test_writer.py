"""Writing session files: rights, full disks, caps, threads, forks, killed programs."""

import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
import zlib

import pytest
from support.session_files import ROOT, chunks, loaded_is_complete

from gpusense._attribution.boundaries import ENDED, OPEN, PLACED
from gpusense._records.records import NO_GPU, OPEN_AT_END, BlockRecord
from gpusense._runtime import config
from gpusense._runtime.errors import SessionError
from gpusense._runtime.text import size_text
from gpusense.session import _format as file
from gpusense.session import load
from gpusense.session._block_chunks import Packer
from gpusense.session._writer import Writer, _chunk, add_meta

T0 = 1_795_814_054_123_456_789


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
    with pytest.raises(SessionError, match="is not a gpusense session and is not overwritten"):
        Writer(path)
    assert path.read_text() == "print(1)"
    path.write_text("")
    Writer(path).close()
    Writer(path).close()
    assert len(chunks(path)[0]) == 1


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (5500, 5500))
from gpusense._runtime import config
from gpusense.session._writer import Writer
writer = Writer(sys.argv[1])
import os
hold = len(sys.argv) > 2
written = sum(writer.buffer(os.urandom(900), hold=hold) for _ in range(10))
writer.release()
writer.close()
print(written, writer.bytes_dropped, writer.failure)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
@pytest.mark.parametrize("held", [False, True])
def test_a_full_disk_leaves_whole_chunks(tmp_path, run_python, held):
    done = run_python(LIMITED, str(tmp_path / "s"), *["held"] * held)
    assert done.returncode == 0, done.stderr
    written, dropped, failure = done.stdout.split(" ", 2)
    assert int(written) == (10 if held else 5)  # what is held counts as written until it turns out not to fit
    assert int(dropped) == 5 * 916
    assert failure.strip() == "File too large after 4.82 kB"
    found, damage = chunks(tmp_path / "s")
    assert [chunk.type for chunk in found] == [file.BUFFER] * 5 + [file.END]
    assert damage == []
    end = found[-1].json()
    assert end["bytes_dropped"] == 5 * 916
    assert "File too large" in end["failure"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_what_fits_of_what_was_held_is_in_the_size_that_is_told(tmp_path):
    import resource

    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, most[1]))
        writer = Writer(tmp_path / "s")
        for _ in range(20):  # as they are 14 kB, and far less compressed
            writer.plain_rows(file.LINES, [[0] * 350], hold=True)
        writer.release()
        size = writer.size_bytes
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert size > 500
    assert writer.failure == f"File too large after {size_text(size)}"


def blocks_of_many_names(count):
    """The chunk of ``count`` blocks in one that does not end, and of the records of manual blocks behind it."""
    packer = Packer()
    packer.add([(PLACED, OPEN, 1, None, 7, T0, "run", 0)])
    for number in range(2, 2 + count):
        name, path = f"block {number}", ("run", f"block {number}")
        packer.add([
            (PLACED, OPEN, number, 1, 7, T0 + number * 10, name, 0),
            (ENDED, None, 7, 0, name, number, 1, path, T0 + number * 10, T0 + number * 10 + 5, 7, {"n": number}, None),
        ])  # fmt: skip
    rest = [BlockRecord(f"late {n}", 10_000 + n, None, (f"late {n}",), T0 + n, T0 + n + 5, 7) for n in range(count)]
    return packer.take(), rest


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_a_full_disk_keeps_the_first_rows_and_says_so_wherever_it_is_full(tmp_path):
    import resource

    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    packed, late = blocks_of_many_names(1200)
    numbers = []
    for limit in (*range(400, 1400, 91), *range(1400, 60_000, 5501)):
        path = tmp_path / str(limit)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most[1]))
            writer = Writer(path)
            writer.json(file.META, {"mode": "file", "start_ns": T0, "threshold_ns": 0})
            writer.append(file.BLOCKS, *packed, hold=True)
            writer.records(late)
            size = writer.size_bytes
            writer.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, most)
        session = load(path)
        assert session.meta["complete"], limit
        full = [f"writing ended early: {writer.failure}"] * (writer.failure is not None)
        assert [text[:40] for text in session.meta["damage"]] == [text[:40] for text in full], limit
        assert (session.counters.bytes_dropped > 0) is (writer.failure is not None)
        assert writer.failure is None or writer.failure.endswith(f" after {size_text(size)}"), limit
        found = sorted(record.block_id for record in session.blocks if record.name.startswith("block"))
        after = sorted(record.block_id for record in session.blocks if record.name.startswith("late"))
        assert found == [*range(2, 2 + len(found))], limit
        assert after == [*range(10_000, 10_000 + len(after))], limit
        assert not after or len(found) == 1200
        numbers.append(len(found) + len(after))
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    assert sum(0 < number < 1200 for number in numbers) > 5  # a part of a chunk
    assert numbers[-1] == 2400


def test_what_an_interrupt_kept_from_the_file_is_written_next_time(tmp_path, monkeypatch):
    writer, write = Writer(tmp_path / "s"), os.write
    assert writer.buffer(b"first", hold=True)
    assert writer.buffer(b"second", hold=True)

    def interrupted(fd, data):
        write(fd, data[: len(data) // 2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.release()
    assert os.path.getsize(tmp_path / "s") == writer.size_bytes
    assert writer.release()
    writer.close()
    found, damage = chunks(tmp_path / "s")
    assert damage == []
    assert [chunk.payload[file.BUFFER_HEAD.size :] for chunk in found[:-1]] == [b"first", b"second"]
    assert [chunk.sequence for chunk in found] == [0, 1, 2]
    assert writer.bytes_dropped == 0


def test_more_is_added_to_the_file_of_a_program_that_was_killed(tmp_path):
    path = tmp_path / "run"
    writer = Writer(path)
    writer.json(file.META, {"mode": "file", "start_ns": T0})
    writer.append(file.BLOCKS, *blocks_of_many_names(3)[0])
    with pytest.raises(SessionError, match="another process is writing it"):
        add_meta(str(path), {})
    whole = path.read_bytes()
    os.close(writer._fd)
    path.write_bytes(whole + whole[16:50])  # the beginning of one more chunk
    add_meta(str(path), {"ended_by": "SIGSEGV", "program_end_ns": T0 + 500})
    session = load(path)
    assert (session.meta["complete"], session.meta["damage"]) == (False, [])
    left = [record for record in session.blocks if record.attributes == {OPEN_AT_END: True}]
    assert [(record.path, record.end_ns) for record in left] == [(("run",), T0 + 500)]
    assert [chunk.sequence for chunk in chunks(path)[0]] == [0, 1, 2]
    assert session.verdict.fix.endswith("If it crashes, `gpusense run -X faulthandler …` says where.")
    with open(path, "ab") as whole:
        whole.write(_chunk(file.END, b"{}", False, 2, 3, zlib.crc32(b"{}")))
    add_meta(str(path), {"ended_by": "SIGKILL"})  # it had ended already
    assert [chunk.type for chunk in chunks(path)[0]] == [file.META, file.BLOCKS, file.META, file.END]
    session = load(path)
    session.meta["complete"] = False
    session.meta["capture"] = {"state": "unavailable", "reason": NO_GPU}
    assert session.verdict.title == f"No GPU work was seen: {NO_GPU}."


@pytest.mark.parametrize("reused", [True, False])
@pytest.mark.parametrize("gone", [True, False])
def test_a_program_that_closes_every_descriptor_keeps_its_own_files(tmp_path, reused, gone):
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
    if gone:
        os.rename(tmp_path / "run", tmp_path / "moved")
        assert not writer.buffer(b"lost")  # with its head of 16 bytes
        assert "closed its descriptor" in writer.failure
        assert writer.bytes_dropped == 20
    else:
        assert writer.buffer(b"kept")
    failure = writer.failure
    writer.close()
    assert writer.failure == failure
    if reused:
        os.write(descriptor, b" data")
        os.close(descriptor)
        os.close(own)
        assert (tmp_path / "own").read_bytes() == b"precious data"
    found, damage = chunks(tmp_path / ("moved" if gone else "run"))
    assert ([chunk.type for chunk in found], damage) == ([file.META, *[file.BUFFER, file.END] * (not gone)], [])


@pytest.mark.skipif(sys.platform == "win32", reason="locks of files are for POSIX")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # other tests' threads; raised from Python 3.15 on
def test_two_writers_of_one_file_do_not_overwrite_each_other(tmp_path, run_python):
    """Ranks started with one -o: half of the chunks were gone, and nothing said so."""
    first = Writer(tmp_path / "run")
    assert first.buffer(b"first")
    with pytest.raises(SessionError, match="another process is writing it"):
        Writer(tmp_path / "run")
    other = "import sys; from gpusense.session._writer import Writer; Writer(sys.argv[1]).close()"
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
    size = int(config._RANGES["buffer_size"][1])
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
from gpusense._runtime import config
from gpusense.session._writer import Writer
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
        "import os, sys\nfrom gpusense.session import _format as file\nfrom gpusense.session._writer import Writer\n"
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
    write = "from gpusense.session._writer import Writer; Writer('s')"
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
