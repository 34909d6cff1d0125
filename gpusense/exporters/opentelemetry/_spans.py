"""From records to the SDK's span data: parents, links, status, times; one instance a pipeline, used by its worker
alone.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

from ..._records.records import KINDS, BlockRecord, GpuCollective, Record
from ._attributes import (
    MAX_TEXT,
    Attributes,
    Redact,
    Shapes,
    apply_redaction,
    clean,
    nanoseconds,
    operation,
    prefixed,
    shortened,
)
from ._budget import Group, Placed
from ._inside import Inside
from ._parents import MAX_LINKS, Blocks, Ids, Place, child

#: Reasons why a record has no span, as they stand in ``gpusense.drop.reason``.
INVALID, UNSAMPLED, NO_PARENT, NO_PROVIDER = "invalid", "unsampled", "no_parent", "no_provider"
MAX_DEVICES = 256
#: The name of a block's span for what has none.
SUMMED = "short work, summed"
#: Of the scope's attributes, what each span says as well.
ON_SPANS = ("gpu.backend", "gpu.device.index", "hw.name")
SCOPE_OF_ANOTHER = "scope"  # a block that stands for the application's own span: nothing is lost


class Origin:
    """The parent that the span of an operation will have, and its links where it is ambiguous."""

    __slots__ = ("candidates", "key", "links", "parent", "root")

    def __init__(self, parent: SpanContext | None, links: tuple[Any, ...] = (), candidates: int = 0) -> None:
        self.parent = parent
        self.links = links
        self.candidates = candidates
        self.key = (
            parent.span_id if parent is not None else 0,
            links and tuple(link.context.span_id for link in links),
        )


class SpanBuilder:
    """``scope_of(backend, device, context)`` gives scopes, ``default(start_ns)`` the parent of work under no span."""

    def __init__(
        self,
        blocks: Blocks,
        scope_of: Callable[[str, Any, Any], Any],
        default: Callable[[int], SpanContext | None],
        redact: Redact | None = None,
        max_text: int = MAX_TEXT,
    ) -> None:
        self._blocks = blocks
        self._scope_of = scope_of
        self._default = default
        self._redact = redact
        self._max_text = max_text
        self._shapes = Shapes(redact, max_text)
        self._resource: Any = None
        self._devices: dict[tuple[str, Any], Attributes] = {}
        self._origins: dict[int, Origin | str] = {}
        self.lost_attributes = 0

    def begin(self, resource: Any) -> None:
        """A new batch: what blocks stand for is looked up anew."""
        if resource is not self._resource:  # there may be more devices
            self._resource = resource
            self._devices.clear()
            self._shapes.forget()
        self._origins.clear()

    def belongs_to(self, resource: Any) -> None:
        """What is built next is of another process; of its devices the same is known."""
        self._resource = resource

    def locate(self, record: Record) -> Placed | str:
        """The record with its parent, or the reason why it gets no span. Times become integers here."""
        if (
            type(record) is GpuCollective and record.device_start_ns and record.device_end_ns
        ):  # else its launch is shown
            record = record._replace(start_ns=record.device_start_ns, end_ns=record.device_end_ns)
        first, last = record.start_ns, record.end_ns
        start, end = nanoseconds(first), nanoseconds(last)
        if start is None or end is None or end < start or not _countable(record):
            return INVALID
        if start is not first or end is not last:
            record = record._replace(start_ns=start, end_ns=end)  # type: ignore[call-arg]
        if type(record) is BlockRecord:
            return self._locate_block(record)
        candidates = getattr(record, "ambiguous", ())
        origin = self._among(candidates, record) if candidates else self._origin(record)
        return origin if isinstance(origin, str) else Placed(record, origin, origin.key)

    def _locate_block(self, record: BlockRecord) -> Placed | str:
        place = self._blocks.place(record.block_id)
        if place is None:
            return NO_PARENT
        if place.scope:
            return SCOPE_OF_ANOTHER
        return Placed(record, place, place.context.span_id) if place.context is not None else UNSAMPLED

    def scope(self, record: Record) -> list[Placed]:
        """A block that stands for a span of the application, which may have a span for short work below it."""
        place = self._blocks.place(record.block_id)
        return [Placed(record, place, 0)] if place is not None and place.block is not None else []

    def _origin(self, record: Record) -> Origin | str:
        block_id = record.block_id
        known = self._origins.get(block_id) if block_id is not None else None
        if known is not None:
            return known
        place = self._blocks.place(block_id)
        if place is None:
            parent = self._default(record.start_ns)
            if parent is None:
                return NO_PARENT
            # A remote parent's flag is not the last word: the sampler is asked when the span is made.
            return Origin(parent) if parent.trace_flags.sampled or parent.is_remote else UNSAMPLED
        found = Origin(place.context) if place.context is not None else UNSAMPLED
        if block_id is not None:
            self._origins[block_id] = found
        return found

    def _among(self, candidates: tuple[int, ...], record: Record) -> Origin | str:
        """One span linked to every candidate: below the block around all of them, else the process's root, else in a
        trace of its own. Never below one candidate alone, which would claim what launch order cannot decide.
        """
        places = [place for place in map(self._blocks.place, candidates) if place is not None]
        contexts = {place.context.span_id: place.context for place in places if place.context is not None}
        if not contexts:
            return UNSAMPLED if places else NO_PARENT
        links = tuple(Link(context) for context in list(contexts.values())[:MAX_LINKS])
        around = self._blocks.context_of(record.block_id) if record.block_id is not None else None
        return Origin(around or _common(places) or self._default(record.start_ns), links, len(candidates))

    def build(self, placed: Placed, ids: Ids) -> Any:
        record, origin = placed.record, placed.parent
        if type(record) is BlockRecord:
            return self._block(record, origin, placed.inside)
        context = child(ids, origin.parent, record.name, origin.links)
        if context is None:
            return None
        extra = {"gpu.attribution.candidates": origin.candidates} if origin.candidates else None
        name, attributes, lost = self._shapes.of(record, self._where(record), extra)
        self.lost_attributes += lost
        return self._span(name, context, origin.parent, attributes, record, origin.links)

    def summed(self, placed: Placed, threshold_ns: int | None, ids: Ids, where: tuple[str, Any] | None) -> Any:
        """The span for what was launched in a block and has none of its own, or None where there is nothing.

        It says how long all of it took together, drawn from the block's start: the tracer keeps no times of it.
        ``where``: backend and device of all work, where there is only one.
        """
        total_ns, found = placed.inside.summed() if placed.inside is not None else (0, {})
        context = child(ids, placed.parent.context, SUMMED) if found else None
        if context is None:
            return None
        start, found["gpu.threshold_ns"] = placed.record.start_ns, threshold_ns
        attributes = self._kept({key: value for key, value in found.items() if value is not None})
        attributes |= self._of_device(*where, None) if where is not None else {}
        return self._made(SUMMED, context, placed.parent.context, attributes, start, start + total_ns)

    def fold(self, group: Group, threshold_ns: int | None, ids: Ids) -> Any:
        """The aggregate span of records beyond the budget; it covers first start to last end, not busy time."""
        first, origin = group.first, group.parent
        context = child(ids, origin.parent, first.name, origin.links)
        if context is None:
            return None
        found: Attributes = {
            "gpu.operation": operation(first),
            f"gpu.{operation(first)}.name": clean(getattr(first, "full_name", None) or first.name),
            "gpu.stream.id": clean(getattr(first, "stream", None)),
            "gpu.aggregate.count": group.count,
            "gpu.aggregate.total_ns": clean(group.total_ns),
            "gpu.aggregate.min_ns": group.min_ns,
            "gpu.aggregate.max_ns": group.max_ns,
            "gpu.aggregate.bytes": clean(group.bytes) or None,
            "gpu.threshold_ns": threshold_ns,
        }
        attributes = self._kept({key: value for key, value in found.items() if value is not None})
        attributes |= self._where(first)
        name = prefixed(first, self._redact)
        span = self._span(name, context, origin.parent, attributes, first, origin.links)
        span._start_time, span._end_time = group.start_ns, group.end_ns
        return span

    def root(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        attributes: Attributes,
        start_ns: int,
        end_ns: int,
        failed: bool,
    ) -> Any:
        span = self._made(name, context, parent, self._kept(attributes), start_ns, end_ns)
        if failed:
            span._status = Status(StatusCode.ERROR)
        return span

    def _made(
        self, name: str, context: SpanContext, parent: Any, attributes: Attributes, start_ns: int, end_ns: int
    ) -> Any:
        """Of the host."""
        return ReadableSpan(
            name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            kind=SpanKind.INTERNAL,
            start_time=start_ns,
            end_time=end_ns,
            instrumentation_scope=self._scope_of("host", None, None),
        )

    def _where(self, record: Any) -> Attributes:
        """What a span says itself of where its work ran: backends for traces show neither scope nor resource beside
        it. The same object for the same device.
        """
        backend = getattr(record, "backend", "host")
        return self._of_device(backend, getattr(record, "device", None), getattr(record, "context", None))

    def _of_device(self, backend: str, device: Any, context: Any) -> Attributes:
        key = backend, device
        known = self._devices.get(key)
        if known is None:
            scope = self._scope_of(backend, device, context)
            found = {name: scope.attributes.get(name) for name in ON_SPANS}
            if len(self._devices) >= MAX_DEVICES:
                self._devices.clear()
            known = self._devices[key] = {name: value for name, value in found.items() if value is not None}
        return known

    def _kept(self, attributes: Attributes) -> Attributes:
        kept, lost = apply_redaction(self._redact, attributes)
        self.lost_attributes += lost
        return shortened(kept, self._max_text)

    def _block(self, record: BlockRecord, place: Place, inside: Inside | None) -> Any:
        name, attributes, lost = self._shapes.of(record, self._where(record))
        self.lost_attributes += lost
        if inside is not None:
            attributes |= self._kept(inside.attributes())
        span = self._span(name, place.context, place.parent, attributes, record, place.links)
        if record.error:
            span._status = Status(StatusCode.ERROR, str(clean(record.error)))
        return span

    def _span(
        self, name: str, context: Any, parent: Any, attributes: Attributes, record: Any, links: tuple[Any, ...]
    ) -> Any:
        return ReadableSpan(
            name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            links=links,
            kind=SpanKind.INTERNAL,
            start_time=record.start_ns,
            end_time=record.end_ns,
            instrumentation_scope=self._scope_of(
                getattr(record, "backend", "host"), getattr(record, "device", None), getattr(record, "context", None)
            ),
        )


_COUNTED: dict[Any, Callable[[Any], Any]] = {
    of: attrgetter("name", *(field for field in ("backend", "device", "stream") if field in of._fields))
    for of in KINDS
    if hasattr(of, "_fields")
}


def _countable(record: Any) -> bool:
    """Whether what records are counted and folded by can be a key: a caller's own record may hold anything."""
    try:
        hash(_COUNTED[type(record)](record))
    except Exception:  # noqa: BLE001
        return False
    return True


def _common(places: list[Place]) -> SpanContext | None:
    """The span directly above all of ``places``, or None."""
    parents = {place.parent.span_id: place.parent for place in places if place.parent is not None}
    if len(parents) != 1 or any(place.parent is None for place in places):
        return None
    return next(iter(parents.values()))
