"""Blocks and switches from before anything could be marked. Pure."""

from .boundaries import CLOSE, GONE, LEAVE, OPEN, SWITCH, Boundary


class Unmarked:
    """What is left of them when marking begins: the blocks that are open, and where each thread that runs tasks is."""

    __slots__ = ("_opens", "_threads", "crossed")

    def __init__(self) -> None:
        self.crossed = False  # whether there were any since somebody set this to False
        self._opens: dict[int, Boundary] = {}
        self._threads: dict[int, Boundary] = {}  # thread → its last switch

    def add(self, event: Boundary) -> bool:
        """False for the end of a block whose start is not known."""
        self.crossed = True
        if event.op == OPEN:
            self._opens[event.block_id] = event
            return True
        if event.op == CLOSE:
            opened = self._opens.pop(event.block_id, None)
            self._closed(event, opened.parent_id if opened is not None else None)
            return opened is not None
        if event.op == GONE:
            self._threads.pop(event.thread, None)
            if any(opened.thread == event.thread for opened in self._opens.values()):
                self._threads[event.thread] = event
            return True
        self._goes_on(event)
        return True

    def _goes_on(self, event: Boundary) -> None:
        """A thread that is left to order with nothing open is as one of which nothing is known."""
        lost = event.op == SWITCH and event.parent_id is None
        left = event.op == LEAVE and not event.parent_id
        if lost or (left and all(opened.thread != event.thread for opened in self._opens.values())):
            self._threads.pop(event.thread, None)
        else:
            self._threads[event.thread] = event

    def _closed(self, event: Boundary, parent: int | None) -> None:
        """Nothing may lead back into a block that has ended."""
        if event.parent_id is not None:
            self._threads[event.thread] = event._replace(op=SWITCH, block_id=0)
            return
        last = self._threads.get(event.thread)
        if last is not None and last.op == LEAVE and last.parent_id == event.block_id:
            self._goes_on(last._replace(parent_id=parent or 0))

    def drain(self) -> list[Boundary]:
        """In the order in which they happened; then it is empty."""
        events = sorted((*self._opens.values(), *self._threads.values()), key=lambda event: event.before_ns)
        self._opens.clear()
        self._threads.clear()
        return events
