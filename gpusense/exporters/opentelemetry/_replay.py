"""A recorded session as spans with its original times, through the official exporter, on the calling thread."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext, TraceFlags

from ..._records.device_identity import device_of
from ..._records.records import BlockRecord, Record
from ...session import Session
from . import _spans as reasons
from ._attributes import SPANNED, Redact, clean, nanoseconds, text_limit
from ._budget import Placed
from ._inside import OfSession, only_place
from ._otlp import Otlp
from ._parents import Blocks, Ids, Place, from_traceparent
from ._resource import build as build_resource
from ._resource import detected, program
from ._resource import scope as build_scope
from ._spans import SpanBuilder
from ._worker import without_instrumentation

BATCH = 512
#: Requests in a row of which nothing is taken, after which no more is tried: each may take its whole timeout.
PATIENCE = 3


class Replayed(NamedTuple):
    """``sent``: spans the endpoint took, the session's own among them; ``refused``: spans it did not take, of those
    that were tried; ``skipped``: records without a valid time, by reason; ``only_counted``: operations below the
    threshold, which have no times; ``why``: spans were refused, last; ``warned``: what the endpoint said though it took
    all, last.
    """

    sent: int
    refused: int
    skipped: dict[str, int]
    only_counted: int
    trace_id: str
    why: str = ""
    warned: str = ""


def replay(
    session: Session,
    endpoint: str | None,
    *,
    redact: Redact | None = None,
    timeout_s: float | None = None,
    environ: Mapping[str, str] = os.environ,
    resource: Resource | None = None,
    summed_spans: bool = True,
) -> Replayed:
    """Sends every record of ``session`` below one span for the session. ``resource``: what :func:`prepare` returned."""
    otlp = Otlp("traces", endpoint, timeout_s)
    otlp.prepare()  # without the package nothing can be sent: not the endpoint has refused it then
    source = _Source(session, redact, environ, resource, summed_spans)
    try:
        with without_instrumentation():
            total, refused, given_up = _send(source, otlp)
    finally:
        otlp.close()
    counted = sum(row.count for row in session.aggregates)
    trace_id = format(source.root.trace_id, "032x")
    why = otlp.why + ("; no more was tried" if given_up else "") if refused else ""
    return Replayed(total - refused, refused, dict(source.skipped), counted, trace_id, why, otlp.warned)


def _send(source: "_Source", otlp: Otlp) -> tuple[int, int, bool]:
    """Spans there were until nobody took any, those of them that were refused, and whether there were more."""
    refused = total = in_vain = 0
    spans = source.spans()
    while batch := list(islice(spans, BATCH)):
        failed = otlp.export_spans(batch)
        total, refused = total + len(batch), refused + failed
        in_vain = in_vain + 1 if failed == len(batch) else 0
        if refused == total or in_vain == PATIENCE:  # nobody is there: the rest would wait for nothing
            return total, refused, next(spans, None) is not None
    return total, refused, False


def prepare() -> Resource:
    """Imports what exporting needs, the session's and the live one's, and asks the SDK's detectors for the resource.

    When the interpreter ends it is late for both: detectors find no thread pool to run in, and imports run ``eval``,
    after which the interpreter forgets that Ctrl-C ended the program.
    """
    resource = detected()
    for _ in _Source(Session(), None, {}, resource).spans():
        pass
    for signal in ("traces", "metrics"):
        otlp = Otlp(signal, "http://localhost:4318")
        otlp.make()
        otlp.close()
    return resource


class _Source:
    """Ids are digests of what identifies the session, so that a second export gives the same ones."""

    def __init__(
        self,
        session: Session,
        redact: Redact | None,
        environ: Mapping[str, str],
        resource: Resource | None,
        summed_spans: bool = True,
    ) -> None:
        self._session = session
        self._remote = from_traceparent(environ)
        self._drawn = 0
        meta = session.meta
        self._seed = repr([meta.get(key) for key in ("pid", "start_ns", "rank", "version")]).encode()
        trace_id = self._remote.trace_id if self._remote is not None else self._digest(b"trace", 16)
        self.root = SpanContext(trace_id, self._digest(b"root", 8), False, TraceFlags(TraceFlags.SAMPLED))
        self.skipped: Counter[str] = Counter()
        self._ids = Ids(self._next_id, lambda: trace_id, lambda *_: (True, None))
        base = _of_another(resource or detected(), meta)
        self._resource = build_resource(base, meta, session.devices, redact)
        #: Of a merged session: by the first element of every path of a process.
        self._processes = {
            one.get("root"): build_resource(base, {**meta, **one}, session.devices, redact)
            for one in meta.get("processes") or ()
            if isinstance(one, dict) and isinstance(one.get("root"), str)
        }
        self._scopes: dict[tuple[str, Any, Any], Any] = {}
        self._redact = redact
        self._known: set[int | None] = {record.block_id for record in session.blocks}
        self._blocks = Blocks(lambda: None, lambda: self.root)
        self._builder = SpanBuilder(self._blocks, self._scope, lambda _start: self.root, redact, text_limit(environ))
        self._builder.begin(self._resource)
        self._inside = OfSession(session)
        self._summed = summed_spans
        self._all_on = only_place(session)

    def spans(self) -> Iterator[Any]:
        for block in self._session.blocks:
            self._blocks.put(block.block_id, self._place(block))
        times = [
            time for record in self._session.records for time in (record.start_ns, record.end_ns) if nanoseconds(time)
        ]
        for record in self._session.records:
            if type(record) in SPANNED:
                yield from self._spans(record)
        self._builder.belongs_to(self._resource)
        meta = self._session.meta
        start = nanoseconds(meta.get("program_start_ns")) or nanoseconds(meta.get("start_ns")) or min(times, default=1)
        start = min([start, *filter(nanoseconds, (block.start_ns for block in self._session.blocks))])
        end = nanoseconds(meta.get("program_end_ns")) or nanoseconds(meta.get("end_ns")) or start
        end = max([end, *times])
        facts, failed = _facts(self._session), bool(meta.get("exit_code"))
        yield self._builder.root("gpusense.session", self.root, self._remote, facts, start, end, failed)

    def _spans(self, record: Record) -> Iterator[Any]:
        if self._processes:
            self._builder.belongs_to(self._processes.get(record.path[0] if record.path else "", self._resource))
        found = self._builder.locate(record)
        if not isinstance(found, Placed):
            self.skipped[found] += 1
            return
        try:
            if type(record) is not BlockRecord:
                yield self._builder.build(found, self._ids)
                return
            found = found._replace(inside=self._inside.of(record.block_id))
            yield self._builder.build(found, self._ids)
            ids = self._ids._replace(span_id=lambda: self._digest(b"summed%d" % record.block_id, 8))
            threshold = self._session.meta.get("threshold_ns")
            summed = self._builder.summed(found, threshold, ids, self._all_on) if self._summed else None
            if summed is not None:
                yield summed
        except Exception:  # noqa: BLE001 - one odd record of a file must not cost the others
            self.skipped[reasons.INVALID] += 1

    def _place(self, record: BlockRecord) -> Place:
        parent = self._context(record.parent_id) if record.parent_id in self._known else self.root
        return Place(self._context(record.block_id), parent)

    def _context(self, block_id: int | None) -> SpanContext:
        span_id = self._digest(b"block%d" % (block_id or 0), 8)
        return SpanContext(self.root.trace_id, span_id, False, self.root.trace_flags)

    def _next_id(self) -> int:
        self._drawn += 1
        return self._digest(b"span%d" % self._drawn, 8)

    def _digest(self, what: bytes, size: int) -> int:
        return int.from_bytes(hashlib.blake2b(what, key=self._seed[:64], digest_size=size).digest(), "big") or 1

    def _scope(self, backend: str, device: Any, context: Any) -> Any:
        known = self._scopes.get((backend, device, context))
        if known is None:
            info = device_of(self._session.devices, backend, device)
            threshold = self._session.meta.get("threshold_ns")
            known = build_scope(backend, device, context, info, threshold, self._redact)
            self._scopes[backend, device, context] = known
        return known


def _of_another(found: Resource, meta: Mapping[str, Any]) -> Resource:
    """What detectors found, without what is true of this process alone."""
    if meta.get("pid") == os.getpid():
        return found
    kept = {name: value for name, value in found.attributes.items() if not name.startswith("process.")}
    return Resource(kept, found.schema_url)


def _facts(session: Session) -> dict[str, Any]:
    meta, counters = session.meta, session.counters
    found = {
        "gpusense.records.seen": counters.seen,
        "gpusense.records.kept": counters.kept,
        "process.pid": meta.get("pid"),
        "process.command": program(meta),
        "process.exit.code": meta.get("exit_code"),
    }
    cleaned = {name: clean(value) for name, value in found.items()}
    return {name: value for name, value in cleaned.items() if value is not None}
