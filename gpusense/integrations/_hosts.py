"""What the integrations share: replacing a host's attributes, the one instrumentation of a host, and blocks."""

import sys
from typing import Any, Generic, TypeVar

from .. import get_tracer
from .._records.records import Unavailable
from .._runtime.patches import MARK as MARK
from .._runtime.patches import Patches as Patches
from .._tracing.select import control

T = TypeVar("T")


class Installed(Generic[T]):
    """The one instrumentation of a host in this process: ``now``, or None while the host is as it was."""

    def __init__(self) -> None:
        self.now: T | None = None

    def take(self) -> T | None:
        """Gives it to whoever undoes it; from now on there is none."""
        now, self.now = self.now, None
        return now


def open_block(name: str, attributes: Any = None, parent: Any = None) -> Any:
    """A block of whatever tracer is active by now."""
    return (control.waiting or get_tracer()).open_scope(name, attributes, None, parent)


def close_block(block: Any, error: BaseException | None = None) -> None:
    """Ends it, on the thread that opened it."""
    block.__exit__(None if error is None else type(error), error, None)


def unless_recording(host: str) -> Unavailable | None:
    """Why there is nothing to instrument ``host`` for; None where there is. Decides whether this process records."""
    tracer = get_tracer()
    return None if tracer.active else Unavailable(host, str(getattr(tracer, "reason", "") or "nothing is recorded"))


def imported(host: str, last: str) -> bool:
    """Whether the program has imported ``host`` to its end, whose last name is ``last``."""
    module: Any = sys.modules.get(host)
    return module is not None and not getattr(module.__spec__, "_initializing", False) and hasattr(module, last)
