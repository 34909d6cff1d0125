"""What a span is a child of: the block it was launched in, the application's current span, the process's root span, or
what TRACEPARENT names. Filled on the application's threads, read by the worker.

A block is a span of its own: its ids are drawn when it opens, so that kernels, nested blocks and the application's
spans inside it can name it as parent long before it ends. Scopes opened for the application's spans stand for those
spans.
"""

import os
from collections import deque
from collections.abc import Callable
from itertools import islice
from threading import local
from typing import Any, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    set_span_in_context,
)

from ..._runtime import log
from ..._runtime.clock import now_ns
from ._attributes import Attributes, clean

#: Closed blocks whose late records still find their parent, and open ones at most.
MAX_CLOSED = 16_384
MAX_OPEN = 65_536
MAX_LINKS = 32


class Place(NamedTuple):
    """Where a block stands in the trace. ``context``: None where nothing is exported (unsampled, or no provider)."""

    context: SpanContext | None
    parent: SpanContext | None = None
    links: tuple[Any, ...] = ()
    scope: bool = False  # the block stands for a span of the application and is none of its own
    before: Any = None  # the OpenTelemetry context to put back when the block closes
    inside: Any = None  # the one that is current inside
    span: Any = None  # the span in it
    block: Any = None  # held for as long as its sums are kept


class BlockSpan(NonRecordingSpan):  # type: ignore[misc]
    """Stands for a block in OpenTelemetry contexts: new spans become its children, and whatever the application says
    to the current span reaches the span around the block, as it would without gpusense.

    One that could not be taken out of its context when the block closed points to the span around it from then on, so
    that nothing new becomes a child of a finished block.
    """

    def __init__(self, context: SpanContext, around: Any) -> None:
        super().__init__(context)
        self._around = around
        self.stale = False

    def get_span_context(self) -> SpanContext:
        return self._around.get_span_context() if self.stale else self._context

    def is_recording(self) -> bool:
        return bool(self._around.is_recording())

    def set_attribute(self, key: str, value: Any) -> None:
        self._around.set_attribute(key, value)

    def set_attributes(self, attributes: Any) -> None:
        self._around.set_attributes(attributes)

    def add_event(self, *arguments: Any, **named: Any) -> None:
        self._around.add_event(*arguments, **named)

    def add_link(self, *arguments: Any, **named: Any) -> None:
        self._around.add_link(*arguments, **named)

    def record_exception(self, *arguments: Any, **named: Any) -> None:
        self._around.record_exception(*arguments, **named)

    def set_status(self, *arguments: Any, **named: Any) -> None:
        self._around.set_status(*arguments, **named)

    def update_name(self, name: str) -> None:
        self._around.update_name(name)


class Ids(NamedTuple):
    """How ids are drawn, and whether the first span of this process in a trace is sampled: as the provider says."""

    span_id: Callable[[], int]
    trace_id: Callable[[], int]
    sampled: Callable[[Any, int, str, Any], Any]  # (remote parent or None, trace id, name, links) → (bool, state)


class Blocks:
    """The block listener. ``ids()`` gives :class:`Ids`, or None while there is no provider; ``default()`` the parent of
    blocks that have none (the process's root span, or what TRACEPARENT names); ``watch(block)`` what is to be held
    while its span is not made."""

    def __init__(
        self,
        ids: Callable[[], Ids | None],
        default: Callable[[], SpanContext | None],
        watch: Callable[[Any], Any] = lambda _block: None,
    ) -> None:
        self._ids = ids
        self._default = default
        self._watch = watch
        self._places: dict[int, Place] = {}
        self._closed: deque[int] = deque()
        self._announced = local()

    def announce(self, context: SpanContext | None) -> None:
        """The next block this thread opens stands for the span ``context``."""
        self._announced.context = context

    def block_opened(self, block: Any) -> None:
        """Raises nothing: a listener that does is removed, and one odd sampler must cost its block alone."""
        announced = getattr(self._announced, "context", None)
        try:
            if announced is not None:
                sampled = announced.trace_flags.sampled
                place = Place(announced, scope=True, block=self._watch(block)) if sampled else Place(None, scope=True)
            else:
                place = self._open(block)
            if len(self._places) >= MAX_OPEN:
                self._places.pop(next(iter(self._places)), None)
        except Exception:  # noqa: BLE001
            log.exception("otel-block", "a block could not be given a span")
            place = Place(None)
        self.put(block.block_id, place)

    def block_closed(self, block: Any) -> None:
        """Raises nothing."""
        try:
            self._close(block)
        except Exception:  # noqa: BLE001
            log.exception("otel-block-end", "the span of a block could not be ended and may stay current")

    def _close(self, block: Any) -> None:
        place = self._places.get(block.block_id)
        if place is None:
            return
        if place.inside is not None:
            leave(place)
            self._places[block.block_id] = place._replace(before=None, inside=None, span=None)
        self._closed.append(block.block_id)
        while len(self._closed) > MAX_CLOSED:
            self._places.pop(self._closed.popleft(), None)

    def put(self, block_id: int, place: Place) -> None:
        self._places[block_id] = place

    def release(self, block_id: int) -> None:
        """The span of a block is made: its sums need not be kept any more."""
        place = self._places.get(block_id)
        if place is not None and place.block is not None:
            self._places[block_id] = place._replace(block=None)

    def place(self, block_id: int | None) -> Place | None:
        return None if block_id is None else self._places.get(block_id)

    def context_of(self, block_id: int) -> SpanContext | None:
        place = self._places.get(block_id)
        return place.context if place is not None else None

    def __len__(self) -> int:
        return len(self._places)

    def _open(self, block: Any) -> Place:
        ids = self._ids()
        if ids is None:
            return Place(None)
        parent: SpanContext | None = trace.get_current_span().get_span_context()
        if parent is None or not parent.is_valid:
            parent = self._default()
        links = to_links(getattr(block, "links", None))
        context = child(ids, parent, block.name, links)
        if context is None:
            return Place(None, parent)
        return enter(context, parent, links)._replace(block=self._watch(block))


