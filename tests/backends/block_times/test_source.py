"""Blocks timed by events, over a driver whose streams have scripted times."""

import ctypes
import gc
import sys
import threading
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.streams import BEGIN, LATENCY, LOOK, MARK, Block

from gpusense._capi.machine import mark_code
from gpusense._runtime import clock
from gpusense.backends import cuda
from gpusense.backends.block_times import hosts, marks
from gpusense.backends.block_times import source as module
from gpusense.backends.block_times.source import BlockTimes

LONG = 10_000_000  # after which the device has done all that a test gave it


def only(times):
    times.poll()
    (record,) = times.records
    times.records.clear()
    return record


def untimed(times):
    return {tuple(row["path"]): (row["reason"], row["count"]) for row in times.status()["untimed"]}


# --- what a time says -------------------------------------------------------------------------------------------------


def test_a_block_on_a_busy_stream_takes_what_its_kernels_take(driver, times):
    driver.work(0, 500_000)  # the work before it
    with times.block():
        driver.work(0, 2_000_000)
        driver.work(0, 7_500)
        driver.later(10_000)
    times.poll()
    assert times.records == []
    driver.later(LONG)
    record = only(times)
    assert (record.duration_ns, record.timing, record.device) == (2_007_500, "device", 0)
    assert (
        abs(record.start_ns - clock.SESSION.of_monotonic(BEGIN + 500_000 + 2 * MARK))
        <= record.clock_error_ns + 100
        < 1_000
    )
    assert times.status() == {"timed": 1, "untimed": [], "clock_error_ns": record.clock_error_ns}


def test_on_an_idle_stream_it_is_at_most_so_long(driver, times):
    with times.block():
        driver.later(30_000)
        driver.work(0, 100_000)
        driver.later(400_000)  # the host waits for the device
    driver.later(LONG)
    record = only(times)
    assert (round(record.duration_ns, -3), record.timing) == (430_000, "at_most")


def test_without_work_it_is_nothing_on_a_busy_stream_and_unknown_on_an_idle_one(driver, times):
    driver.work(0, 500_000)
    with times.block():
        driver.later(5_000)
    driver.later(LONG)
    record = only(times)
    assert (record.duration_ns, record.timing) == (0, "device")
    driver.work(0, 500_000)
    with times.block("outer"), times.block("inner"), times.block("innermost"):
        pass
    driver.work(0, 500_000)
    driver.later(LONG)
    times.poll()
    assert [record.duration_ns for record in times.records] == [0, 0, 0]
    times.records.clear()
    with times.block():
        driver.later(5_000)
    driver.later(LONG)
    record = only(times)
    assert (round(record.duration_ns, -3), record.timing) == (5_000, "at_most")


def test_blocks_inside_each_other_and_one_that_is_entered_again(driver, times):
    driver.work(0, 500_000)
    outer = times.block("outer")
    for _ in range(2):
        with outer:
            with times.block("inner"):
                driver.work(0, 50_000)
            driver.work(0, 20_000)
    driver.later(LONG)
    times.poll()
    assert [(r.path, r.duration_ns) for r in times.records] == [
        (("outer", "inner"), 50_000),
        (("outer",), 70_000 + 2 * MARK),  # and what the mark inside takes
        (("outer", "inner"), 50_000),
        (("outer",), 70_000 + 2 * MARK),
    ]


