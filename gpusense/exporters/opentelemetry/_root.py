"""The span of the whole process, for programs that nobody traces from outside."""

import os
import time
from collections.abc import Callable

from opentelemetry.trace import SpanContext

from ._attributes import Attributes, clean
from ._parents import enter, leave


class RootSpan:
    """Current in the thread that starts it, and the parent of device work that was launched under no span.

    ``end(exit_code)`` sends it; a context manager ends it by itself. A forked child never sends the parent's.
    """

    def __init__(
        self,
        name: str,
        context: SpanContext | None,
        parent: SpanContext | None,
        attributes: Attributes,
        finish: Callable[["RootSpan"], None],
    ) -> None:
        self.name = name
        self.context = context
        self.parent = parent
        self.attributes = {key: clean(value) for key, value in attributes.items() if clean(value) is not None}
        self.start_ns = time.time_ns()
        self.end_ns: int | None = None
        self.failed = False
        self._finish = finish
        self._pid = os.getpid()
        self._place = enter(context, parent) if context is not None else None

    def end(self, exit_code: int | None = None) -> None:
        """Ends and queues the span; the exit code becomes ``process.exit.code`` and, if not 0, an error status."""
        if self.end_ns is not None or os.getpid() != self._pid:
            return
        self.end_ns = max(time.time_ns(), self.start_ns)
        if exit_code is not None:
            self.attributes["process.exit.code"] = exit_code
            self.failed = exit_code != 0
        if self._place is not None:
            leave(self._place)
            self._finish(self)

    def __enter__(self) -> "RootSpan":  # noqa: PYI034 - typing.Self is of 3.11
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        if kind is not None:
            self.failed = True
            self.attributes["error.type"] = kind.__name__
        self.end()
