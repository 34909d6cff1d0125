"""The flight recorder in a process of its own: one slow request in ten thousand, and what its dump holds."""

import sys
from collections import Counter

import pytest
from support.programs import clean

from gpusense.session import _format as file
from gpusense.session import load

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")

#: The blocks of ``examples/torch_inference.py``. On a busy machine other requests may be unusual, too: each is written.
_SERVER = """
import os, signal
from gpusense._capture import flight
flight.EVERY_S = 0.0
gpusense.configure(flight_recorder=1.0, flight_factor=5.0, flight_signal=True)
tracer, cupti = begin()
tracer.flush(5)
def launch(name): driver.fake_cuda_launch(name, 0, 7, ctypes.c_uint64(900))
def answer(number, slow=False):
    with gpusense.trace("request", {"number": number}):
        with gpusense.trace("upload"): buffer.copy_from(data)
        with gpusense.trace("model"):
            for name in (b"gemm", b"relu", b"gemm", b"softmax"): launch(name)
            if slow:
                launch(b"recompiled")
                time.sleep(0.6)
        with gpusense.trace("download"): buffer.copy_to(data)
data = bytearray(64)
def status(): return tracer.status()["flight_recorder"]
def dumped(before):
    for _ in range(500):
        if status()["written"] > before: return status()["last"]
        time.sleep(0.01)
    raise SystemExit(f"nothing was written: {status()}")
"""


def dumps(cache):
    """What was written and why, the oldest first; each private."""
    paths = sorted((cache / "gpusense" / "runs").glob("flight-*.gpusense"))
    assert {path.stat().st_mode & 0o777 for path in paths} <= {0o600}
    for path in paths:
        with file.Reader(path) as reader:
            yield path, next(iter(reader)).json()["flight"]["reasons"]


def slow(reason):
    return reason["trigger"] == "slow" and reason["duration_ns"] > 600_000_000


def work_of(session):
    """Names of kernels and copies by the request that they were launched in, of requests that are there in full."""
    blocks = {block.block_id: block for block in session.blocks}
    found = {
        block.block_id: Counter()
        for block in session.blocks
        if block.name == "request" and block.start_ns > session.meta["start_ns"]
    }
    for record in (*session.kernels, *session.transfers):
        block = blocks.get(record.block_id)
        if block is not None and block.parent_id in found:
            found[block.parent_id][block.name, record.name] += 1
    return {blocks[block_id].attributes["number"]: work for block_id, work in found.items()}


USUAL = Counter(
    {
        ("upload", "cpu_to_gpu"): 1,
        ("model", "gemm"): 2,
        ("model", "relu"): 1,
        ("model", "softmax"): 1,
        ("download", "gpu_to_cpu"): 1,
    }
)


def test_the_dump_of_one_slow_request_in_ten_thousand_has_its_kernels_and_those_before_it(run, tmp_path):
    done = run(
        _SERVER
        + """
for number in range(10_000):
    answer(number, slow=number == 9_000)
    if number % 100 == 0: time.sleep(0.005)  # a server rests now and then
print(tracer.status()['flight_recorder']['failed'])
""",
        XDG_CACHE_HOME=str(tmp_path),
    )
    clean(done, "0\n")
    (path,) = [path for path, reasons in dumps(tmp_path) if any(map(slow, reasons))]
    session = load(path)
    assert (session.meta["damage"], session.counters.dropped, session.counters.missed) == ([], 0, 0)
    (reason,) = [one for one in session.meta["flight"]["reasons"] if one["path"] == ["request"] and slow(one)]
    assert reason["duration_ns"] > 5 * reason["p99_ns"]
    assert reason["passes"] >= 100
    assert any(note.startswith("written because block “request” took ") for note in session.meta["notes"])
    work = work_of(session)
    assert work.pop(9_000) == USUAL + Counter({("model", "recompiled"): 1})
    before = [number for number in work if number < 9_000]
    assert len(before) > 100
    assert before == list(range(before[0], 9_000))
    assert {number: counts for number, counts in work.items() if counts != USUAL} == {}


def test_signals_forks_and_times_without_capture(run, tmp_path):
    """A child gets SIGUSR2 back as it was, and its parent's recorder is none of its own."""
    done = run(
        _SERVER
        + """
theirs = []
def usr2(): os.kill(os.getpid(), signal.SIGUSR2)
answer(1)
usr2()
print(dumped(0) is not None)
child = os.fork()
if not child:
    os._exit(signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL or gpusense.dump() is not None)
print(os.waitpid(child, 0)[1])
usr2()
print(dumped(1) is not None)
gpusense.configure(flight_signal=False)
signal.signal(signal.SIGUSR2, lambda *_: theirs.append(1))
gpusense.configure(flight_signal=True)
usr2()
print(dumped(2) is not None, theirs)
print(gpusense.detach())
answer(2)
print(gpusense.dump("detached.gpusense") is not None)
gpusense.enable()
running(tracer)
answer(3)
print(gpusense.dump("enabled.gpusense") is not None, status()["failed"])
""",
        XDG_CACHE_HOME=str(tmp_path),
    )
    clean(done, "True\n0\nTrue\nTrue [1]\nNone\nTrue\nTrue 0\n")
    assert [reasons[0]["trigger"] for _, reasons in dumps(tmp_path)] == ["signal"] * 3
    detached, enabled = load(tmp_path / "detached.gpusense"), load(tmp_path / "enabled.gpusense")
    assert work_of(detached) == {1: USUAL}
    assert work_of(enabled)[3] == USUAL
    assert any(one.reason == "recording was disabled" for one in enabled.unseen)
