"""A run as one list of spans, in order: what the devices did, what the host did beside it, and when a device was empty.

The rows behind a timeline, for whoever draws or counts them.
"""

from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from .._records.device_identity import card
from .._records.records import BlockRecord, ComputeBlock, Path, Syscall
from ..analysis.facts import Facts
from ..session import Session
from .divisions import divisions_of


class Span(NamedTuple):
    """Something with a beginning and an end. ``kind`` says what: "kernel", "transfer", "memset" and "sync" (a wait of
    the host), whoever launched them; "block", "compute" and "syscall" of the host; "empty", when a device had nothing
    to do.

    Times are nanoseconds since the Unix epoch; what is not known is None.
    """

    start_ns: int
    end_ns: int
    kind: str
    name: str  # of "empty" the cause: "launch", "synchronising", "host", "new", "allocation", "graph", "none", "unseen"
    device: int | None = None
    stream: int | None = None
    thread: int | None = None  # of the host
    path: Path = ()  # names of the blocks around it, outermost first; of a block its own, too
    bytes: int = 0  # that copies and memsets move
    backend: str = ""

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


def spans(session: Session) -> list[Span]:
    """All of them by their start, those around others first."""
    found = [*_work(session), *_host(session), *_empty(session)]
    found.sort(key=itemgetter(1), reverse=True)
    found.sort(key=itemgetter(0))
    return found


def _work(session: Session) -> Iterator[Span]:
    work = session.work
    for start, end, number, path, size in zip(work.start, work.end, work.kind, work.path, work.size, strict=True):
        of = work.kinds[number]
        yield Span(
            start, end, of.kind, of.name, of.device, of.stream, of.thread, work.paths[path], size, of.backend
        )  # fmt: skip


def _host(session: Session) -> Iterator[Span]:
    for record in session.records:
        if isinstance(record, BlockRecord):
            yield Span(
                record.start_ns, record.end_ns, "block", record.name, thread=record.thread, path=record.path
            )  # fmt: skip
        elif isinstance(record, ComputeBlock | Syscall):
            kind = "compute" if isinstance(record, ComputeBlock) else "syscall"
            yield Span(
                *(record.start_ns, record.end_ns, kind, record.name),
                thread=record.thread,
                path=record.path,
                backend=record.backend,
            )


def _empty(session: Session) -> Iterator[Span]:
    divisions, told = divisions_of(session), set()
    for backend, device in session.once(Facts).walks:
        if card(backend, device) not in told:
            told.add(card(backend, device))
            for gap in divisions.gaps((backend, device)):
                yield Span(gap.start_ns, gap.end_ns, "empty", gap.cause, device, backend=backend)