def test_what_two_marks_take_is_measured_while_a_stream_is_busy(driver, times, monkeypatch):
    monkeypatch.setattr(marks, "APART_NS", 1_000.0)

    def block():
        driver.work(0, 500_000)
        with times.block():
            driver.work(0, 100_000)

    driver.fail("cuStreamWaitEvent", 801)
    block()
    times.poll()
    driver.later(LONG)
    assert only(times).duration_ns == 100_000 + 2 * MARK - 1_000
    driver.fail("cuStreamWaitEvent", 0)
    block()
    wait = times._api.cuStreamWaitEvent
    with monkeypatch.context() as meanwhile:  # the device comes to the block's end while it is made to wait for that
        meanwhile.setattr(times._api, "cuStreamWaitEvent", lambda *given: driver.later(LONG) or wait(*given))
        times.poll()
    assert only(times).duration_ns == 100_000 + 2 * MARK - 1_000
    (place,) = times._places.values()
    assert (place.apart_ns, place._held) == (1_000, [])
    block()
    times.poll()
    driver.later(LONG)
    assert only(times).duration_ns == 100_000
    assert round(place.apart_ns) == 2 * MARK
    for _ in range(2 * marks.MEASURES):
        block()
        times.poll()
        driver.later(LONG)
        times.poll()
    assert driver.calls("cuStreamWaitEvent") == marks.MEASURES + 2
    assert len(place._own) == marks.ANCHOR_TRIES + marks.MEASURED_BY  # and the anchor's


def test_the_clock_is_held_to_the_hosts_once_a_second(driver, times):
    for second in range(4):
        driver.at(BEGIN + second * 1_000_000_000)
        driver.work(0, 500_000)
        with times.block():
            driver.work(0, 1_000_000)
        driver.later(LONG)
        record = only(times)
        assert record.duration_ns == 1_000_000
        true = clock.SESSION.of_monotonic(BEGIN + second * 1_000_000_000 + 500_000 + 2 * MARK)
        assert abs(record.start_ns - true) <= record.clock_error_ns + 200


# --- streams, threads, devices ----------------------------------------------------------------------------------------


def on_streams(monkeypatch, streams):
    """As if a library said that the thread is on ``streams[0]``; gives how it goes on to another."""
    told = []

    def meet(_, __, leaves, arrives):
        told[:] = leaves, arrives
        return lambda devices: hosts.Answer(hosts.Current(None, streams[0]))

    def switch(stream):
        told[0]()
        streams[0] = stream
        told[1]()

    monkeypatch.setitem(sys.modules, "launches", ModuleType("launches"))
    monkeypatch.setattr(hosts, "_HOSTS", {"launches": meet})
    return switch


def test_a_stream_that_the_block_goes_to_is_in_it_and_one_that_it_leaves_may_end(driver, times, monkeypatch):
    main, side = driver.stream(), driver.stream()
    switch = on_streams(monkeypatch, [main])
    driver.work(main, 500_000)
    driver.work(side, 500_000)
    with times.block("outer"), times.block():
        driver.work(main, 100_000)
        switch(side)
        driver.work(side, 300_000)
        switch(main)
        driver.capturing(side, True)  # so that it would be seen if it were asked for anything more: it may be gone
        driver.work(main, 50_000)
    driver.later(LONG)
    times.poll()
    assert [(r.duration_ns, r.streams, r.timing) for r in times.records] == [(300_000, 2, "device")] * 2
    assert driver.breaks == 0


def test_of_streams_that_had_nothing_to_do_in_the_block_nothing_is_said(driver, times, monkeypatch):
    main, side = driver.stream(), driver.stream()
    switch = on_streams(monkeypatch, [main])
    driver.work(main, 5_000_000)  # far ahead: its marks come long after the other stream has done the block's work
    driver.work(side, 400_000)
    with times.block():
        switch(side)
        driver.work(side, 300_000)
        switch(main)
    driver.later(LONG)
    assert only(times).duration_ns == 300_000


def test_a_stream_that_is_entered_again_ends_with_its_last_work(driver, times, monkeypatch):
    main, side = driver.stream(), driver.stream()
    switch = on_streams(monkeypatch, [main])
    for stream in (main, side):
        driver.work(stream, 500_000)
    with times.block():
        for _ in range(3):
            switch(side)
            driver.work(side, 100_000)
            switch(main)
    driver.later(LONG)
    assert only(times).duration_ns == 300_000 + 4 * MARK  # two ends that were none
    assert driver.calls("cuEventCreate") <= marks.GROW + marks.ANCHOR_TRIES + 1 + marks.MEASURED_BY


