"""Spans as one OTLP request, byte for byte what the official encoder makes of them but for their order.

The official encoder takes most of what exporting costs, and a program launches the same few kernels again and again. So
it encodes one span of a kind (one name with one object of attributes); the others are copies of that message with their
own ids and times. Spans with links, events, a status or a trace state it encodes one by one, as ever.
"""

from collections.abc import Sequence
from typing import Any

from opentelemetry.trace import StatusCode

_MOST = 4096


class Encoding:
    """For one thread at a time."""

    def __init__(self) -> None:
        #: Kind of span → its message, and its attributes, whose identity is part of the kind.
        self._known: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def request(self, spans: Sequence[Any], encode: Any) -> Any:
        """The request of ``spans``; ``encode`` is the official ``encode_spans``. Raises what that raises, and
        ``ValueError`` where its answer is not as expected.
        """
        if len(self._known) > _MOST:
            self._known.clear()
        scopes = _Scopes()
        first: list[Any] = []  # spans that the official encoder gets
        begun: dict[tuple[Any, ...], tuple[Any, int]] = {}  # kind → scope and place of its first span
        copies: list[tuple[Any, Any, tuple[Any, ...]]] = []
        for span in spans:
            scope = scopes.of(span)
            kind = _kind(span)
            if kind is not None and scope.spans and (kind in self._known or kind in begun):
                copies.append((span, scope, kind))
                continue
            if kind is not None and kind not in self._known:
                begun[kind] = scope, scope.spans
                self._known[kind] = None, span._attributes
            scope.spans += 1
            first.append(span)
        try:
            request = encode(first)
            messages = scopes.messages(request)
            for kind, (scope, place) in begun.items():
                message = messages[scope].spans[place]
                kept = type(message)()
                kept.CopyFrom(message)
                self._known[kind] = kept, self._known[kind][1]
            for span, scope, kind in copies:
                self._copy(messages[scope].spans.add(), span, kind)
        except Exception:
            self._known.clear()
            raise
        return request

    def _copy(self, message: Any, span: Any, kind: tuple[Any, ...]) -> None:
        message.CopyFrom(self._known[kind][0])
        context, parent = span.context, span.parent
        message.trace_id = context.trace_id.to_bytes(16, "big")
        message.span_id = context.span_id.to_bytes(8, "big")
        if parent is not None:
            message.parent_span_id = parent.span_id.to_bytes(8, "big")
        message.start_time_unix_nano = span.start_time
        message.end_time_unix_nano = span.end_time


def _kind(span: Any) -> tuple[Any, ...] | None:
    """What spans that differ in ids and times alone have in common; None for a span of its own."""
    attributes = getattr(span, "_attributes", None)  # ``attributes`` gives another object each time
    if attributes is None or span.links or span.events or span.context.trace_state:
        return None
    if span.status.status_code is not StatusCode.UNSET:
        return None
    parent = span.parent
    return id(attributes), span.name, span.kind, parent is None, parent is not None and parent.is_remote


class _Scope:
    __slots__ = ("place", "spans")

    def __init__(self, place: tuple[int, int]) -> None:
        self.place = place  # of its message in the request
        self.spans = 0  # that the official encoder gets


class _Scopes:
    """The scopes of a batch, in the order in which the official encoder arranges them: by resource, then by scope."""

    def __init__(self) -> None:
        self._by_identity: dict[tuple[int, int], _Scope] = {}
        self._resources: dict[Any, tuple[int, dict[Any, _Scope]]] = {}

    def of(self, span: Any) -> _Scope:
        resource, scope = span.resource, span.instrumentation_scope
        known = self._by_identity.get((id(resource), id(scope)))
        if known is None:  # once a batch: a resource's hash is its whole text
            number, scopes = self._resources.setdefault(resource, (len(self._resources), {}))
            known = scopes.setdefault(scope, _Scope((number, len(scopes))))
            self._by_identity[id(resource), id(scope)] = known
        return known

    def messages(self, request: Any) -> dict[_Scope, Any]:
        """Scope → its message. Raises ValueError where the request is arranged in another way."""
        found = {}
        if len(request.resource_spans) != len(self._resources):
            raise ValueError("the request has other resources")
        for number, scopes in self._resources.values():
            made = request.resource_spans[number].scope_spans
            for scope in scopes.values():
                message = made[scope.place[1]]
                if len(made) != len(scopes) or len(message.spans) != scope.spans:
                    raise ValueError("the request has other scopes")
                found[scope] = message
        return found
