"""What ``gpusense.testing`` promises to other people's tests."""

import doctest
import threading

import pytest

from gpusense import testing
from gpusense.backends import sysfs


def test_the_documented_example_is_true():
    assert doctest.testmod(testing).failed == 0
    assert doctest.testmod(testing).attempted >= 6


def test_a_misspelt_field_fails_in_the_test_that_wrote_it():
    source = testing.ScriptedSource()
    with pytest.raises(AttributeError):
        source.set(0, {"power.draw_wats": 1})
    with pytest.raises(AttributeError):
        source.set(0, {"powr.draw_watts": 1})


def test_a_manual_clock_wakes_waiters_in_order():
    clock, order = testing.ManualClock(), []

    def waiter(name, seconds):
        for _ in range(3):
            clock.wait(threading.Event(), seconds)
            order.append((name, clock.monotonic_ns()))

    threads = [threading.Thread(target=waiter, args=args) for args in (("a", 2), ("b", 3))]
    for thread in threads:
        clock.enlist(thread)
        thread.start()
    clock.advance(9)
    for thread in threads:
        thread.join(5)
    assert sorted(order) == [
        (name, n * 1_000_000_000) for name, n in [("a", 2), ("a", 4), ("a", 6), ("b", 3), ("b", 6), ("b", 9)]
    ]


def test_fake_sysfs_sleeps_and_wakes(tmp_path):
    tree = testing.FakeSysfs(tmp_path)
    tree.pci_device("0000:01:00.0", runtime_status="suspended")
    tree.pci_device("0000:02:00.0", vendor=0x1002)
    assert sysfs.pci_gpus(0x10DE, tree.root) == ["0000:01:00.0"]
    assert sysfs.asleep("0000:01:00.0", tree.root) == "sleeping: power/runtime_status is suspended"
    tree.pci_device("0000:01:00.0")
    assert sysfs.asleep("0000:01:00.0", tree.root) is None
    tree.remove("bus/pci/devices/0000:01:00.0/vendor")
    assert sysfs.pci_gpus(0x10DE, tree.root) == []


def test_trouble_that_cannot_be_is_refused():
    source = testing.ScriptedSource(1)
    with pytest.raises(ValueError, match="state must be"):
        source.trouble(0, "broken", "lost: fell off the bus")
    with pytest.raises(KeyError):
        source.trouble(1, "lost", "lost: fell off the bus")
