"""Readings of how much the process computed: few, rising, enough to tell a host that computes from one that waits."""

from itertools import pairwise

import pytest
from support.sessions import MS, T0, kernel, session

from gpusense._capture import cpu_time
from gpusense._capture.cpu_time import CpuTime
from gpusense.analysis.facts import Facts
from gpusense.session import merge

SECOND = 1000 * MS


def readings(seconds, cores=1.0):
    """Of a loop that looks each hundredth of a second, of a process that computes on so many cores."""
    now = [T0]
    known = CpuTime(clock=lambda: now[0], spent=lambda: round((now[0] - T0) * cores))
    for _ in range(100 * seconds):
        known.look()
        now[0] += 10 * MS
    return known.rows()


@pytest.mark.parametrize("seconds", [1, 30, 2000])
def test_readings_are_few_and_cover_the_run(seconds):
    rows = readings(seconds)
    assert rows[0] == (T0, 0)
    assert rows[-1] == (T0 + seconds * SECOND, seconds * SECOND)
    assert len(rows) <= cpu_time._MOST + 1
    assert rows == sorted(set(rows))
    apart = max(after[0] - before[0] for before, after in pairwise(rows))
    assert apart <= max(100 * MS, 4 * seconds * SECOND // cpu_time._MOST)


def cores(rows, *spans):
    run = session(kernel("k", 0, MS), end=30 * SECOND, cpu_time=rows)
    (program,) = Facts(run).programs
    return program.cores([(T0 + start, T0 + end) for start, end in spans])


def test_how_many_cores_a_process_computed_on_in_some_times():
    rows = [(T0, 0), (T0 + SECOND, SECOND), (T0 + 4 * SECOND, 25 * SECOND), (T0 + 5 * SECOND, 25 * SECOND)]
    assert cores(rows, (SECOND, 4 * SECOND)) == 8.0
    assert cores(rows, (950 * MS, 4 * SECOND)) is None  # the reading before lies too far away
    assert cores(rows, (SECOND, 4 * SECOND), (4 * SECOND, 5 * SECOND)) == 6.0
    assert cores(rows, (4 * SECOND, 5 * SECOND)) == 0.0
    assert cores(rows, (5 * SECOND, 6 * SECOND)) is None  # after the last


@pytest.mark.parametrize("rows", [None, [], [5], [(T0, 0)], "ab", [(T0, "x"), (T0 + SECOND, "y")], 7])
def test_what_is_not_there_or_made_up_tells_nothing(rows):
    assert cores(rows, (0, SECOND)) is None


def test_a_merged_session_has_the_readings_of_each_process():
    runs = [
        session(kernel("k", 0, MS), end=3 * SECOND, pid=pid, cpu_time=[(T0, 0), (T0 + 3 * SECOND, pid * 3 * SECOND)])
        for pid in (1, 2)
    ]
    programs = Facts(merge(runs)).programs
    assert [one.cores([(T0, T0 + 3 * SECOND)]) for one in programs] == [1.0, 2.0]
