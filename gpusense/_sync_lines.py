"""From which line of the program a synchronising call was made: whose file it is, its text, whose record it is.

Pure; never ctypes. ``backends/_cupti_lines.py`` notes the frames, the pipeline joins lines and records.
"""

import os
import sys
from collections.abc import Iterable
from itertools import islice
from typing import Any

PLACES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep

MAX_CALLS = 65_536  # more than can be made between two readings of the records
MAX_FILES = 10_000


class Files:
    """Which files are the program's, and how they are written in a report. Used with the GIL; each answer is kept.

    A file is the program's unless it lies in a folder of installed packages, in the standard library or in gpusense.
    ``packages`` are installed packages that count as the program's all the same.
    """

    def __init__(self, packages: Iterable[str] = ()) -> None:
        self._packages = tuple(packages)
        self._programs: dict[str, bool] = {}
        self._texts: dict[str, str] = {}

    def is_programs(self, file: str) -> bool:
        known = self._programs.get(file)
        if known is None:
            if len(self._programs) >= MAX_FILES:
                self._programs.clear()
            known = self._programs[file] = self._ask(file)
        return known

    def _ask(self, file: str) -> bool:
        if file.startswith(("<frozen", _OWN)):
            return False
        for place in PLACES:
            _, found, inside = file.rpartition(place)
            if found:
                return inside.partition(os.sep)[0].removesuffix(".py") in self._packages
        return not file.startswith(_STANDARD)

    def text(self, file: str) -> str:
        """The path from the folder it was imported from: ``train.py``, ``package/module.py``, ``<stdin>``."""
        known = self._texts.get(file)
        if known is None:
            if len(self._texts) >= MAX_FILES:
                self._texts.clear()
            known = self._texts[file] = _shortened(file)
        return known


def _shortened(file: str) -> str:
    if not os.path.isabs(file):
        return file
    for place in PLACES:
        if place in file:
            return file.rpartition(place)[2]
    folders = [os.path.join(folder, "") for folder in sys.path if isinstance(folder, str) and os.path.isabs(folder)]
    inside = max((folder for folder in folders if file.startswith(folder)), key=len, default="")
    return file[len(inside) :] if inside else os.path.basename(file)


def line_text(code: Any, line: int, files: Files) -> str:
    """``train.py:31 step``: file, line, and the function's name (qualified from Python 3.11 on)."""
    if not 0 < line < 1 << 31:  # made by a compiler's transformation: it belongs to no line
        line = code.co_firstlineno
    name = getattr(code, "co_qualname", code.co_name)
    return f"{files.text(code.co_filename)}:{line} {name}"


class Lines:
    """Lines of the newest calls by correlation id, for the records that come after them. One thread at a time.

    None is taken out, because a call may leave two records, a copy and a wait.
    """

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[int, str] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, rows: Iterable[tuple[int, str]]) -> None:
        """(correlation id, line) of calls, in the order in which they were made."""
        self._lines.update(rows)
        excess = len(self._lines) - MAX_CALLS
        if excess > 0:
            for key in list(islice(self._lines, excess + MAX_CALLS // 8)):
                del self._lines[key]

    def of(self, correlations: Iterable[int]) -> list[str | None]:
        """The line of each call; None for one that was not noted."""
        return list(map(self._lines.get, correlations))
