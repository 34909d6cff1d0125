"""``gpusense run``: a program, unchanged, then about twenty lines on stderr saying what it did on the GPU."""

import argparse
import atexit
import os
import sys
import time
from typing import Any

from .. import integrations
from .._runtime import package, process
from .._runtime.config import from_environment
from .._runtime.errors import GpuSenseError
from .._tracing import run as runs
from . import _outputs, _runs, _witness
from ._arguments import Parser, add_output, add_settings, chosen, passes, seconds, share
from ._ending import Ending, Spans
from ._program import Signalled, execute, is_python_option, problem, program_of, python_options
from ._proton import share_cupti

_EPILOG = """examples:
  gpusense run train.py --epochs 3
  gpusense run -o run.gpusense -m package.train --epochs 3
  gpusense run -o page.html torchrun --nproc-per-node 2 train.py
  gpusense run -c "import torch; torch.ones(9, device='cuda').sum()"
"""
_SYSCALLS = "ioctl,read,write,futex"


def main(argv: list[str]) -> int:
    """Runs the program; leaves with its exit code, its exception or its signal."""
    known = parser()
    own, rest = _split(argv, known.with_value())
    options, rest = python_options(rest)
    settings = known.parse_args(own)
    program = program_of(rest)
    if settings.passes is not None and settings.block is None:
        known.error("--passes needs --block NAME")
    if program is None:
        _say(known.format_usage() + "gpusense run: name what to run: a script, a command, -m MODULE, -c CODE or -\n")
        return 2
    if options:
        _with_python_options(options, [*own, *rest])
    reason = problem(program)
    if reason:
        meant = known.meant(own, rest[0])
        _say(f"gpusense run: {reason}{f'. Did you mean {meant}?' if meant else ''}\n")
        return 2
    try:
        if settings.syscalls is not None:
            from ._syscalls import restart

            restart(argv, settings.syscalls)
        ending = _start(settings, rest)
    except GpuSenseError as error:
        _say(f"gpusense run: {error}\n")
        return 2
    if ending is None:
        execute(program)
        return 0
    atexit.register(ending.at_exit)
    process.end_on_signals(ending.at_exit)
    process.end_on_os_exit(ending.on_os_exit)
    try:
        ending.program_begins()
        execute(program)
    except Signalled as error:
        ending.exit_code = _exit_code(error)
        ending.at_exit()
        process.end_by(error.number)
        raise
    except BaseException as error:
        ending.exit_code, ending.interrupted = _exit_code(error), isinstance(error, KeyboardInterrupt)
        raise
    return 0


def _with_python_options(options: list[str], rest: list[str]) -> None:
    """Becomes the interpreter with its own options, such as ``-u``; does not return."""
    import subprocess

    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    os.execv(sys.executable, [sys.executable, *flags, *options, "-m", package.NAME, "run", *rest])


def _say(text: str) -> None:
    """On standard error; where it is closed or full, the program runs all the same."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(text)
    except (OSError, ValueError):
        pass


def _exit_code(error: BaseException) -> int:
    if not isinstance(error, SystemExit):
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal. One is made for each option that is declared, and the usual one loads ``shutil``."""

    def __init__(self, prog: str) -> None:
        try:
            columns = int(os.environ.get("COLUMNS") or os.get_terminal_size(1).columns)
        except (ValueError, OSError):
            columns = 0
        super().__init__(prog, width=(columns or 80) - 2)


def parser() -> Parser:
    """What ``gpusense run`` takes, without the program and its arguments."""
    parser = Parser(
        prog="gpusense run",
        usage="gpusense run [options] PROGRAM [arguments of the program]\n\n"
        "PROGRAM is a script, a command, -m MODULE, -c CODE, or - for standard input.",
        description="Run a program unchanged, with the processes it starts,\nand say on stderr what it did on the GPU.",
        epilog=_EPILOG,
        formatter_class=_Formatter,
    )
    add = parser.add_argument
    add_output(parser, "program")
    add("--no-children", action="store_true", help="do not record the processes that the program starts")
    add_settings(parser)
    add("--delay", type=seconds, metavar="S", help="begin to record S seconds after the program has begun")
    add("--duration", type=seconds, metavar="S", help="stop recording after S seconds")
    add("--block", metavar="NAME", help="record what the GPU does in passes of this block only")
    add("--passes", type=passes, metavar="A..B", help="with --block: which passes, counted from 1, e.g. 10..20 (1)")
    add(
        "--overhead",
        dest="overhead_budget",
        type=share,
        metavar="2%",
        help="record only as much as slows the program by no more than this share of its time",
    )
    add("--otlp", metavar="URL", help="also send spans to this OpenTelemetry endpoint")
    add(
        "--syscalls",
        nargs="?",
        const=_SYSCALLS,
        metavar="A,B",
        help=f"also record system calls, through strace ({_SYSCALLS}; others by --syscalls=A,B)",
    )
    add("--no-integrations", action="store_true", help="open no blocks for torch, CuPy and JAX")
    add("--wgpu-copies", action="store_true", default=None, help="also time wgpu's copies on the GPU and its clears")
    add(
        "--live",
        action="store_true",
        help="read records while the program runs, not afterwards: with --otlp, send spans meanwhile",
    )
    return parser


