"""A recorder and a scripted store: what goes into it, in which order, and when. And a block opened while another thread
attaches waits, so that what it launches is seen, but not for ever."""

import threading
from time import monotonic
from types import SimpleNamespace

import pytest

from gpusense._aggregation.block_totals import Watched
from gpusense._aggregation.threshold import Threshold
from gpusense._attribution.boundaries import (
    CLOSE,
    DARK,
    LIT,
    LOST,
    MARKED,
    OPEN,
    PLACED,
    RECORD,
    UNPLACED,
    MarkerCall,
)
from gpusense._capture import recorder as recorder_module
from gpusense._capture.recorder import Owner, Recorder
from gpusense._decode.correlation_ids import Launches
from gpusense._records.records import ComputeBlock, Counters, UnseenInterval
from gpusense._records.work import WorkTable
from gpusense._runtime import config


class ScriptedStore:
    """Notes what it is called with; gives what ``answers`` say."""

    mode = "scripted"
    idle = True

    def __init__(self, settings, capture, sinks, start_ns):
        self.calls = []
        self.answers = {"placed": [], "may_wait": False, "counters": Counters(), "results": ([], [], [], WorkTable())}
        self.threshold, self.launches = Threshold(settings.threshold_ns, 10), Launches()
        self.owners, self.watched = {}, Watched()
        self.failure = None

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments, **more):
            self.calls.append((name, *arguments, *more.values()))
            if name == "add" and self.failure is not None:
                raise self.failure
            return self.answers.get(name)

        return call

    def take(self):
        """The names of the calls since the last time, and the calls."""
        calls, self.calls = self.calls, []
        calls = [call for call in calls if call[0] != "counters"]  # asked again and again
        return [name for name, *_ in calls], calls


def mark(token):
    """A marker call that works."""
    return 0


class Capture:
    """Attaches when the gate is opened."""

    waiting, running, attached, ended, epoch = True, False, False, False, 0

    def __init__(self):
        self.inside, self.gate = threading.Event(), threading.Event()
        self.marker, self.marker_shape, self.newest = mark, None, None
        self.has_context = True
        self.refuses, self.recorder, self.steps = False, None, []
        self.sharing = SimpleNamespace(
            agree=lambda budget, spent: (None, spent, True), pauses=lambda: ([], None), alone=True
        )

    def try_attach(self, on_view, joins, follow):
        self.inside.set()
        self.gate.wait(60)
        joins()
        self.running = self.attached = True
        return UnseenInterval(0, 0, "before")

    def open(self):
        self.steps.append(("open", self.recorder and self.recorder.marker))
        return not self.refuses

    def close(self):
        self.steps.append(("close", self.recorder and self.recorder.marker))

    def hold(self, reason):
        self.held = reason
        self.steps.append(("hold", self.recorder and self.recorder.marker))

    def go_on(self):
        self.steps.append(("go on", self.recorder and self.recorder.marker))
        return UnseenInterval(1, 2, self.held)

    def stop(self):
        self.steps.append(("stop", self.recorder and self.recorder.marker))

    def flush(self, forced=False): ...

    def unseen_now(self): ...

    def prepare_marker(self):
        return self.has_context

    def watch(self):
        return None

    def losses(self):
        return {}

    def lines(self):
        return []

    def hold_lines(self, held):
        pass


def opened(block, parent=None):
    return UNPLACED, OPEN, block, parent, 5, 100 + block, f"block {block}"


@pytest.fixture
def recorder():
    made = Recorder(config.Settings(), None, ScriptedStore)
    assert made.store.take() == (["note"], [("note", made)])
    return made


def test_the_queue_comes_to_the_store_in_its_order(recorder):
    first, second = ComputeBlock("a", 1, 2), ComputeBlock("b", 2, 3)
    begin, end = (PLACED, OPEN, 1, None, 5, 10, "a", 7), (PLACED, CLOSE, 1, None, 5, 20, "", 8)
    marked = (MARKED, OPEN, 2, None, 5, 30, "marked", MarkerCall(41))
    recorder.store.answers["placed"] = [first]
    recorder.events += [begin, end, (LOST, 40), marked, (RECORD, second), begin]
    recorder.tick()
    names, calls = recorder.store.take()
    assert names == ["lose", "placed", "boundary", "placed", "records", "cycle", "beside"]
    assert calls[0] == ("lose", 40)
    assert calls[1] == ("placed", [begin, end])  # before whatever has no place yet
    assert (calls[2][1].token, calls[2][1].block_id, calls[2][2]) == (41, 2, False)
    assert calls[3] == ("placed", [begin])
    assert calls[4] == ("records", [first, second, first])


