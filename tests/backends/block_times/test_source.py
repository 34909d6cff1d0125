"""Blocks timed by events, over a driver whose streams have scripted times."""

from gpusense._runtime import clock
from tests.backends.block_times.conftest import BEGIN


def only(times):
    times.poll()
    (record,) = times.records
    times.records.clear()
    return record


def untimed(times):
    return {tuple(row["path"]): row["reason"] for row in times.status()["untimed"]}


def test_a_block_on_a_busy_stream_takes_what_its_kernels_take(driver, times):
    driver.work(0, 500_000)  # the work before it
    with times.block():
        driver.work(0, 2_000_000)
        driver.work(0, 7_500)
        driver.later(10_000)
    times.poll()
    assert times.records == []
    driver.later(10_000_000)
    record = only(times)
    assert (record.duration_ns, record.timing, record.device) == (2_007_500, "device", 0)
    assert abs(record.start_ns - clock.SESSION.of_monotonic(BEGIN + 500_000)) <= record.clock_error_ns + 100 < 1_000


def test_on_an_idle_stream_it_is_at_most_so_long(driver, times):
    with times.block():
        driver.later(30_000)
        driver.work(0, 100_000)
        driver.later(400_000)  # the host waits for the device
    driver.later(10_000_000)
    record = only(times)
    assert (round(record.duration_ns, -3), record.timing) == (430_000, "at_most")


def test_without_work_it_is_nothing_on_a_busy_stream_and_unknown_on_an_idle_one(driver, times):
    driver.work(0, 500_000)
    with times.block():
        driver.later(5_000)
    driver.later(10_000_000)
    assert only(times).duration_ns == 0
    with times.block():
        driver.later(5_000)
    driver.later(10_000_000)
    record = only(times)
    assert (round(record.duration_ns, -3), record.timing) == (5_000, "at_most")