def enter(context: SpanContext, parent: SpanContext | None, links: tuple[Any, ...] = ()) -> Place:
    """Makes ``context`` current in this thread or task, until :func:`leave`."""
    before = otel_context.get_current()
    span = BlockSpan(context, trace.get_current_span(before))
    inside = set_span_in_context(span, before)
    otel_context.attach(inside)
    return Place(context, parent, links, False, before, inside, span)


def leave(place: Place) -> None:
    """Makes what was current before current again, unless others changed it meanwhile.

    Restored by setting, never by resetting a token: a generator or task may close a block in another context.
    """
    current = otel_context.get_current()
    if current is place.inside:
        otel_context.attach(place.before)
    elif trace.get_current_span(current) is place.span:
        otel_context.attach(set_span_in_context(trace.get_current_span(place.before), current))
    else:
        place.span.stale = True


class RootSpan:
    """The span of the whole process, for programs that nobody traces from outside. It is current in the thread that
    starts it, and the parent of device work that was launched under no span.

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
        self.start_ns = now_ns()  # as of what it holds: the wall clock may be set meanwhile
        self.end_ns: int | None = None
        self.failed = False
        self._finish = finish
        self._pid = os.getpid()
        self._place = enter(context, parent) if context is not None else None

    def end(self, exit_code: int | None = None) -> None:
        """Ends and queues the span; the exit code becomes ``process.exit.code`` and, if not 0, an error status."""
        if self.end_ns is not None or os.getpid() != self._pid:
            return
        self.end_ns = now_ns()
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


def child(ids: Ids, parent: SpanContext | None, name: str, links: Any = ()) -> SpanContext | None:
    """The context of a new span below ``parent``, or of a new trace; None where it is not sampled.

    Below a span of this process the decision has been taken. The sampler is asked for the others, also below a parent
    in another process: ``OTEL_TRACES_SAMPLER=always_off`` holds whatever a caller sampled.
    """
    known = parent if parent is not None and parent.is_valid else None
    if known is not None and not known.is_remote:
        if not known.trace_flags.sampled:
            return None
        return SpanContext(known.trace_id, ids.span_id(), False, known.trace_flags, known.trace_state)
    trace_id = known.trace_id if known is not None else ids.trace_id()
    sampled, state = ids.sampled(known, trace_id, name, links)
    if not sampled:
        return None
    flags = TraceFlags(TraceFlags.SAMPLED | (known.trace_flags if known is not None else 0))
    return SpanContext(trace_id, ids.span_id(), False, flags, state)


def sdk_ids(provider: Any) -> Ids:
    """:class:`Ids` of an SDK ``TracerProvider``."""
    generator = provider.id_generator
    sampler = provider.sampler
    empty = otel_context.Context()

    def sampled(parent: SpanContext | None, trace_id: int, name: str, links: Any) -> tuple[bool, Any]:
        above = empty if parent is None else set_span_in_context(NonRecordingSpan(parent), empty)
        result = sampler.should_sample(above, trace_id, name, SpanKind.INTERNAL, {}, links)
        return result.decision.is_sampled(), result.trace_state

    return Ids(generator.generate_span_id, generator.generate_trace_id, sampled)


def to_links(targets: Any) -> tuple[Any, ...]:
    """OpenTelemetry links from links, spans or span contexts, one or several, the first :data:`MAX_LINKS` of them;
    anything else is left out.
    """
    single = isinstance(targets, (Link, SpanContext)) or not hasattr(targets, "__iter__")
    found = (_to_link(target) for target in islice((targets,) if single else targets, MAX_LINKS))
    return tuple(link for link in found if link is not None)


def _to_link(target: Any) -> Any:
    if isinstance(target, Link):
        return target
    get = getattr(target, "get_span_context", None)
    context = get() if get is not None else target
    return Link(context) if isinstance(context, SpanContext) and context.is_valid else None


def from_traceparent(environ: Any) -> SpanContext | None:
    """The parent that TRACEPARENT (and TRACESTATE) in the environment name, or None."""
    header = environ.get("TRACEPARENT")
    if not header:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {"traceparent": header.strip(), "tracestate": environ.get("TRACESTATE", "")}
    context = TraceContextTextMapPropagator().extract(carrier, otel_context.Context())
    found: SpanContext = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None
