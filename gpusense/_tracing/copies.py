"""How blocks of one copy of gpusense come into the session of another that records this process.

A library may carry a copy of its own, of another version. Copies meet in the interpreter's dict, under a key with the
version of what they say there, and hand each other builtins and functions:

- ``copies``: name of a copy → ``look()``, which it wants called when ``receivers`` has changed;
- ``receivers``: a dict for each copy that somebody asked to record: its ``name``; its ``rank``, 0 for a whole process
  (a run), else 1; ``block(name, attributes)``, which gives ``enter()`` and ``leave(name of the exception or None,
  attributes)`` of one block there; and ``compute(name, start_ns, end_ns, elements, attributes)`` for CPU work.

A block may be entered again while it is open. These functions raise nothing but what the program throws into them.
Nobody holds a lock: who looks, looks again after acting on it. A copy that ``GPUSENSE=off`` keeps off never comes here.
"""

import sys
from collections.abc import Callable
from typing import Any, TypedDict

from .._capi.interpreter import interpreter_dict
from .._records.records import Unavailable
from .._runtime import log, package
from .._runtime.interrupts import is_the_programs

VERSION = 1  # of what is said here
KEY = f"gpusense/blocks/{VERSION}"
WHOLE_PROCESS, ASKED = 0, 1

Enter = Callable[[], object]
Leave = Callable[["str | None", Any], object]

#: Modules that every copy has once it has been used; the second since it says anything.
_DECIDED, _SPEAKS = "._tracing.select", "._tracing.copies"


class Receiver(TypedDict):
    """A copy that records, as the others see it."""

    name: str
    rank: int
    block: Callable[[Any, Any], tuple[Enter, Leave]]
    compute: Callable[[Any, int, int, "int | None", Any], object]


class Copies:
    """This copy among the others. Any thread may call."""

    def __init__(self) -> None:
        self._place: dict[str, Any] | None = None
        self._speaker: Any = None
        self._ours: Receiver | None = None

    def _met(self) -> dict[str, Any]:
        if self._place is None:
            place = interpreter_dict()
            nobody: dict[str, Any] = {"copies": {}, "receivers": []}
            self._place = nobody if isinstance(place, Unavailable) else place.setdefault(KEY, nobody)
        return self._place

    def now(self, tracer: Any, rank: int | None) -> None:
        """Blocks of this copy are those of ``tracer`` from now on, which is told by ``go_to(receiver or None)`` where
        they go besides; with ``rank`` it gets those of other copies. ``tracer`` None: this copy is off."""
        before, self._speaker = self._speaker, tracer
        if before is not None and before is not tracer:
            before.go_to(None)
        if tracer is not None:
            self._met()["copies"][package.NAME] = self.look
        elif self._place is None:
            return
        else:
            self._place["copies"].pop(package.NAME, None)
        ours, self._ours = self._ours, None if tracer is None or rank is None else _as_receiver(tracer, rank)
        receivers: list[Receiver] = self._met()["receivers"]
        if self._ours is not None:
            receivers.append(self._ours)
        if ours in receivers:
            receivers.remove(ours)
        if ours is not None or self._ours is not None:
            self._tell()
        else:
            self.look()

    def end(self) -> None:
        """No block of other copies comes any more."""
        self.now(self._speaker, None)

    def is_in_session(self) -> bool:
        """Whether some copy records the whole process."""
        return any(one["rank"] == WHOLE_PROCESS for one in list(self._met()["receivers"]))

    def look(self) -> None:
        """Where this copy's blocks go may have changed."""
        receivers: list[Receiver] = self._met()["receivers"]
        while True:
            speaker, ours, best = self._speaker, self._ours, _best(receivers)
            if speaker is None:
                return
            speaker.go_to(None if best is None or not _is_for(best, ours) else best)
            if speaker is self._speaker and ours is self._ours and best is _best(receivers):
                return

    def _tell(self) -> None:
        for look in list(self._met()["copies"].values()):
            try:
                look()
            except Exception as error:  # noqa: PERF203 - another copy, maybe of another version
                if is_the_programs(error):
                    raise
                log.exception(f"look {look!r}", "another copy of gpusense could not be told which copy records")


def _place(receiver: Receiver) -> tuple[int, bool]:
    """A run comes first, then what the application has installed, then copies inside other packages."""
    return receiver["rank"], "." in receiver["name"]


def _best(receivers: list[Receiver]) -> Receiver | None:
    return min(list(receivers), key=_place, default=None)


def _is_for(best: Receiver, ours: Receiver | None) -> bool:
    """Whether blocks of this copy, which records as ``ours`` or not at all, go to ``best``."""
    return best["name"] != package.NAME and (ours is None or _place(best) < _place(ours))


def _as_receiver(tracer: Any, rank: int) -> Receiver:
    from .block import Block

    def block(name: Any, attributes: Any) -> tuple[Enter, Leave]:
        made = Block(tracer, name, attributes, None)  # not trace(): two copies may send to each other for a moment

        def leave(error: "str | None", attributes: Any) -> None:
            made.attributes = attributes
            made.__exit__(None if error is None else type(error, (Exception,), {}))

        return made.__enter__, leave

    def compute(name: Any, start_ns: int, end_ns: int, elements: "int | None", attributes: Any) -> None:
        tracer.record_compute_block(name, start_ns, end_ns, elements, attributes=attributes)

    return {"name": package.NAME, "rank": rank, "block": block, "compute": compute}


class Forwarded:
    """What makes a block one that another copy has, too: before the block's own class among the bases."""

    __slots__ = ()

    attributes: Any
    _enter: Enter
    _leave: Leave

    def __enter__(self) -> Any:
        entered = super().__enter__()  # type: ignore[misc]
        try:
            self._enter()
        except BaseException:  # the program's: ``with`` will not leave the block
            self.__exit__(None)
            raise
        return entered

    def __exit__(self, *raised: Any) -> None:  # noqa: PYI036 - the class has a name
        kind = raised[0]
        try:
            self._leave(None if kind is None else kind.__name__, self.attributes)
        finally:
            super().__exit__(*raised)  # type: ignore[misc]


def silent() -> list[str]:
    """The copies in this process whose blocks cannot come to another's session, a sentence each."""
    found = []
    for module in sorted(sys.modules.copy()):
        name = module.removesuffix(_DECIDED)
        root = sys.modules.get(name) if name != module else None
        speaks = getattr(sys.modules.get(name + _SPEAKS), "VERSION", 0)
        if hasattr(root, "get_tracer") and speaks != VERSION:
            age = "old" if speaks < VERSION else "new"
            version = getattr(root, "__version__", "")
            found.append(f"not recorded: blocks of {name}, whose gpusense {version} is too {age} to hand them over")
    return found
