"""The threads that sample: how many there are, who waits for whom, what a driver that hangs or is slow holds up."""

import threading
import time

import pytest
from support.machine import skip_without

from gpusense import monitor, testing
from gpusense.monitor._lane_threads import LaneThreads, Task
from gpusense.monitor._sampler import SECOND, Schedule


class Held(testing.ScriptedSource):
    """Some lanes of some devices take their time; what runs at once on one device is noted."""

    def __init__(self, count, clock):
        super().__init__(count, clock=clock)
        self.manual = clock
        self.takes: dict[tuple[int, str], float] = {}  # (device, lane) → seconds a call
        self.begun: dict[tuple[int, str], int] = {}
        self.free = threading.Event()
        self.twice = []

    def sample(self, device, lanes=("fast",)):
        key = device.index, lanes[0]
        self.begun[key] = self.begun.get(key, 0) + 1
        if self.begun[key] > 1:
            self.twice.append(key)
        seconds = self.takes.get(key, 0)
        if seconds:
            self.manual.wait(self.free, seconds)
        self.begun[key] -= 1
        return super().sample(device, lanes)


@pytest.fixture
def clock():
    return testing.ManualClock()


@pytest.fixture
def held(clock):
    return Held(8, clock)


@pytest.fixture
def start(held, clock):
    end = time.monotonic() + 20
    while threads() and time.monotonic() < end:  # of tests before
        time.sleep(0.01)
    started = []

    def begin(**more):
        started.append(monitor.start_background(source=held, clock=clock, **more))
        return started[-1]

    yield begin
    held.free.set()
    for one in started:
        one.stop()


def threads():
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("gpusense-"))


def counts(running):
    return [len(running.history(device=index)) for index in range(8)]


def test_one_device_has_two_threads_and_eight_have_three(start, clock):
    start(devices=0)
    clock.advance(1)
    assert threads() == ["gpusense-fast", "gpusense-slow"]
    start()
    clock.advance(1)
    assert threads() == ["gpusense-fast", "gpusense-look", "gpusense-slow"]


def test_the_threads_end_with_the_last_monitor(start, clock):
    first, second = start(), start(devices=[1, 2])
    clock.advance(1)
    first.stop()
    assert threads() == ["gpusense-fast", "gpusense-look", "gpusense-slow"]
    second.stop()
    assert threads() == []


