"""A pause is made once the work has gone on for half a millisecond, and not before."""

import pytest

from gpusense._capture import pauses


@pytest.fixture
def clock(monkeypatch):
    """Nanoseconds that pass only where a test says so, and in pauses."""
    now, slept = [7], []
    monkeypatch.setattr(pauses, "perf_counter_ns", lambda: now[0])

    def sleep(seconds):
        slept.append(seconds)
        now[0] += int(seconds * 1e9)

    monkeypatch.setattr(pauses, "sleep", sleep)
    return now, slept


def test_pauses_come_when_they_are_due(clock):
    now, slept = clock
    pause = pauses.Pauses()
    now[0] = 10**12
    pause.begin()
    found = []
    for _ in range(10):
        now[0] += 200_000
        pause()
        found.append(len(slept))
    assert found == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    pause.begin()
    now[0] += 499_999
    pause()
    assert slept == [pauses.PAUSE_S] * 3
