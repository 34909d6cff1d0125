"""Whose an exception is that comes out of gpusense's code."""

import _thread
import functools
import signal
import sys

import pytest

from gpusense._runtime.interrupts import from_the_start, is_the_programs


class Alarm(Exception):
    """None of gpusense's."""


class Handler:
    """A handler that is no function."""

    def __call__(self, number, frame):
        raise Alarm

    def method(self, *arguments):
        raise Alarm


def handler(number, frame):
    def closure():
        return frame

    raise Alarm


def caught(call):
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")
@pytest.mark.parametrize(
    "raises",
    [handler, Handler(), Handler().method, lambda *_: handler(*_), lambda number, frame=None: handler(0, frame)],
)
def test_what_a_signal_handler_raises_is_the_programs(raises):
    before = signal.signal(signal.SIGUSR1, raises)
    try:
        assert is_the_programs(caught(lambda: signal.raise_signal(signal.SIGUSR1)))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_a_trace_function_raises_is_the_programs():
    def traced():
        return 5

    def run():
        before = sys.gettrace()
        sys.settrace(handler_of_trace)
        try:
            traced()
        finally:
            sys.settrace(before)

    def handler_of_trace(frame, event, argument):
        raise Alarm

    assert is_the_programs(caught(run))


def test_what_is_called_and_raises_itself_is_not():
    class Rude:
        def __str__(self):
            raise Alarm

        def __len__(self):
            raise MemoryError

    assert not is_the_programs(caught(lambda: str(Rude())))
    assert not is_the_programs(caught(lambda: len(Rude())))
    assert not is_the_programs(caught(lambda: {}["missing"]))


def test_ctrl_c_and_the_end_of_a_greenlet_are_the_programs():
    class GreenletExit(BaseException):
        __module__ = "greenlet"

    assert is_the_programs(KeyboardInterrupt())
    assert is_the_programs(GreenletExit())
    assert not is_the_programs(SystemExit())


def test_a_class_that_nothing_in_the_package_raises_came_from_another_thread():
    here = {"__name__": "gpusense._tracing.block", "error": Alarm()}
    exec("def inside():\n    raise error", here)
    assert is_the_programs(caught(here["inside"]))
    for error in (MemoryError(), OSError(), ValueError()):
        here["error"] = error
        assert not is_the_programs(caught(here["inside"]))


class Now:
    """``-now``: a signal that is first looked for at the next function's first instruction."""

    __neg__ = staticmethod(functools.partial(_thread.interrupt_main, signal.SIGINT))


def long(add):
    """A ``try`` of ``add`` lines."""
    lines = [f"  seen.append({number})" for number in range(add)]
    source = "\n".join(["def long(_, seen):", " try:", *lines, " except KeyboardInterrupt:", "  return 'caught'"])
    names = {}
    exec(source, names)
    return names["long"]


#: In 3.10 a ``try`` of more than 255 instructions has one before it.
LENGTHS = [1, 3, 10, 200, 5_000] if sys.version_info >= (3, 11) else [1, 3, 10]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_function_catches_what_comes_at_its_first_instruction(length):
    now, seen = Now(), []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert from_the_start(long(length))(-now, seen) == "caught"
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen in ([], [0])  # 3.10 looks after the first call


def test_it_is_the_same_function_otherwise():
    seen = []
    function = from_the_start(long(100))
    assert function(None, seen) is None
    assert seen == list(range(100))

    @from_the_start
    def fails(error):
        try:
            error[0]
        except IndexError:
            return "inside"
        raise error[0]

    assert fails([]) == "inside"
    with pytest.raises(ZeroDivisionError):
        fails([ZeroDivisionError()])