def test_all_devices_are_sampled_at_one_waking(start, clock):
    start(devices=[0, 1], interval=0.1)
    clock.advance(0.55)
    late = start(devices=[2, 3], interval=0.1)
    clock.advance(1)
    times = [sample.monotonic_ns for sample in late.history(device=2)]
    assert times == [55 * SECOND // 100, *(tenth * SECOND // 10 for tenth in range(6, 16))]
    assert late.stats().skipped == 0


@pytest.mark.parametrize("start_ns", [0, 30, 99, 100])
def test_deadlines_with_one_origin_fall_together(start_ns):
    schedule = Schedule(100, start_ns, 0)
    assert schedule.begin(start_ns)
    schedule.done(start_ns)
    assert (schedule.next_ns, schedule.skipped) == (100 if start_ns < 100 else 200, 0)
    other, changed = schedule.at(40, 110)
    assert (changed, other.next_ns) == (True, 110)
    assert other.begin(110)
    other.done(125)
    assert (other.next_ns, other.skipped) == (160, 0)


@pytest.mark.parametrize("lanes", [["fast"], ["medium"], ["fast", "medium"]])
def test_a_driver_call_that_never_returns_holds_its_device_alone(start, held, clock, lanes):
    running = start(interval=0.1, medium_interval=0.5)
    clock.advance(1)
    for lane in lanes:
        held.takes[3, lane] = 1e6
    clock.advance(10)
    before = counts(running)
    clock.advance(10)
    after = counts(running)
    assert [more - less for more, less in zip(after, before, strict=True)] == [
        0 if index == 3 and "fast" in lanes else 100 for index in range(8)
    ]
    states = [sample.state for sample in running.latest()]
    assert states == ["degraded" if index == 3 and "fast" in lanes else "ok" for index in range(8)]
    assert all(count >= 190 for index, count in enumerate(after) if index != 3)  # one second was lost at most
    assert len(threads()) == 3 + len(lanes)
    held.takes.clear()
    held.free.set()
    clock.advance(5)
    assert counts(running)[3] >= 49
    assert len(threads()) == 3 + len(lanes)  # it keeps the thread it was on
    assert held.twice == []


def test_every_device_may_hang_one_after_the_other(start, held, clock):
    running = start(interval=0.1)
    for index in range(7):
        held.takes[index, "fast"] = 1e6
    clock.advance(20)
    before = counts(running)
    clock.advance(10)
    assert [more - less for more, less in zip(counts(running), before, strict=True)] == [0] * 7 + [100]


def test_a_stop_frees_what_hangs_and_the_others_go_on(start, held, clock):
    running, other = start(interval=0.1), start(interval=0.1, devices=[4, 5])
    held.takes[3, "fast"] = 1e6
    clock.advance(5)
    running.stop(0.05)
    before = counts(other)
    clock.advance(1)
    assert counts(other)[4] - before[4] == counts(other)[5] - before[5] == 10
    held.free.set()
    clock.advance(1)
    assert threads() == ["gpusense-fast", "gpusense-look", "gpusense-slow"]


def test_a_device_that_takes_too_much_of_the_round_gets_a_thread_of_its_own(start, held, clock):
    """Two devices of 40 ms each left no time for the others at ten samples a second."""
    held.takes[1, "fast"] = held.takes[6, "fast"] = 0.04
    running = start(interval=0.1)
    clock.advance(10)
    before, skipped = counts(running), running.stats().skipped
    clock.advance(10)
    assert [more - less for more, less in zip(counts(running), before, strict=True)] == [100] * 8
    assert running.stats().skipped == skipped
    assert threads().count("gpusense-fast") == 2
    assert held.twice == []


def test_calls_that_fit_into_the_period_share_a_thread(start, held, clock):
    for index in range(8):
        held.takes[index, "fast"] = 0.005
    running = start(interval=0.1)
    clock.advance(10)
    assert threads().count("gpusense-fast") == 1
    assert running.stats().skipped == 0


def test_events_that_hang_as_watching_begins_hold_no_lane(start, held, clock):
    held.watched = []
    held.watch = lambda: (clock.wait(held.free, 1e6), held.watched.append("on"))
    held.unwatch = lambda: held.watched.append("off")
    running = start(interval=0.1)
    clock.advance(5)
    assert sum("medium" in lanes for _, lanes in held.calls) == 8 * 5
    held.free.set()
    clock.advance(1)
    assert held.watched == ["on"]
    running.stop()
    assert held.watched == ["on", "off"]


def test_a_process_that_stood_still_moves_nothing(clock):
    """After one look, nobody knows whether a call or the whole process took so long."""
    lanes = LaneThreads(clock, lambda: None, lambda: None)
    long = []

    def step():
        if long:
            clock.wait(threading.Event(), long.pop())
        return SECOND // 10

    tasks = [Task(step, lambda: SECOND // 10) for _ in range(3)]
    for task in tasks:
        lanes.add("fast", task)
    clock.advance(1)
    long.append(100.3)
    clock.advance(0.1)
    assert not long
    clock._now_ns += 100 * SECOND  # and nobody ran
    clock.advance(5)
    assert threads() == ["gpusense-fast", "gpusense-look"]
    for task in tasks:
        lanes.remove(task)
    lanes.join(tasks, time.monotonic() + 10)
    assert threads() == []


def test_where_no_thread_can_be_started_the_others_wait_for_the_one_that_hangs(start, held, clock, monkeypatch):
    running = start(interval=0.1)
    clock.advance(1)

    def refuse(self):
        self._ident = -1  # for the clock: it need not be waited for
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    held.takes[3, "fast"] = 5.0
    clock.advance(20)
    monkeypatch.undo()
    clock.advance(3)
    held.takes.clear()
    before = counts(running)
    clock.advance(10)
    assert counts(running)[2] - before[2] >= 90
    assert held.twice == []


def test_devices_that_come_and_go_are_never_sampled_twice_at_once():
    """On real time: monitors begin and end while steps are under way."""
    source = Held(6, testing.Clock())
    source.manual = type("C", (), {"wait": staticmethod(lambda event, seconds: event.wait(seconds))})
    source.takes = {(index, "fast"): 0.001 for index in range(6)}
    errors = []

    def come_and_go(index):
        try:
            for number in range(15):
                with monitor.start_background(source=source, interval=0.005, devices=[index, (index + number) % 6]):
                    threading.Event().wait(0.003)
        except Exception as error:
            errors.append(error)

    workers = [threading.Thread(target=come_and_go, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not errors
    assert not monitor.shared.samplers
    assert source.twice == []
    waiting = threading.Event()
    for _ in range(1000):
        if not threads():
            break
        waiting.wait(0.01)
    assert threads() == []


#: A program that never lets greenlets run.
BUSY = """
{patch}
import time
from gpusense import monitor, testing
from gpusense._runtime import threads
callers, source = set(), testing.ScriptedSource(2)
with monitor.start_background(lambda _: callers.add(threads.thread_id()()), source=source, interval=0.01) as running:
    until = time.monotonic() + 20
    while not (callers and running.history(device=1)) and time.monotonic() < until: pass
print(len(callers), threads.thread_id()() in callers, len(running.history(device=1)) > 0, monitor.shared.samplers)
"""


@pytest.mark.parametrize(
    ("library", "patch"),
    [
        ("gevent", "from gevent import monkey; monkey.patch_all()"),
        ("eventlet", "import eventlet; eventlet.monkey_patch()"),
    ],
)
def test_a_patched_program_that_never_yields_is_sampled_on_threads_of_the_system(run_python, library, patch):
    skip_without(library)
    done = run_python(BUSY.format(patch=patch), PYTHONWARNINGS="ignore")
    assert done.stdout == "1 False True {}\n", done.stderr
