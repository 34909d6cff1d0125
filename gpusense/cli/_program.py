"""Runs a Python program in this interpreter as the interpreter itself would: argv, path, ``__main__``, exits, errors.
Any other command is started as it is.

The rule of this file: what leaves the program leaves here as the same exception, so that exit codes, ``SystemExit``,
Ctrl-C and post-mortem tools work by the interpreter's own hands. Only the frames of gpusense below the program are
taken out of the traceback, when the interpreter asks for it to be printed.
"""

import builtins
import os
import re
import stat
import sys
from collections.abc import Callable
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple


class Program(NamedTuple):
    """What to run: ``how`` is "script", "module", "code", "stdin" or "command"; ``target`` the path, the name or the
    source text. A command is no Python, or another one's, and is started as it is, under the name that was ``typed``.
    """

    how: str
    target: str
    arguments: tuple[str, ...] = ()
    typed: str = ""


class Signalled(SystemExit):
    """A command was ended by the signal ``number``."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


_FLAGS, _WITH_VALUE = frozenset("bBdEiIOPsSuvx"), ("-X", "-W", "--check-hash-based-pycs")


def is_python_option(word: str) -> bool:
    """Whether ``python`` takes ``word`` before the program, and gpusense does not."""
    return word[:2] in _WITH_VALUE or word in _WITH_VALUE or (len(word) > 1 and _FLAGS.issuperset(word[1:]))


def python_options(words: list[str]) -> tuple[list[str], list[str]]:
    """The interpreter's own options at the beginning, and what follows."""
    at = 0
    while at < len(words) and words[at].startswith("-") and is_python_option(words[at]):
        at += 2 if words[at] in _WITH_VALUE else 1
    return words[:at], words[at:]


def program_of(words: list[str]) -> Program | None:
    """What a command line names; None where it names nothing."""
    if not words:
        return None
    word, *arguments = words
    how = {"-m": "module", "-c": "code"}.get(word[:2])
    if how is not None:
        if len(word) > 2:
            return Program(how, word[2:], tuple(arguments))
        return Program(how, arguments[0], tuple(arguments[1:])) if arguments else None
    return Program("stdin", word, tuple(arguments)) if word == "-" else _file(word, tuple(arguments))


def _file(word: str, arguments: tuple[str, ...]) -> Program:
    """A file by its path, as for ``python``; else a command on PATH."""
    path = word
    if not os.path.dirname(word) and not _can_be_a_program(word):
        path = on_path(word) or word
    how = "script" if path.endswith((".py", ".pyw", ".pyc", ".pyz")) or not _is_foreign(path) else "command"
    return Program(how, path, arguments, word)


def _can_be_a_program(path: str) -> bool:
    return os.path.isfile(path) or any(os.path.exists(os.path.join(path, f"__main__.py{more}")) for more in ("", "c"))


def on_path(word: str) -> str | None:
    """The file that a shell would run."""
    import shutil

    return shutil.which(word)


def _is_foreign(path: str) -> bool:
    """Whether a file is a program that this interpreter does not run: a binary, or a script of another one."""
    try:
        if os.path.isdir(path) or not os.access(path, os.X_OK):
            return False
        with open(path, "rb") as file:
            head = file.read(512)
    except OSError:
        return False
    if head[:2] != b"#!":
        return head[:4] in (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe") or head[:2] == b"MZ"
    return not _names_this_python(os.fsdecode(head))


_LONG_PATH, _PYTHON = r"#!/bin/sh\n'''exec' \"?([^\"\n]+?)\"? \"\$0\"", r"python[\d.]*(?:\.exe)?"


def _names_this_python(head: str) -> bool:
    """By the first line of a script, or by the second where installers found a path too long for the first."""
    found = re.match(_LONG_PATH, head)
    words = [found[1]] if found else head.partition("\n")[0][2:].split()
    if words[:1] and os.path.basename(words[0]) == "env":
        words = [on_path(words[1]) or "", *words[2:]] if len(words) > 1 else []
    if len(words) != 1 or not re.fullmatch(_PYTHON, os.path.basename(words[0])):
        return False
    return os.path.dirname(os.path.abspath(words[0])) == os.path.dirname(os.path.abspath(sys.executable))


def problem(program: Program) -> str | None:
    """Why the program cannot even be opened, in the interpreter's words, and where else it was looked for; None if it
    can."""
    if program.how not in ("script", "command") or os.path.isdir(program.target):
        return None
    try:
        if not stat.S_ISREG(os.stat(program.target).st_mode):
            return None  # a pipe can be opened once
        with open(program.target, "rb"):
            return None
    except OSError as error:
        found = f"can't open file {_absolute(program.target)!r}: [Errno {error.errno}] {error.strerror}"
        named = not re.search(r"[./]", program.target) and isinstance(error, FileNotFoundError)
        return f"{found}; no command {program.target!r} is on the PATH" if named else found


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


def _run_stdin(program: Program, main: ModuleType) -> None:
    sys.argv[:] = ["-", *program.arguments]
    _put_first("")
    _enter(_read_stdin, main)


def _read_stdin(main: ModuleType) -> tuple[CodeType, dict[str, Any]]:
    import importlib.machinery

    vars(main).update(__loader__=importlib.machinery.BuiltinImporter, __file__="<stdin>")
    if sys.version_info < (3, 15):
        vars(main).update(__cached__=None)
    text = sys.stdin.buffer.read() if sys.stdin is not None else b""
    return compile(text, "<stdin>", "exec", dont_inherit=True), vars(main)


def _run_command(program: Program, main: ModuleType) -> None:
    """Signals are the command's, which has this terminal, too; this process ends as it does."""
    import signal
    import subprocess

    child = subprocess.Popen([program.typed, *program.arguments], executable=_absolute(program.target))
    signal.signal(signal.SIGINT, lambda *_: None)
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: child.send_signal(number))
    code = child.wait()
    if code < 0:
        raise Signalled(-code)
    raise SystemExit(code)


_RUNNERS: dict[str, Callable[[Program, ModuleType], None]] = {
    "script": _run_script,
    "module": _run_module,
    "code": _run_code,
    "stdin": _run_stdin,
    "command": _run_command,
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