def test_each_thread_has_its_blocks_and_one_without_a_context_gets_the_devices(driver, times, monkeypatch):
    streams = threading.local()
    answer = lambda devices: hosts.Answer(hosts.Current(0, streams.of_thread))  # noqa: E731
    monkeypatch.setattr(hosts, "_HOSTS", {"pytest": lambda *_: answer})
    made = [driver.stream() for _ in range(4)]

    def run(at):
        streams.of_thread = made[at]
        for _ in range(10):
            driver.work(made[at], 500_000)
            with times.block(f"thread {at}"):
                driver.work(made[at], 1_000 * (at + 10))

    threads = [threading.Thread(target=run, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    driver.later(LONG)
    times.poll()
    assert sorted((r.name, r.duration_ns) for r in times.records) == [
        (f"thread {at}", 1_000 * (at + 10)) for at in range(4) for _ in range(10)
    ]
    assert driver.library.fake_cuda_stack_depth() == 1


def test_the_default_streams_of_two_threads_are_two(driver, times, monkeypatch):
    on_streams(monkeypatch, [module.PER_THREAD])
    driver.work(module.PER_THREAD, 500_000)
    context = driver.context()

    def beside():
        assert driver.library.cuCtxPushCurrent_v2(ctypes.c_void_p(context)) == 0
        driver.work(module.PER_THREAD, 500_000 + 2 * MARK)
        with times.block("beside"):
            driver.work(module.PER_THREAD, 10_000)

    with times.block("main"):  # its stream's marks lie close to the other's
        driver.work(module.PER_THREAD, 20_000)
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
    driver.leave()
    driver.later(LONG)
    times.poll()
    assert {record.name: record.duration_ns for record in times.records} == {"main": 20_000, "beside": 10_000}


def test_two_devices_have_a_time_each_and_an_idle_one_none(driver, times, monkeypatch):
    driver.library.fake_cuda_set_devices(3)
    main = driver.stream()
    driver.context(1)
    other = driver.stream()
    driver.leave()
    driver.context(2)
    third = driver.stream()
    driver.leave()
    streams = [hosts.Current(0, main), hosts.Current(1, other), hosts.Current(2, third)]
    answer = lambda devices: hosts.Answer(*[streams[at] for at in devices or (0,)])  # noqa: E731
    monkeypatch.setattr(hosts, "_HOSTS", {"pytest": lambda *_: answer})
    times.poll()  # finds the devices that have a context
    for stream in (main, other):
        driver.work(stream, 500_000)
    with times.block():
        driver.work(main, 100_000)
        driver.work(other, 200_000)
    driver.later(LONG)
    times.poll()
    assert sorted((r.device, r.duration_ns) for r in times.records) == [(0, 100_000), (1, 200_000)]


def test_a_block_may_end_on_another_thread_unless_its_stream_is_the_threads(driver, times, monkeypatch):
    stream = driver.stream()
    switch = on_streams(monkeypatch, [stream])
    driver.work(stream, 500_000)

    def ends(block):
        thread = threading.Thread(target=block.__exit__)
        thread.start()
        thread.join()
        module.innermost.set(None)

    ends(times.block("explicit").__enter__())
    switch(module.PER_THREAD)
    ends(times.block("of the thread").__enter__())
    driver.later(LONG)
    assert only(times).name == "explicit"
    assert untimed(times) == {("of the thread",): (module.ELSEWHERE, 1)}


# --- why there is none ------------------------------------------------------------------------------------------------


def test_a_stream_that_is_captured_is_left_alone(driver, times, monkeypatch):
    main, side = driver.stream(), driver.stream()
    switch = on_streams(monkeypatch, [main])
    driver.work(main, 500_000)
    with times.block("around"):
        driver.work(main, 100_000)
        switch(side)
        driver.capturing(side, True)
        with times.block("captured"):
            pass
        times.poll()  # gpusense's thread asks meanwhile
        driver.capturing(side, False)
        switch(main)
    with times.block("default"):
        driver.capturing(main, True)
        switch(0)  # while another stream is captured, the legacy one must not be touched
        switch(side)
        driver.capturing(main, False)
    driver.later(LONG)
    assert only(times).name == "around"
    assert untimed(times) == {("around", "captured"): (marks.CAPTURED, 1), ("default",): (marks.CAPTURED, 1)}
    assert driver.breaks == 0


def test_of_a_library_that_tells_nobody_nothing_is_known(times, monkeypatch):
    monkeypatch.setattr(hosts, "SILENT", {"pytest": "JAX"})
    with times.block():
        pass
    assert untimed(times) == {("b",): ("JAX does not tell which streams it uses", 1)}


def test_a_library_that_fails_when_it_is_asked_is_a_reason(times, monkeypatch):
    def ask(_):
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(hosts, "_HOSTS", {"pytest": lambda *_: ask})
    with times.block():
        pass
    assert untimed(times) == {("b",): ("RuntimeError: the device is lost", 1)}


def test_cuda_and_a_library_may_come_while_a_block_is_open(driver, no_library, monkeypatch):
    driver.library.fake_cuda_set_live(0)
    times = BlockTimes()
    with Block(times, "before"):
        pass
    assert untimed(times) == {}
    block = Block(times, "cuda").__enter__()
    driver.library.fake_cuda_set_live(1)
    block.__exit__()
    with Block(times, "library"):
        on_streams(monkeypatch, [0])
    assert untimed(times) == {("cuda",): (module.BEGAN, 1), ("library",): (module.CAME, 1)}
    times.stop()


def test_without_a_context_there_is_no_stream(driver, times):
    driver.leave()
    with times.block():
        pass
    driver.context()
    assert untimed(times) == {("b",): (module.NO_CONTEXT, 1)}


def test_a_mark_that_another_thread_takes_first_is_made_anew(driver, times, monkeypatch):
    with times.block():
        pass
    (place,) = times._places.values()
    taken, grow = [], place.grow

    def grow_for_another():
        found = grow()
        if not taken:
            taken.extend(place.free)
            place.free.clear()
        return found

    monkeypatch.setattr(place, "grow", grow_for_another)
    place.free.clear()
    with times.block():
        pass
    driver.later(LONG)
    times.poll()
    assert len(taken) == marks.GROW
    assert len(times.records) == 2
    assert untimed(times) == {}


def test_marks_are_bounded_and_come_back(driver, times, monkeypatch):
    monkeypatch.setattr(marks, "MAX_EVENTS", marks.GROW)
    driver.work(0, 500_000)
    for _ in range(marks.GROW):
        with times.block():
            driver.work(0, 10_000)
    driver.later(LONG)
    times.poll()
    assert len(times.records) == marks.GROW // 2
    assert untimed(times) == {("b",): (marks.FULL, marks.GROW // 2)}
    times.records.clear()
    with times.block():
        pass
    driver.later(LONG)
    times.poll()
    assert len(times.records) == 1


def test_blocks_that_nobody_ends_give_their_marks_back(driver, times):
    for _ in range(300):
        times.block().__enter__()
        module.innermost.set(None)
        times.poll()
    gc.collect()
    driver.later(LONG)
    times.poll()
    (place,) = times._places.values()
    assert (place.made, len(place.free)) == (marks.GROW, marks.GROW - 1)  # the last one is known by the next


@pytest.mark.parametrize("call", ["cuStreamIsCapturing", "cuEventRecord", "cuEventCreate", "cuEventQuery"])
def test_a_failed_device_is_a_reason_and_said_once(driver, times, call, caplog, monkeypatch):
    monkeypatch.setattr(marks.log, "_said", set())
    with times.block("before"):
        pass
    driver.fail(call, 700)
    if call == "cuEventCreate":
        for place in times._places.values():
            place.free.clear()
    for _ in range(3):
        with times.block():
            pass
    times.poll()
    told = untimed(times)[("b",)]
    assert told[1] == 3
    assert told[0] in (f"{call} answered ILLEGAL_ADDRESS (700)", marks.FULL)
    assert [record.message for record in caplog.records] == [
        f"gpusense: the device cannot time blocks: {call} answered ILLEGAL_ADDRESS (700)"
    ]


def test_a_context_that_is_destroyed_costs_its_blocks_and_the_next_one_is_used(driver, times):
    with times.block("lost"):
        pass
    driver.library.fake_cuda_reset_device(0)
    times.poll()
    assert untimed(times) == {("lost",): (marks.ENDED, 1)}
    driver.work(0, 500_000)
    with times.block("again"):
        driver.work(0, 1_000)
        driver.work(0, 5_000)
    driver.later(LONG)
    assert only(times).duration_ns == 6_000


def test_a_context_that_is_destroyed_inside_a_block_is_met_there(driver, times):
    with times.block("inside"):
        driver.library.fake_cuda_reset_device(0)
    with times.block("after"):
        pass
    driver.later(LONG)
    times.poll()
    assert [r.name for r in times.records] == ["after"]
    assert "INVALID_HANDLE" in untimed(times)[("inside",)][0]


def test_at_the_end_what_the_device_has_not_done_has_no_time(driver, times):
    driver.work(0, 500_000)
    with times.block():
        driver.work(0, 1_000_000)
    assert times.flush(0.0) is False
    assert times.end(0.01) is False
    assert untimed(times) == {("b",): (module.UNFINISHED, 1)}
    with times.block():  # nothing is asked of the driver any more
        pass
    assert times.status()["timed"] == 0


def test_a_forked_child_makes_no_call(driver, times):
    block = times.block().__enter__()
    times.after_fork_in_child()
    calls = driver.library.fake_cuda_call_count()
    block.__exit__()
    with times.block():
        times._leaves()
        times._arrives()
    times.poll()
    assert driver.library.fake_cuda_call_count() == calls


def test_the_two_ways_to_make_a_mark_answer_alike(driver, monkeypatch):
    api, context, stream, event = cuda.SOURCE.api(), driver.context(), driver.stream(), ctypes.c_void_p()
    driver.leave()
    assert api.cuEventCreate(ctypes.byref(event), 0) == 0
    ways = [marks.record_with(api)]
    monkeypatch.setattr(marks.executable, "native", lambda _: None)
    marks._machine_code.cache_clear()
    ways.append(marks.record_with(api))
    assert not hasattr(ways[1], "argtypes")

    def answers(where=context):
        first, second = [way(where, stream, event.value) for way in ways]
        return second - first if first > 0 else {first, second}

    assert answers() == LOOK
    assert answers(context + 8) == {-(1 << 16)}
    driver.capturing(stream, True)
    assert answers() == {-(2 << 16)}
    driver.capturing(stream, False)
    for step, call in enumerate(mark_code.SYMBOLS[:-1], 1):
        driver.fail(call, 700)
        assert answers() == {-((step << 16) + 700)}
        driver.fail(call, 0)
    marks._machine_code.cache_clear()


# --- any history ------------------------------------------------------------------------------------------------------

STREAMS = 3
#: Far from what tells a busy stream from an idle one, and from how far the clock goes on by being looked at.
UNIT = 100_000
steps = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.integers(1, 4)),
        st.tuples(st.just("host"), st.integers(0, 3)),
        st.tuples(st.just("go"), st.integers(0, STREAMS - 1)),
        st.tuples(st.just("open"), st.just(0)),
        st.tuples(st.just("close"), st.just(0)),
    ),
    max_size=40,
)


class Model:
    """When each stream comes to a place, and so what each block is to have."""

    def __init__(self, streams):
        self.until = dict.fromkeys(streams, 0)
        self.marks = {stream: [] for stream in streams}
        self.expected = {}

    def reached(self, stream, now):
        """(when it comes to a mark made now, whether it was busy, and the mark's number on the stream)"""
        at = now + LATENCY
        if self.until[stream] + MARK > at:
            at = self.until[stream] + MARK
            self.until[stream] = at + MARK
        self.marks[stream].append(at)
        return at, at - now >= marks.BUSY_NS, len(self.marks[stream]) - 1

    def here(self, stream, now, blocks):
        mark = None if all(stream in spans for spans in blocks) else self.reached(stream, now)
        for spans in blocks:
            if stream in spans:
                spans[stream][1] = None
            else:
                spans[stream] = [mark, None]

    def away(self, stream, now, blocks):
        of = [spans for spans in blocks if spans[stream][1] is None]
        mark = self.reached(stream, now) if of else None
        for spans in of:
            spans[stream][1] = mark

    def time(self, spans):
        """(nanoseconds, and whether that is a bound)"""
        rows = []
        for stream, ((_, busy_before, number), (_, busy_behind, last)) in spans.items():
            made = self.marks[stream]
            apart = [at for at in range(number, last) if made[at + 1] - made[at] > 2 * MARK + marks.MORE_NS]
            if apart:  # from the last mark before work to the first one behind it
                start, end = made[apart[0]], made[apart[-1] + 1]
                shorter = end - start > 2 * MARK
                start, end = start + MARK * (shorter and busy_before), end - MARK * (shorter and busy_behind)
                rows.append((start, busy_before, end, busy_behind))
        if not rows:
            return 0, False
        first, last = min(rows, key=lambda row: row[0]), max(rows, key=lambda row: row[2])
        return last[2] - first[0], not (first[1] and last[3])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=steps, ahead=st.lists(st.integers(0, 6), min_size=STREAMS, max_size=STREAMS))
