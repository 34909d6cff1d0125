"""Runs a Python program in this interpreter as the interpreter itself would: argv, path, ``__main__``, exits, errors.

The rule of this file: what leaves the program leaves here as the same exception, so that exit codes, ``SystemExit``,
Ctrl-C and post-mortem tools work by the interpreter's own hands. Only the frames of gpusense below the program are
taken out of the traceback, when the interpreter asks for it to be printed.
"""

import builtins
import os
import stat
import sys
from collections.abc import Callable
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple


class Program(NamedTuple):
    """What to run: ``how`` is "script", "module" or "code"; ``target`` the path, the name or the source text."""

    how: str
    target: str
    arguments: tuple[str, ...] = ()


def problem(program: Program) -> str | None:
    """Why the program cannot even be opened, in the interpreter's words; None if it can."""
    if program.how != "script" or os.path.isdir(program.target):
        return None
    try:
        if not stat.S_ISREG(os.stat(program.target).st_mode):
            return None  # a pipe can be opened once
        with open(program.target, "rb"):
            return None
    except OSError as error:
        return f"can't open file {_absolute(program.target)!r}: [Errno {error.errno}] {error.strerror}"


def execute(program: Program) -> None:
    """Runs the program to its end. Its exceptions pass through, ``SystemExit`` included."""
    main = ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __package__=None)
    if sys.version_info < (3, 14):  # since then the module makes them when it is asked, unless it finds some
        vars(main).update(__annotations__={})
    sys.modules["__main__"] = main
    try:
        _RUNNERS[program.how](program, main)
    except BaseException:
        _hide_frames()
        raise


def _run_script(program: Program, main: ModuleType) -> None:
    import pkgutil

    path = program.target
    sys.argv[:] = [path, *program.arguments]
    if pkgutil.get_importer(path) is not None:  # a folder or an archive with a __main__.py
        _put_first(_absolute(path))
        _enter(_as_main, "__main__", False)
        return
    _put_first(os.path.dirname(os.path.realpath(path)))
    _enter(_run_file, _absolute(path), main)


def _run_file(path: str, main: ModuleType) -> tuple[CodeType, dict[str, Any]]:
    import importlib.machinery
    import io
    import pkgutil

    with io.open_code(path) as file:
        text = file.read()  # once: a pipe gives it once
    code = pkgutil.read_code(io.BytesIO(text))  # a compiled file, by its magic number
    loader: Any = importlib.machinery.SourcelessFileLoader if code else importlib.machinery.SourceFileLoader
    vars(main).update(__file__=path, __loader__=loader("__main__", path))
    if sys.version_info < (3, 15):
        vars(main).update(__cached__=None)
    if code is None:
        code = compile(text, path, "exec", dont_inherit=True)
    return code, vars(main)


def _run_module(program: Program, main: ModuleType) -> None:
    sys.argv[:] = ["-m", *program.arguments]
    _put_first(os.getcwd())
    _enter(_as_main, program.target, True)


def _as_main(name: str, alter_argv: bool) -> None:
    # What the interpreter itself calls for -m: it finds the module, fills the __main__ that is in sys.modules and
    # exits with the message everybody knows where there is no such module.
    import runpy

    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def _run_code(program: Program, main: ModuleType) -> None:
    sys.argv[:] = ["-c", *program.arguments]
    _put_first("")
    _enter(_compile_text, program.target, main)


def _compile_text(text: str, main: ModuleType) -> tuple[CodeType, dict[str, Any]]:
    import importlib.machinery

    vars(main).update(__loader__=importlib.machinery.BuiltinImporter)
    if sys.version_info >= (3, 13):  # since then tracebacks show lines of -c
        import linecache

        linecache.cache["<string>"] = (len(text), None, text.splitlines(keepends=True), "<string>")
    return compile(text, "<string>", "exec", dont_inherit=True), vars(main)


def _put_first(folder: str) -> None:
    """Replaces the entry the interpreter made for us, unless it makes none."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return
    sys.path[0] = folder


def _absolute(path: str) -> str:
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


_RUNNERS: dict[str, Callable[[Program, ModuleType], None]] = {
    "script": _run_script,
    "module": _run_module,
    "code": _run_code,
}


def _hide_frames() -> None:
    """Wraps the program's ``sys.excepthook`` once, so that what it gets begins at the program's first frame."""
    theirs = getattr(sys, "excepthook", sys.__excepthook__)

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = theirs
        error.__traceback__ = sys.last_traceback = trace = _beyond_ours(trace)
        try:
            theirs(kind, error, trace)
        except SystemExit:
            raise
        except BaseException as second:  # noqa: BLE001 - as the interpreter reports it, without the frame of this wrapper
            sys.stderr.write("Error in sys.excepthook:\n")
            second.__traceback__ = second.__traceback__ and second.__traceback__.tb_next
            sys.__excepthook__(type(second), second, second.__traceback__)
            sys.stderr.write("\nOriginal exception was:\n")
            sys.__excepthook__(kind, error, trace)

    sys.excepthook = hook


def _beyond_ours(trace: TracebackType | None) -> TracebackType | None:
    ours = trace
    while ours is not None and ours.tb_frame.f_code is not _enter.__code__:
        ours = ours.tb_next
    if ours is None:
        return trace
    rest = ours.tb_next
    while rest is not None and rest.tb_frame.f_code.co_filename == __file__:
        rest = rest.tb_next
    return rest


def _enter(load: Callable[..., Any], *arguments: Any) -> None:
    """The last frame of gpusense: everything beyond is the program's, or the interpreter's own way to it."""
    loaded = load(*arguments)
    if loaded is not None:
        exec(*loaded)
