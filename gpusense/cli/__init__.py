"""The command ``gpusense``: dispatches to one module a verb, imported only when that verb is used.

A verb ``x`` is the module ``x.py`` here (``import_.py``, ``list_.py`` for ``import``, ``list``):
``add_arguments(parser)`` declares what it takes, ``main(arguments) -> int`` does it and gives the exit code. Only
``run`` takes its words as they are.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from ._arguments import Parser

#: verb → what it does, in the order a new user needs them. Only verbs whose module exists are listed.
VERBS = {
    "demo": "see gpusense at work, on your GPU or on a recorded H200 run",
    "run": "run a Python program and say what it did on the GPU",
    "attach": "do the same for a Python process that runs already",
    "report": "make text, a page, JSON, a trace or a flame graph of a session",
    "list": "list the runs that are kept",
    "diff": "compare two sessions, and fail where something grew",
    "top": "watch the GPUs in the terminal",
    "monitor": "print what the GPUs do, line by line or for Prometheus",
    "devices": "list the GPUs",
    "doctor": "say what works on this machine, what does not, and what to do",
    "export": "send a session to an OpenTelemetry endpoint",
    "import": "turn another tool's trace into a session",
    "vendor": "copy gpusense into another package",
    "completion": "print completions for bash, zsh or fish",
}


def main(argv: list[str] | None = None) -> int:
    """The exit code of ``gpusense ARGV…``; ``run`` leaves with whatever its program leaves with."""
    arguments = sys.argv[1:] if argv is None else argv
    name = arguments[0] if arguments else "--help"
    if name == "run":
        code: int = _imported_run().main(arguments[1:])
        return code
    _need_streams()
    if name not in _present() and name not in _ABOUT:
        return _refuse(name)
    return _do(name, arguments[1:])


def _imported_run() -> "ModuleType":
    """Without the garbage collector: modules make no garbage while they are loaded, and looking for some takes long."""
    import gc

    searched = gc.isenabled()
    gc.disable()
    try:
        from . import run
    finally:
        if searched:
            gc.enable()
    return run


_ABOUT = ("-h", "--help", "help", "-V", "--version")


def _need_streams() -> None:
    """Where a service manager or ``>&-`` closed standard output or error, what would be said there is said to nobody.

    Not for ``run``: its program finds them as it always does.
    """
    import os

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for the rest of the process


def _about(name: str) -> int:
    if name not in ("-V", "--version"):
        return _write(_help())
    from .. import __version__

    return _write(f"gpusense {__version__}\n")


def _do(name: str, argv: list[str]) -> int:
    if name == "help" and argv and argv[0] in _present():
        name, argv = argv[0], ["--help"]
    who = "gpusense" if name in _ABOUT else f"gpusense {name}"
    try:
        if name in _ABOUT:
            code = _about(name)
        else:
            arguments = parser_of(name).parse_args(argv)
            code = int(_verb(name).main(arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_went_away()
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"{who}: {where}{error.strerror or error}")
        _drop_what_is_left()
        return 2
    except Exception as error:
        from .._runtime.errors import GpuSenseError  # not needed for --help

        if not isinstance(error, GpuSenseError):
            raise
        _complain(f"{who}: {error}")
        return 2
    return code


def _verb(name: str) -> "ModuleType":
    from importlib import import_module

    return import_module(f".{_module(name)}", __name__)


def parser_of(name: str) -> "Parser":
    """What the verb ``name`` takes; the reference in the documentation is made from it."""
    from ._arguments import Parser

    verb = _verb(name)
    if name == "run":
        found: Parser = verb.parser()
        return found
    description = (verb.__doc__ or "").partition("\n")[0].replace("``", "")
    parser = Parser(prog=f"gpusense {name}", description=description)
    verb.add_arguments(parser)
    return parser


def _reader_went_away() -> int:
    """Ends as a program that SIGPIPE ended (``| head``)."""
    _drop_what_is_left()
    return 141


def _drop_what_is_left() -> None:
    """Of what standard output did not take, so that there is no second error when the interpreter flushes."""
    import os

    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _module(verb: str) -> str:
    return f"{verb}_" if verb in ("import", "list") else verb


def _present() -> tuple[str, ...]:
    from importlib.util import find_spec

    return tuple(verb for verb in VERBS if find_spec(f"{__name__}.{_module(verb)}") is not None)


def _help() -> str:
    rows = "".join(f"  {verb:<10} {VERBS[verb]}\n" for verb in _present())
    return (
        "usage: gpusense VERB …\n\n"
        "See what a Python process does on the GPU.\n\n"
        f"{rows}\n"
        "gpusense VERB --help says more. python -m gpusense is the same command.\n"
    )


def _refuse(name: str) -> int:
    import os
    from difflib import get_close_matches

    near = get_close_matches(name, _present(), n=1)
    if name.endswith(".py") or os.path.isfile(name):
        near = [f"gpusense run {name}"]
    hint = f"; did you mean {near[0]}?" if near else "; gpusense --help lists the verbs"
    from .._runtime.text import terminal

    sys.stderr.write(terminal(f"gpusense: there is no verb {name!r}{hint}\n"))
    return 2


def _complain(text: str) -> None:
    """Of names in it that a terminal would obey nothing is left."""
    from .._runtime.text import terminal

    sys.stderr.write(terminal(text) + "\n")


def _write(text: str) -> int:
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    return 0
