"""``gpusense run --syscalls``: the same command again under strace, and its trace as a source of records.

strace runs beside the program (``-D``), so that the program keeps this process, its terminal, signals and exit code.
It sees what gpusense does, too: calls of gpusense's own threads, and those before the program's first line, are left
out and counted.
"""

import os
import sys
from time import time_ns
from typing import Any

from .._records.protocols import OnRecords, RecordSource
from .._records.records import Syscall
from .._runtime import package, threads
from .._runtime.errors import GpuSenseError
from ._call_places import CallPlaces
from .importers.strace import Parser

#: Tells the command under strace where the trace is written; taken out of the environment at once.
VARIABLE = "GPUSENSE_STRACE_FILE"
_BLOCK = 1 << 20


def restart(argv: list[str], calls: str) -> None:
    """Becomes ``strace … gpusense run ARGV…``; returns where that has happened already.

    Raises :class:`GpuSenseError` with a sentence where strace is missing or may not trace.
    """
    if VARIABLE in os.environ:
        return
    import shutil
    import subprocess
    import tempfile

    strace = shutil.which("strace")
    if strace is None:
        where = "install it (apt install strace)" if sys.platform == "linux" else f"there is none for {sys.platform}"
        raise GpuSenseError(f"--syscalls needs strace: {where}")
    _try(strace, calls)
    handle, path = tempfile.mkstemp(prefix="gpusense-", suffix=".strace")
    os.close(handle)
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    program = [sys.executable, *flags, "-m", package.NAME, "run", *argv]
    os.environ[VARIABLE] = path
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(strace, [strace, *_options(calls), "-o", path, "--", *program])


def _options(calls: str) -> list[str]:
    return ["-D", "-f", "-qq", "-ttt", "-T", "-s", "0", "-e", f"trace={calls}", "-e", "signal=none"]


def _try(strace: str, calls: str) -> None:
    """Containers often forbid ptrace, and a name may be none of a system call: better said before the program runs."""
    import subprocess

    probe = [strace, "-f", "-qq", "-o", os.devnull, "-e", f"trace={calls}", sys.executable, "-I", "-S", "-c", ""]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise GpuSenseError(f"--syscalls: strace cannot trace here: {reason[-1].removeprefix('strace: ')}")


class Trace:
    """What strace writes, handed on whenever results are read: a :class:`RecordSource`."""

    name = "strace"

    def __init__(self, path: str, since_ns: int) -> None:
        """Of the file ``path``, which it deletes, the calls that begin at ``since_ns`` or later."""
        self._on_records: OnRecords | None = None
        self._pid = os.getpid()
        self._parser = Parser(self._pid)
        self._since_ns = since_ns
        self._own = self._before = 0  # calls that are left out
        self.places = CallPlaces()
        self._rest = b""
        self._read = 0
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.unlink(path)  # both sides have it open; nothing stays behind however the program ends

    def start(self, on_records: OnRecords) -> None:
        """``on_records`` gets what is read from now on."""
        self._on_records = on_records

    def stop(self) -> None:
        """Reads no more."""
        self._on_records = None

    def flush(self, timeout_s: float) -> bool:
        """What strace has written until now. Not until the end: each read here is one more call that it writes."""
        on_records = self._on_records
        if on_records is None or os.getpid() != self._pid:
            return True
        size = os.fstat(self._file).st_size
        ours = f"{self._file}, "
        while self._read < size:
            block = os.pread(self._file, min(_BLOCK, size - self._read), self._read)
            if not block:
                break
            self._read += len(block)
            *lines, self._rest = (self._rest + block).split(b"\n")
            calls = self._parser.feed(line.decode("utf-8", "replace") for line in lines)
            on_records(self.places.placed([call for call in calls if self._is_the_programs(call, ours)]))
        return True

    def _is_the_programs(self, call: Syscall, ours: str) -> bool:
        if call.start_ns < self._since_ns:
            self._before += 1
            return False
        own = threads.is_own(call.thread or 0, call.start_ns)
        if own or (call.name == "pread64" and (call.detail or "").startswith(ours)):
            self._own += 1
            return False
        return True

    def status(self) -> dict[str, Any]:
        """Calls of gpusense, and those before the program's first line, are ``calls`` of which nothing is kept."""
        return {**self._parser.counters(), "own": self._own, "before_the_program": self._before}


def attach(tracer: Any) -> None:
    """Adds the trace to ``tracer`` where this is the command under strace."""
    path = os.environ.pop(VARIABLE, None)
    if path is not None:
        trace = Trace(path, time_ns())
        source: RecordSource = trace
        tracer.add_source(source)
        tracer.add_block_listener(trace.places)
