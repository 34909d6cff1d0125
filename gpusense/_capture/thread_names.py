"""Python's names of the program's threads: by them people look for one, and not by its number.

Pure reading of what ``threading`` keeps: once a cycle, and as a thread opens its first block. Another thread that comes
and goes between two cycles stays a number.
"""

import sys
from time import time_ns
from typing import Any

from .._runtime import threads

_MOST = 4096


class ThreadNames:
    """Threads that were seen: their numbers in Python and in the system, and their names. Of very many those that run,
    and the newest of the others: a server may have a thread for each request."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int | None, str], None] = {}

    def look(self, only: int | None = None) -> None:
        """Takes note of the threads that there are now, or of that with the number ``only``. From any thread."""
        active = getattr(sys.modules.get("threading"), "_active", None)
        if active is None:
            return
        for number, thread in list(active.items()) if only is None else [(only, active.get(only))]:
            native, name = getattr(thread, "native_id", None), str(getattr(thread, "name", ""))
            key = (number, native, name)
            if thread is None or key in self._seen or threads.is_own(native or 0, time_ns()):
                continue
            if len(self._seen) >= _MOST:
                gone = next((old for old in list(self._seen) if active.get(old[0]) is None), None)
                if gone is None:
                    return
                self._seen.pop(gone, None)
            self._seen[key] = None

    def rows(self) -> list[dict[str, Any]]:
        """For ``meta``, in the order in which they were seen."""
        return [{"thread": number, "native_id": native, "name": name} for number, native, name in list(self._seen)]
