"""What the wrappers note of a pass until it is submitted. Plain data: one list a pass, made in every frame."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._device import DeviceTimer

#: One timed pass or copy on its way from the encoder to its submission, by the places below. A list because making one
#: and looking into it costs a fraction of what an object with attributes costs, and there may be thousands a second.
Pass = list[Any]

KIND = 0  # "compute", "render", or the copy's method
SOURCE = 1  # of the name: "pass", "encoder", "pipeline", "entry_point" or "line"
NAME = 2  # None: its first pipeline may still name it; "": nothing does
DISPATCHES = 3
GRID = 4  # of the last dispatch, as the program gave it
BYTES = 5  # of a copy
BLOCK = 6
CODE = 7  # that began a pass without a label
AT = 8  # where in it: an instruction, whose line is looked up when it is needed
LENT = 9  # our two queries; None where the program's own are used
WRITES = 10  # pointer to the C structure that says which queries; None once it has reached the pass
OWN = 11  # the program's own query set and indices

#: Two neighbouring queries: the number of the first, pointers to the C structure that says so, and to the descriptor of
#: a compute pass without a label that has them.
Lent = tuple[int, Any, Any, Any]

POINTER = {"compute": 1, "render": 2}  # in :data:`Lent`
PLAIN = 3


def begun(kind: str, name: str, lent: Lent | None, block: Any) -> Pass:
    """A new copy; :mod:`._passes` spells out its passes, which come too often for one call more."""
    return [kind, "pass", name, 0, None, None, block, None, 0, lent, None, None]


class Passes(list[Pass]):
    """The passes of one encoder, later of its command buffer; gives the queries back if it dies unsubmitted."""

    __slots__ = ("device", "lend", "own", "submitted_ns", "timer")

    device: Any  # lives until they are read
    lend: Any  # of the timer
    own: bool  # some have the program's own queries
    submitted_ns: int  # 0: not yet
    timer: "DeviceTimer"

    def __del__(self) -> None:
        if not self.submitted_ns and self:
            lent = [timed[LENT] for timed in self]
            self.timer.events.append((self.timer.give_up, (lent, "its commands were never submitted")))