def _split(argv: list[str], with_value: set[str]) -> tuple[list[str], list[str]]:
    """Our options, and from the program or the interpreter's options on everything else, untouched."""
    at = 0
    while at < len(argv):
        word = argv[at]
        if word == "--":
            return argv[:at], argv[at + 1 :]
        if not word.startswith("-") or word == "-" or word[:2] in ("-m", "-c") or is_python_option(word):
            break
        at += 2 if word in with_value else 1
    return argv[:at], argv[at:]


def _start(settings: argparse.Namespace, command: list[str]) -> Ending | None:
    """The recording that has begun; None where it was switched off or could not begin, which is said and not fatal."""
    if os.environ.get("GPUSENSE", "").strip().lower() == "off":
        _say("gpusense: Nothing is recorded, because GPUSENSE=off.\n")
        return None
    for sentence in from_environment()[1]:
        _say(f"gpusense: {sentence}\n")
    form = _outputs.report_form(settings.output)
    output = None if settings.output is None else _outputs.filled(settings.output)
    if output is not None and form is not None and not os.path.isdir(os.path.dirname(os.path.abspath(output))):
        raise GpuSenseError(_outputs.no_folder(output))
    path = output if form is None else None  # of the session that the user has asked for
    # Spans leave while the program runs, unless a file is kept: then they leave from the file, exact, at the end.
    live = settings.live or (settings.otlp is not None and path is None)
    folder = _runs.make(keep=path is None and not settings.no_keep and os.environ.get("GPUSENSE_KEEP", "1") != "0")
    ending = Ending(folder, path, output if form is not None else None, form, settings)
    if folder is not None:
        _witness.call(ending.afterwards)  # before most is loaded: of what both processes have, each page is copied
    try:
        _record(ending, settings, command, live)
        return ending
    except GpuSenseError:
        ending.give_up()
        raise
    except Exception as error:  # noqa: BLE001 - the program runs whatever becomes of us
        ending.give_up()
        _say(f"gpusense: Nothing is recorded: {type(error).__name__}: {error}\n")
        return None


def _record(ending: Ending, settings: argparse.Namespace, command: list[str], live: bool) -> None:
    """Without the garbage collector: what is loaded by now is no garbage, and the program's need not look at it again
    and again."""
    import gc

    searched = gc.isenabled()
    gc.disable()
    try:
        _begin(ending, settings, command, live)
        gc.freeze()
    finally:
        if searched:
            gc.enable()


def _begin(ending: Ending, settings: argparse.Namespace, command: list[str], live: bool) -> None:
    from .._tracing.select import control

    found = chosen(settings)
    _load_what_ending_needs(settings.quiet)
    file = None if live else ending.session_file()
    if file is not None and file == ending.path:
        moved = _outputs.set_aside(file)
        if moved is not None:
            _say(f"gpusense: The session that was in {settings.output} is now {moved}.\n")
    recording = control.start_session(mode="live" if file is None else "file", path=file, **found)
    ending.recording = recording
    recording.tracer.recorder.facts["run"] = about = _about(settings, command)
    if settings.backends is None or "nvml" in settings.backends:
        recording.tracer.recorder.begun = _watch_the_device
    if settings.syscalls is not None:
        from ._syscalls import attach

        attach(recording.tracer)
    if not settings.no_integrations:
        integrations.watch(recording.tracer)
    ending.spans = Spans.of(settings.otlp, live)
    if ending.folder is not None:
        _follow(ending, settings, found, about)
    ending.shared = share_cupti()


def _watch_the_device() -> None:
    """Clocks, memory and other processes on the device are part of the answer: two looks a second, from CUDA on."""
    from .. import monitor

    monitor.start_background(interval=0.5, process_interval=1.0)


def _about(settings: argparse.Namespace, command: list[str]) -> dict[str, Any]:
    """What is run, for people."""
    import shlex

    shown = command[:1] if settings.no_arguments and command[:1] not in (["-m"], ["-c"]) else command
    shown = shown[:2] if settings.no_arguments else shown
    text = shlex.join(shown)
    return {"command": text if len(text) < 2000 else f"{text[:2000]}…", "label": settings.label, "start_s": time.time()}


def _follow(ending: Ending, settings: argparse.Namespace, chosen: dict[str, Any], about: dict[str, Any]) -> None:
    """The processes that the program starts are recorded as it is, and capture begins as CUDA does."""
    from ..backends.cupti import injection

    assert ending.folder is not None
    before, after = ending.children_files()
    watcher = "" if settings.no_integrations else integrations.__name__
    run = runs.Run(package.NAME, runs.version(), before, after, chosen, watcher, about, not settings.no_children)
    run.write(ending.folder.path)
    ending.not_followed = injection.install(
        ending.folder.path, runs.script(os.getpid() if settings.no_children else None)
    )


def _load_what_ending_needs(quiet: bool) -> None:
    """Importing at exit would come too late: the program may have changed folders, limits or imports by then. Where no
    GPU can be used only what says so is loaded; blocks, if the program has some, are told by what is imported then."""
    if quiet:
        return
    from .._tracing.select import possible
    from ..report import unused  # noqa: F401
    from ..session import _names  # noqa: F401

    if possible() is None:
        from ..report import text
        from ..session import Session, _merge, _replay  # noqa: F401

        text.summary(Session(), path="")
