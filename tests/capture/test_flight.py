"""When the flight recorder writes: why, how often, and what it says of the rest. With a clock that is set by hand."""

import pytest
from support.cupti import T0

from gpusense._capture import flight
from gpusense._capture.flight import Flight
from gpusense._records.records import BlockRecord, ComputeBlock
from gpusense._runtime.config import Settings

MS = 1_000_000


class Clock:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def woken():
    return []


@pytest.fixture
def recorder(clock, woken):
    """Knows that a request takes 5 ms, and a model in it 3 ms."""
    made = Flight(Settings(flight_recorder=10.0), lambda: woken.append(True), clock)
    made.look([block(5 * MS) for _ in range(200)] + [block(3 * MS, path=("request", "model")) for _ in range(200)])
    assert not made.due(at_once=True)
    return made


def block(length_ns, path=("request",), error=None, number=9):
    return BlockRecord(path[-1], number, None, path, T0, T0 + length_ns, 5, None, error)


def written(recorder, clock):
    """Why there is a dump now; lets the time go by until it would be written."""
    clock.now += flight.SETTLE_S
    if not recorder.due():
        return None
    return [reason.text for reason in recorder.take(T0 + 10**12).reasons]


def test_a_block_beyond_its_usual_length_is_written_when_its_work_has_come(recorder, clock):
    recorder.look([ComputeBlock("sum", T0, T0 + 10**10), block(50 * MS)])
    assert not recorder.due()
    (text,) = written(recorder, clock)
    assert text.startswith("block “request” took 50.0 ms; its p99 is 5.24 ms, over ")
    assert text.endswith(", over 201 passes")
    assert not recorder.due(at_once=True)


@pytest.mark.parametrize("length_ns", [5 * MS, 10 * MS])
def test_up_to_the_factor_nothing_is_unusual(recorder, clock, length_ns):
    recorder.look([block(length_ns)])
    assert written(recorder, clock) is None


def test_the_factor_is_a_setting(recorder, clock):
    recorder.configure(Settings(flight_recorder=10.0, flight_factor=20.0))
    recorder.look([block(100 * MS)])
    assert written(recorder, clock) is None
    recorder.look([block(110 * MS)])
    assert written(recorder, clock)


def test_a_block_that_is_short_or_seldom_is_none(clock):
    made = Flight(Settings(flight_recorder=10.0), lambda: None, clock)
    made.look([block(10_000) for _ in range(200)] + [block(900_000)])
    made.look([block(MS, ("seldom",)) for _ in range(99)] + [block(10**10, ("seldom",))])
    assert written(made, clock) is None


def test_a_block_inside_counts_where_it_matters_to_the_one_around(recorder, clock):
    recorder.look([block(5 * MS, ("request", "model")), block(8 * MS)])
    recorder.look([block(6 * MS + 100, ("request", "model"))] * 3)  # too long by 3 ms, of 5
    assert written(recorder, clock) is None
    recorder.look([block(7 * MS, ("request", "model"))])
    (text,) = written(recorder, clock)
    assert text.startswith("block “request › model” took 7.00 ms")


def test_an_error_that_ends_a_block_is_one(recorder, clock):
    recorder.look([block(4 * MS, ("seldom",), "RuntimeError")])
    assert written(recorder, clock) == ["RuntimeError ended block “seldom” after 4.00 ms"]


@pytest.mark.parametrize("error", ["StopIteration", "GeneratorExit", "CancelledError", "SystemExit"])
def test_how_things_end_that_are_as_they_should_be_is_none(recorder, clock, error):
    recorder.look([block(4 * MS, error=error)])
    assert written(recorder, clock) is None


def test_one_a_minute_unasked_and_what_is_passed_over_is_told(recorder, clock):
    recorder.look([block(50 * MS)])
    assert written(recorder, clock)
    recorder.look([block(80 * MS), block(400 * MS), block(60 * MS), block(MS, error="ValueError")])
    assert written(recorder, clock) is None
    told = recorder.status()
    assert told["passed_over"] == 4
    assert told["passed_over_worst"] == "ValueError ended block “request” after 1.00 ms"
    assert told["next_after_s"] == pytest.approx(flight.EVERY_S - flight.SETTLE_S)
    clock.now += flight.EVERY_S
    recorder.look([block(90 * MS)])
    clock.now += flight.SETTLE_S
    taken = recorder.take(T0 + 10**12)
    assert (len(taken.reasons), taken.passed_over, taken.worst.error) == (1, 4, "ValueError")
    assert recorder.status()["passed_over"] == 0
    assert recorder.status()["passed_over_worst"] is None