def test_a_cycle_of_the_recording_thread_may_wait_and_any_other_does_not(recorder):
    recorder.store.answers["may_wait"] = True
    recorder.events.append((RECORD, ComputeBlock("a", 1, 2)))
    recorder.tick(lazily=True)
    assert recorder.store.take()[0] == ["may_wait", "beside"]
    recorder.tick()
    assert recorder.store.take()[0] == ["records", "cycle", "beside"]


def test_without_capture_a_boundary_is_before_all_launches(recorder):
    recorder.events.append(opened(1))
    recorder._consume()
    _, (boundary, *_) = recorder.store.take()
    assert (boundary[1].block_id, boundary[2]) == (1, True)


def test_blocks_that_are_open_when_marking_begins_come_first():
    capture = Capture()
    capture.gate.set()
    capture.has_context = False
    recorder = Recorder(config.Settings(), capture, ScriptedStore)
    store = recorder.store
    recorder.events += [opened(1), opened(2, 1), opened(3, 2), (UNPLACED, CLOSE, 3, None, 5, 110, "")]
    store.take()
    recorder.tick()
    names, _ = store.take()
    assert names == ["know"] * 4 + ["records", "attached", "records", "records", "cycle", "beside"]
    assert recorder.armed
    capture.has_context = True
    recorder.tick()
    names, calls = store.take()
    assert names == ["records", "records", "attached", *["boundary"] * 3, "records", "cycle", "beside"]
    assert [(call[1].block_id, call[2]) for call in calls[4:6]] == [(1, True), (2, True)]
    assert recorder.marker is mark
    recorder.events.append(opened(4))  # another profiler has CUPTI meanwhile
    recorder._consume()
    assert store.take()[1][0][2] is False


@pytest.fixture
def switched():
    """A recorder whose capture reads ids, and has a context from the start."""
    capture = Capture()
    capture.gate.set()
    capture.newest = iter(range(70, 200, 10)).__next__
    recorder = capture.recorder = Recorder(config.Settings(), capture, ScriptedStore)
    recorder.store.take()
    return recorder


def placed(store):
    return [(call[1].op, call[1].block_id, call[-1]) for call in store.take()[1] if call[0] == "boundary"]


def test_work_is_recorded_last_and_ends_first(switched):
    recorder, capture, store = switched, switched.capture, switched.store
    recorder.poke()
    assert capture.steps == [("open", mark)]  # boundaries have a place by then
    assert placed(store) == [(LIT, 0, 70)]
    capture.steps.clear()
    recorder.pause_capture()
    assert capture.steps[-2:] == [("close", mark), ("stop", None)]
    assert placed(store) == [(DARK, 0, 80)]
    (before, disabled) = recorder.unseen
    assert (before.reason, disabled.reason) == ("before", "recording was disabled")
    capture.running, capture.rearm = False, lambda: True
    recorder.resume_capture()
    recorder._last_poke = 0.0
    recorder.poke()
    assert placed(store) == [(LIT, 0, 90)]


def test_what_another_tracer_had_recorded_before_is_not_seen(switched):
    switched.capture.sharing.alone = False
    switched.poke()
    assert placed(switched.store) == [(DARK, 0, True), (LIT, 0, 70)]


def test_nothing_has_a_place_where_work_is_refused(switched):
    recorder, capture = switched, switched.capture
    capture.refuses = True
    recorder.poke()
    assert recorder.marker is None
    assert recorder.armed
    assert placed(recorder.store) == [(LIT, 0, 70), (DARK, 0, 80)]
    assert recorder.unseen == []


def test_blocks_come_behind_what_was_launched_where_some_were_crossed_meanwhile(switched):
    recorder, capture = switched, switched.capture
    recorder.events += [opened(1), opened(2, 1)]
    real = capture.prepare_marker

    def prepare():
        recorder.events.append((UNPLACED, CLOSE, 2, None, 5, 110, ""))
        return real()

    capture.prepare_marker = prepare
    recorder.poke()
    assert placed(recorder.store) == [(LIT, 0, 70), (OPEN, 1, 80)]


