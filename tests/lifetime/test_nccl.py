"""Two ranks under ``gpusense run``, and a fake NCCL: who was late, and who did not come."""

import sys

import pytest
from support.followed import whole
from support.machine import NATIVE

from gpusense._capi.machine import nccl_code
from gpusense.analysis.findings import findings
from gpusense.analysis.ranks import ranks, split

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or NATIVE not in nccl_code.CODES, reason="there is no code for this processor and system"
)

#: Rank 1 comes 60 ms late to each of six collectives of 100 ms, and not at all to the seventh, in which rank 0 waits.
RANK = """
import ctypes, os, time
driver, cupti = (ctypes.CDLL(os.environ["GPUSENSE_LIB" + name]) for name in ("CUDA", "CUPTI"))
assert driver.cuInit(0) == 0
zero = ctypes.c_uint64(0)
cupti.fake_cupti_kernel(b"step", 0, 7, zero, zero, 0)
import cupy
nccl = ctypes.CDLL(os.environ["FAKE_NCCL"])
nccl.fake_init.restype = nccl.fake_launch.restype = nccl.fake_channel_begins.restype = ctypes.c_void_p
nccl.fake_timer.restype = ctypes.c_uint64
number, pointer = ctypes.c_uint64, ctypes.c_void_p
rank = int(os.environ["RANK"])
ahead = ctypes.c_int64.in_dll(nccl, "fake_timer_ahead").value
one = pointer(nccl.fake_init(5, number(0xF000000000000ABC), b"world", 1, 2, rank))
def until(ns):
    time.sleep(max(0, ns - time.monotonic_ns()) / 1e9)
def begin(n, at):
    handle = pointer(nccl.fake_launch(one, 0, b"AllReduce", number(n), b"ncclFloat32", number(1 << 20), 0, 1))
    return pointer(nccl.fake_channel_begins(one, handle, 0, number(at + ahead)))
print(flush=True)
base = int(input())
for n in range(6):
    at = base + n * 100_000_000
    until(at + 60_000_000 * rank)
    channel = begin(n, at + 60_000_000 * rank)
    until(at + 80_000_000)
    nccl.fake_channel_ends(one, channel, number(at + 80_000_000 + ahead))
if rank == 0:
    begin(6, time.monotonic_ns())
def sleeps_instead():
    time.sleep(1.5)
sleeps_instead()
"""
LAUNCHER = f"""
import os, subprocess, sys, time
talks = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
started = [
    subprocess.Popen([sys.executable, "-c", {RANK!r}], env={{**os.environ, "WORLD_SIZE": "2", "RANK": str(n)}}, **talks)
    for n in range(2)
]
for process in started:
    process.stdout.readline()
base = time.monotonic_ns() + 50_000_000  # both are there
for process in started:
    print(base, file=process.stdin, flush=True)
sys.exit(any([process.wait() for process in started]))
"""


def test_who_is_late_and_who_did_not_come(gpu, build_library, tmp_path):
    (tmp_path / "cupy.py").write_text("")
    (tmp_path / "launch.py").write_text(LAUNCHER)
    fake = str(build_library("libnccl.c", "libnccl.so.2", "-ldl"))
    done = gpu("-o", "s.gpusense", "launch.py", FAKE_NCCL=fake, GPUSENSE_HANG_AFTER="0.3")
    assert done.returncode == 0, done.stderr
    session = whole(tmp_path / "s.gpusense")
    told = session.collectives
    assert {(each.communicator, each.communicator_name, each.ranks, each.bytes) for each in told} == {
        ("f000000000000abc", "world", 2, 1 << 22)
    }
    assert sorted((each.rank, each.sequence) for each in told) == [(0, n) for n in range(7)] + [
        (1, n) for n in range(6)
    ]
    assert [each.device_end_ns for each in told if each.sequence == 6] == [None]
    answer = ranks(split(session))
    assert (answer.collectives, answer.straggler) == (6, 1)
    late = answer.ranks[1].late_ns
    assert 40e6 < late < 80e6, late
    (missing,) = answer.missing
    assert (missing.key.name, missing.key.sequence, missing.present, missing.absent) == ("AllReduce", 6, (0,), (1,))
    first, *_ = findings(session)
    assert first.kind == "hang"
    assert first.title == "Rank 1 did not come to AllReduce number 6, in which rank 0 waited at the end of the run."
    assert "Rank 1 did not come to AllReduce" in done.stderr
    waits, waited_for = sorted(session.meta["hang"], key=lambda found: found["process"])
    begins = "rank 0 has been in AllReduce number 6 of communicator f000000000000abc (world) for "
    assert waits["text"].startswith(begins)
    assert waits["text"].endswith("; rank 1 has not come: it launched number 5 last")
    assert (waits["wait"]["came"], waits["wait"]["absent"], waits["ended_ns"]) == ([0], [1], None)
    assert waited_for["text"].startswith("rank 1 is waited for: rank 0 has been in AllReduce number 6 of")
    where = [frame for stack in waited_for["stacks"] for frame in stack["frames"]]
    assert any(frame.endswith("sleeps_instead") for frame in where)
    before, _, _ = done.stderr.partition("2 processes")  # said while they hung
    assert before.count(f"gpusense: {begins}") == 1
    assert before.count("gpusense: rank 1 is waited for") == 1
