"""What a forced flush brings while a device hangs: work that ended before in the same buffer as work that does not."""

from types import SimpleNamespace

import pytest
from support.cupti import STRIDES, T0, kernel, view

from gpusense._capture import hang as _hang

NAMES = {1: "done", 2: "stuck", 3: "queued", 4: "after"}


@pytest.fixture
def watch(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(_hang, "now_ns", lambda: T0 + 10_000_000_000)
    watch = _hang.HangWatch(4.0, clock=lambda: clock.now)
    watch.clock = clock
    return watch


def hang(watch):
    for _ in range(3):
        watch.clock.now += 2.5
        noticed = watch.due(lambda: lambda: False)
    assert noticed
    return watch.note()


def test_work_that_ended_before_the_hang_does_not_end_it(watch):
    found = hang(watch)
    held = view(
        kernel(T0 + 1000, T0 + 2000, 5, name=1),
        kernel(T0 + 3000, 0, 6, name=2),
        kernel(0, 0, 7, name=3),
    )
    watch.read(held, STRIDES, NAMES.get)
    (row,) = found["streams"]
    assert row["last_completed"]["name"] == "done"
    assert (row["running"]["name"], row["last_launched"]["name"]) == ("stuck", "queued")
    assert found["last_completed_ns"] == T0 + 2000
    assert found["ended_ns"] is None


def test_work_that_ends_afterwards_ends_it(watch):
    found = hang(watch)
    watch.read(view(kernel(T0, T0 + 11_000_000_000, 8, name=4)), STRIDES, NAMES.get)
    assert found["ended_ns"] is not None
    assert not watch.due(lambda: lambda: False)