def test_what_asks_for_itself_is_always_obeyed(recorder, clock, woken):
    for _ in range(3):
        recorder.look([block(500 * MS)])
        recorder.ask()
        assert recorder.due()
        assert recorder.take(T0 + 10**12).reasons[0].text == "the signal SIGUSR2 came"
        assert recorder.take(T0 + 10**12, asked=True).reasons[0].text == "the program asked for it"
    assert woken == [True] * 3


def test_a_block_that_was_written_asks_again_where_it_is_slower(recorder, clock):
    recorder.look([block(80 * MS)])
    assert written(recorder, clock)
    clock.now += flight.EVERY_S
    recorder.look([block(79 * MS)])
    assert written(recorder, clock) is None
    recorder.look([block(81 * MS)])
    assert written(recorder, clock)
    clock.now += flight.SINKS_S
    recorder.look([block(40 * MS)])
    assert written(recorder, clock) is None
    recorder.look([block(41 * MS)])
    assert written(recorder, clock)


def test_the_same_error_asks_once_an_hour(recorder, clock):
    for error, wanted in (("ValueError", True), ("ValueError", False), ("KeyError", True)):
        recorder.look([block(MS, error=error)])
        assert bool(written(recorder, clock)) is wanted
        clock.now += flight.EVERY_S
    clock.now += flight.SAME_ERROR_S
    recorder.look([block(MS, error="ValueError")])
    assert written(recorder, clock)


def test_of_very_many_reasons_the_worst_stay_and_what_is_worst_comes_first(recorder, clock):
    recorder.look([block(5 * MS) for _ in range(8_000)])  # so many that what follows is not usual
    recorder.look([block(length * MS) for length in range(11, 11 + 2 * flight.MOST_REASONS)])
    recorder.look([block(MS, error="ValueError")])
    clock.now += flight.SETTLE_S
    reasons = recorder.take(T0 + 10**12).reasons
    assert len(reasons) == flight.MOST_REASONS
    assert reasons[0].error == "ValueError"
    longest = 10 + 2 * flight.MOST_REASONS
    assert [reason.duration_ns // MS for reason in reasons[1:4]] == [longest, longest - 1, longest - 2]


def test_what_came_after_the_last_reading_is_for_the_next_dump(recorder, clock):
    recorder.look([block(50 * MS), block(60 * MS)])
    clock.now += flight.SETTLE_S
    assert recorder.newest_ns == T0 + 60 * MS
    taken = recorder.take(T0 + 55 * MS)
    assert [reason.duration_ns for reason in taken.reasons] == [50 * MS]
    assert recorder.status()["passed_over"] == 1  # that minute has begun
    recorder.ask()
    assert [reason.trigger for reason in recorder.take(T0 + 10**12).reasons] == ["signal"]


def test_a_reset_forgets_what_is_usual_and_what_waits(recorder, clock):
    recorder.look([block(50 * MS)])
    recorder.reset()
    recorder.look([block(500 * MS)])
    assert written(recorder, clock) is None


def test_status_tells_what_became_of_it(recorder):
    recorder.done("/tmp/a")
    recorder.done("", "/tmp/b: No space left on device")
    told = recorder.status()
    assert (told["written"], told["last"]) == (1, "/tmp/a")
    assert (told["failed"], told["failure"]) == (1, "/tmp/b: No space left on device")
    assert (told["seconds"], told["signal"]) == (10.0, "off")


def test_what_is_remembered_has_a_bound(recorder, clock, monkeypatch):
    monkeypatch.setattr(flight, "MOST_REMEMBERED", 5)
    monkeypatch.setattr(flight, "EVERY_S", 0.0)
    for number in range(20):
        recorder.look([block(MS, error=f"Error{number}")])
        assert written(recorder, clock)
    assert len(recorder._errors) == 5