@pytest.mark.parametrize("returns", ["meanwhile", "afterwards"])
def test_a_profiler_that_comes_and_goes_while_a_tracer_looks_is_told_to_it_all_the_same(switched, monkeypatch, returns):
    """Its blocks have no place from the moment on in which another tracer noticed, whatever it is at itself."""
    recorder, capture, store = switched, switched.capture, switched.store
    recorder.poke()
    assert placed(store) == [(LIT, 0, 70)]
    capture.steps.clear()
    monkeypatch.setattr(recorder_module, "FOLLOW_S", 0.01)
    looks, goes_on = threading.Event(), threading.Event()

    def watch():
        looks.set()
        assert goes_on.wait(10)  # it has found nothing, and takes long to do so

    monkeypatch.setattr(capture, "watch", watch)
    thread = threading.Thread(target=recorder.tick)
    thread.start()
    assert looks.wait(10)
    recorder._follow(False, "taken")
    assert placed(store) == [(DARK, 0, 80)]
    assert recorder.marker is None
    if returns == "meanwhile":
        recorder._follow(True, "")
        assert placed(store) == []
    goes_on.set()
    thread.join(10)
    if returns == "afterwards":
        assert capture.held == "taken"
        recorder._follow(True, "")
    assert [step for step, _ in capture.steps if step != "open"] == ["hold", "go on"]
    assert placed(store) == [(LIT, 0, 90)]
    monkeypatch.setattr(capture, "watch", lambda: None)
    recorder.tick()
    assert capture.steps[-1] == ("open", mark)
    assert "taken" in [unseen.reason for unseen in recorder.unseen]


def test_a_profiler_that_comes_twice_between_two_looks_is_told_twice(switched):
    recorder = switched
    recorder.poke()
    for reason in ("first", "second"):
        recorder._follow(False, reason)
        recorder._follow(True, "")
    recorder.tick()
    assert [unseen.reason for unseen in recorder.unseen] == ["before", "first", "second"]


def test_a_rest_that_ends_as_capture_is_to_begin_takes_nothing_away(switched):
    """A block ends the rest while another thread arms; whichever comes first, what it found to do is done."""
    recorder = switched
    recorder.poke()
    assert recorder.capture.running

    class Interrupted:
        """True, and something else is done before whoever asked goes on."""

        def __bool__(self):
            recorder._arm()
            return True

    recorder._rests = recorder.armed = True
    recorder._seeks, recorder._rests = False, Interrupted()
    recorder.poke()
    assert recorder.armed
    recorder.capture.running = False
    recorder._last_poke = 0.0
    recorder.poke()
    assert recorder.capture.running


def test_a_block_that_asks_for_nothing_is_the_last_one(switched):
    """As where a rest ends at the moment in which it begins."""
    recorder = switched
    recorder.poke()
    assert not recorder.armed
    recorder.armed = True
    recorder.poke()
    assert not recorder.armed


def test_a_marker_says_where_boundaries_end_and_begin_where_ids_are_not_read(switched):
    recorder, capture, store = switched, switched.capture, switched.store
    capture.newest, marked = None, []
    capture.marker = lambda token: marked.append(token) or token == marked[0]
    recorder.poke()
    recorder.pause_capture()
    calls = store.take()[1]
    lit, dark = (call[1] for call in calls if call[0] == "boundary")
    assert [(lit.op, lit.token), (dark.op, dark.token)] == [(LIT, marked[0]), (DARK, marked[1])]
    assert ("lose", marked[0]) in calls  # this call failed
    assert recorder.marker is None


def test_what_was_in_the_queue_comes_before_the_buffer(recorder):
    recorder.events.append((RECORD, ComputeBlock("a", 1, 2)))
    view = memoryview(b"")
    recorder.on_buffer(view, 7)
    names, calls = recorder.store.take()
    assert names == ["records", "add"]
    assert calls[1][1:3] == (view, 7)


