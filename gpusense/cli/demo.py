"""Show gpusense at work: a small program of its own on this machine's GPU, else a recorded H200 run."""

import argparse
import os
import sys
from typing import Any

from ..report.forms import chosen

#: Recorded on an NVIDIA H200 by ``benchmarks/gpu/demo.py`` and shipped; a vendored copy may leave it out.
RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_demo.gpusense")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="PATH", help="keep the session in this file")
    parser.add_argument("--recorded", action="store_true", help="show the recorded run even where there is a GPU")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="how long the program runs (20)")


def main(arguments: argparse.Namespace) -> int:
    """0; 1 where there is neither a GPU nor the recorded run."""
    chosen(arguments.output, "session", ("session",))
    session, reason = (None, "--recorded is set") if arguments.recorded else _live(arguments.output, arguments.steps)
    if session is not None:
        _say("This is this machine: a small program ran on its GPU just now.")
        _answer(session, arguments.output)
        return 0
    if not os.path.exists(RECORDED):
        sys.stderr.write(f"gpusense demo: nothing to show: {reason}; and this copy comes without the recorded run\n")
        return 1
    from .._capi import demangle
    from ..session import load

    demangle.bring_in()
    _say(f"This is a recorded run of a training on an NVIDIA H200, not a run on this machine: {reason}.")
    path = arguments.output or RECORDED
    if arguments.output:
        import shutil

        shutil.copyfile(RECORDED, path)
    _answer(load(RECORDED), path)
    return 0


def _live(path: str | None, steps: int) -> tuple[Any, str]:
    """The session of the program on this machine's GPU, or None and why not."""
    from .. import cuda, trace
    from .._runtime.errors import GpuSenseError
    from .._tracing.select import control, possible
    from ..cuda import _workload

    absent = possible()
    if absent is not None:
        return None, absent.reason
    try:
        cuda.Device(0)  # CUDA is live from here on, so that capture begins with the session
    except GpuSenseError as error:
        return None, str(error)
    recording = control.start_session(mode="file" if path else "live", path=path, trace_all=True)
    try:
        _workload.run(trace, steps)
    except GpuSenseError as error:
        return None, str(error)
    finally:
        session = recording.finish()
    return session, ""


def _say(text: str) -> None:
    from ..report.style import style_of

    sys.stdout.write(style_of(sys.stdout).fit(text) + "\n")


def _answer(session: Any, path: str | None) -> None:
    from ..report import text
    from ..report.style import style_of

    kept = path is not None and path != RECORDED  # which is not the user's to work with
    keep = None if kept else "gpusense demo -o demo.gpusense keeps the session for gpusense report"
    for line in text.summary(session, style_of(sys.stdout), path, next_step=keep):
        sys.stdout.write(line + "\n")