def test_any_history_of_blocks_and_streams_is_timed_as_the_streams_were(history, ahead, scripted):
    driver, streams, switch, times = scripted
    driver.later(LONG)
    model = Model(streams)
    current = streams[0]
    switch(current)
    for stream, ns in zip(streams, ahead, strict=True):
        driver.work(stream, ns * UNIT)
        model.until[stream] = driver.now + ns * UNIT
    blocks = []
    for what, value in [*history, *[("close", 0)] * len(history)]:
        if what == "work":
            model.until[current] = max(model.until[current], driver.now) + value * UNIT
            driver.work(current, value * UNIT)
        elif what == "host":
            driver.later(value * UNIT)
        elif what == "go" and streams[value] != current:
            model.away(current, driver.now, [spans for _, spans in blocks])
            current = streams[value]
            switch(current)
            model.here(current, driver.now, [spans for _, spans in blocks])
        elif what == "open":
            spans = {}
            model.here(current, driver.now, [spans])
            blocks.append((times.block().__enter__(), spans))
        elif what == "close" and blocks:
            block, spans = blocks.pop()
            model.away(current, driver.now, [spans])
            block.__exit__()
            model.expected[block.block_id] = model.time(spans)
    driver.later(100 * LONG)
    times.poll()
    found = {record.block_id: record for record in times.records}
    times.records.clear()
    assert found.keys() == model.expected.keys()
    for number, (length, bound) in model.expected.items():
        record = found[number]
        assert record.timing == ("at_most" if bound else "device")
        # Ends on two streams are compared through the anchor, by a float of milliseconds that may be a second long.
        exact = 100 if record.streams > 1 else 0
        assert abs(record.duration_ns - length) <= (UNIT // 5 if bound else exact)


@pytest.fixture
def scripted(driver, times, monkeypatch):
    streams = [driver.stream() for _ in range(STREAMS)]
    switch = on_streams(monkeypatch, [streams[0]])
    with times.block():  # meets the library
        pass
    driver.later(LONG)
    times.poll()
    times.records.clear()
    times._untimed.clear()
    return driver, streams, switch, times