def test_buffers_that_fail_for_one_reason_are_one_unseen_time(recorder):
    recorder.store.failure = MemoryError("none left")
    for _ in range(3):
        recorder.on_buffer(memoryview(b""), 7)
    (unseen,) = recorder.all_unseen()
    assert unseen.reason == "records could not be read: MemoryError: none left"
    recorder.store.failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        recorder.on_buffer(memoryview(b""), 7)
    assert len(recorder.all_unseen()) == 2


def test_what_came_before_a_change_is_written_before_it(recorder):
    recorder.reconfigure(config.Settings(threshold_us=7))
    assert recorder.store.take()[0] == ["records", "flush", "configure", "note"]
    recorder.unseen.append(UnseenInterval(1, 2, "before"))
    began = recorder.start_ns
    recorder.reset()
    names, calls = recorder.store.take()
    assert names == ["records", "flush", "reset", "note"]
    assert calls[2][1] == recorder.start_ns > began
    assert not recorder.unseen


def test_a_store_is_closed_once_after_all_is_decided(recorder):
    recorder.events.append((RECORD, ComputeBlock("a", 1, 2)))
    recorder.close()
    names, calls = recorder.store.take()
    assert names == ["records", "cycle", "close"]
    assert calls[1][-1] is True  # it is the last cycle
    recorder.close()
    assert "close" not in recorder.store.take()[0]


def test_a_thread_that_holds_the_lock_does_not_hold_up_the_end(recorder):
    held, done = threading.Event(), threading.Event()

    def hold():
        with recorder._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    began = monotonic()
    recorder.end_results()
    assert monotonic() - began < 30
    done.set()
    thread.join(10)
    assert recorder.store.take()[0] == ["close"]


def test_an_end_that_is_given_up_says_what_was_left_and_closes_the_store(recorder):
    recorder.events.extend([(RECORD, ComputeBlock("a", 1, 2))] * 3)
    held, done = threading.Event(), threading.Event()

    def hold():
        with recorder._lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    recorder.end_results()
    assert recorder.counters().unread_at_end == 3
    assert ["was given up" in unseen.reason for unseen in recorder.all_unseen()] == [True]
    recorder.give_up_end()
    recorder.session()  # asks nobody who still holds the lock
    assert recorder.store.take()[0].count("close") == 1
    done.set()
    thread.join(10)


def test_an_end_that_came_through_has_nothing_unread(recorder):
    recorder.events.append((RECORD, ComputeBlock("a", 1, 2)))
    recorder.close()
    recorder.give_up_end()  # as where a sink alone took too long
    assert recorder.counters().unread_at_end == 0
    assert recorder.all_unseen() == []


def test_what_an_owner_leaves_out_is_counted(recorder):
    recorder.belong_to(Owner(left_out=lambda: {"shed_blocks": 3}))
    recorder.store.answers["counters"] = Counters(seen=5, kept=5)
    assert recorder.snapshot().counters == Counters(seen=5, kept=5, shed_blocks=3)


# --- while another thread attaches ------------------------------------------------------------------------------------


@pytest.fixture
def attaching():
    recorder = Recorder(config.Settings(), Capture(), ScriptedStore)
    thread = threading.Thread(target=recorder.poke)
    thread.start()
    assert recorder.capture.inside.wait(10)
    recorder._last_poke = 0.0
    yield SimpleNamespace(recorder=recorder, gate=recorder.capture.gate)
    recorder.capture.gate.set()
    thread.join(10)


def test_a_block_waits_for_the_thread_that_attaches(attaching):
    recorder, marked = attaching.recorder, []

    def block():
        recorder.poke()
        marked.append(recorder.marker)

    recorder._patience_s = 30.0
    opener = threading.Thread(target=block)
    opener.start()
    opener.join(0.2)
    assert not marked
    attaching.gate.set()
    opener.join(20)
    assert marked == [mark]


def test_blocks_wait_no_longer_than_a_while_in_all(attaching):
    recorder = attaching.recorder
    recorder._patience_s = 0.05
    recorder.poke()
    assert recorder.marker is None
    assert recorder._patience_s == 0.0
    recorder._last_poke = 0.0
    began = monotonic()
    for _ in range(100):
        recorder._last_poke = 0.0
        recorder.poke()
    assert monotonic() - began < 20  # none of them waited; a hundred waits of a second would have
    assert recorder.armed
