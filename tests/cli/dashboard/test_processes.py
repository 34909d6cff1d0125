"""What ``/proc`` says of a process: made-up files against what they mean, and this process."""

import os
import sys

import pytest
from support.machine import require

from gpusense.cli.dashboard.processes import Facts, Host

TICK = os.sysconf("SC_CLK_TCK") if sys.platform == "linux" else 100
PAGE = os.sysconf("SC_PAGE_SIZE") if sys.platform == "linux" else 4096


class Proc:
    """A ``/proc`` with one process, and a clock."""

    def __init__(self, root):
        self.root, self.now = root, 100.0
        (root / "7").mkdir(parents=True)
        (root / "uptime").write_text("5000.00 1.00\n")
        self.process()
        self.host = Host(str(root), lambda: self.now)

    def process(self, ticks=0, started=1000, pages=3, comm="x", command=b"/usr/bin/python3\0train.py\0--lr\0001\0"):
        rest = ["S", *["0"] * 10, str(ticks), "0", *["0"] * 6, str(started * TICK), "0", str(pages), *["0"] * 20]
        (self.root / "7" / "stat").write_text(f"7 ({comm}) {' '.join(rest)}\n")
        (self.root / "7" / "cmdline").write_bytes(command)
        (self.root / "7" / "status").write_text("Name:\tx\nUid:\t1\t4294967000\t1\t1\n")

    def facts(self):
        return self.host.facts([7, 8]).get(7)


@pytest.fixture
def proc(tmp_path):
    return Proc(tmp_path)


def test_a_process_is_told_by_its_files(proc):
    assert proc.facts() == Facts("4294967000", None, 3 * PAGE, 4000.0, "python3 train.py --lr 1")


def test_its_share_of_the_cpu_is_that_between_two_looks(proc):
    proc.facts()
    proc.process(ticks=10 * TICK)
    proc.now += 1.9
    assert proc.facts().cpu_percent is None  # not asked again so soon
    proc.now += 0.6
    assert proc.facts().cpu_percent == pytest.approx(400)
    proc.process(ticks=99 * TICK, started=2000)  # a later process of the same pid
    proc.now += 3
    assert proc.facts().cpu_percent is None
    proc.process(ticks=1, started=2000)
    proc.now += 3
    assert proc.facts().cpu_percent == 0


@pytest.mark.parametrize("comm", [") 1 2", "a b", "\n", "(("])
def test_a_name_cannot_shift_the_fields(proc, comm):
    proc.process(comm=comm)
    assert proc.facts().memory_bytes == 3 * PAGE


@pytest.mark.parametrize(
    ("command", "shown"),
    [(b"", None), (b"\0\0", None), (b"a\xff b\0", "a\ufffd b"), (b"/x/\0", "/x/"), (b"y" * 9000, "y" * 4096)],
)
def test_a_command_is_text_of_bounded_length(proc, command, shown):
    proc.process(command=command)
    assert proc.facts().command == shown


@pytest.mark.parametrize("stat", ["", "7", "7 (x) S 1", "7 (x) " + "a " * 40])
def test_what_cannot_be_read_is_not_known(proc, stat):
    (proc.root / "7" / "stat").write_text(stat)
    assert proc.facts() is None


def test_without_the_other_files_the_rest_is_known(proc):
    for name in ("7/status", "7/cmdline", "uptime"):
        (proc.root / name).unlink()
    assert proc.facts() == Facts(memory_bytes=3 * PAGE)


def test_this_process_is_known_here():
    require(sys.platform == "linux", "/proc")
    found = Host().facts([os.getpid()])[os.getpid()]
    assert found.memory_bytes > 1 << 20
    assert found.command
    assert found.user
