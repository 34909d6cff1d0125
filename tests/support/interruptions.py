"""Interruptions of a call at each point where the interpreter looks for signals, one after the other.

That is where a function of the package begins, and after each call that it makes of a function in C. A profile function
stands in for the handler: what it raises comes out of the same place. The garbage collector is off meanwhile: what is
raised while it calls back is nobody's.
"""

import gc
import pathlib
import sys

import gpusense

PACKAGE = str(pathlib.Path(gpusense.__file__).parent)


class Alarm(Exception):
    """What a handler of the program raises."""


def interrupted(call, number, handler, *, spared=()):
    """Runs ``call`` and, at the point of that ``number``, ``handler``; whether there is such a point. What either
    raises passes. ``spared``: functions that begin without an interruption."""
    points = 0

    def look(frame, event, _):
        nonlocal points
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return
        if event == "c_return" or (event == "call" and frame.f_code.co_name not in spared):
            points += 1
            if points == number + 1:
                sys.setprofile(None)
                handler()

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return points > number


def raised_at(call, number, error=Alarm, **how):
    """As :func:`interrupted` with a handler that raises ``error``: None where there is no such point, else whether the
    exception reached the caller."""

    def handler():
        raise error

    try:
        return False if interrupted(call, number, handler, **how) else None
    except error:
        return True
