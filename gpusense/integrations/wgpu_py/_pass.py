"""What the wrappers note of a pass until its record can be made. Plain data: one object a pass, made in every frame."""

from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ._device import DeviceTimer


class Pass:
    """One timed pass or copy on its way from the encoder to its record. :func:`begun` makes them."""

    __slots__ = (
        "at",
        "block",
        "bytes",
        "code",
        "dispatches",
        "grid",
        "kind",
        "label_source",
        "name",
        "own",
        "slot",
        "submitted_ns",
        "unnamed",
        "writes",
        "written",
    )

    at: int  # where in ``code``: an instruction, whose line is looked up when it is needed
    block: Any
    bytes: int | None  # of a copy
    code: CodeType | None  # that began a pass without a label
    dispatches: int
    grid: tuple[Any, ...] | None  # of the last dispatch, as the program gave it
    kind: str  # "compute", "render", or the copy's method
    label_source: str
    name: str
    own: tuple[Any, int, int] | None  # the program's own query set and indices
    slot: int  # first of our two queries, -1 when ``own`` is set
    submitted_ns: int
    unnamed: bool  # the first pipeline may still name it
    writes: Any  # pointer to the C structure that says which queries
    written: bool  # ``writes`` has reached the pass


def begun(kind: str, name: str, slot: int, block: Any) -> Pass:
    """A new pass. Cheaper than a constructor, which is called through C."""
    made = Pass()
    made.kind = kind
    made.name = name
    made.slot = slot
    made.block = block
    made.label_source = "pass"
    made.dispatches = made.at = 0
    made.written = made.unnamed = False
    made.bytes = made.code = made.grid = made.own = made.writes = None
    return made


class Passes(list[Pass]):
    """The passes of one encoder, later of its command buffer; gives the queries back if it dies unsubmitted."""

    __slots__ = ("device", "own", "submitted_ns", "timer")

    device: Any  # lives until they are read
    own: bool  # some have the program's own queries
    submitted_ns: int  # 0: not yet
    timer: "DeviceTimer"

    def __del__(self) -> None:
        if not self.submitted_ns and self:
            self.timer.events.append((self.timer.give_up, (list(self), "its commands were never submitted")))


class Timed(NamedTuple):
    """Passes that ended at the latest at ``seen_ns``, and their ticks."""

    passes: list[Pass]
    begins: list[int]
    ends: list[int]
    seen_ns: int
