"""A span processor that gives the application's own spans their kernels: a scope is open while the span is.

A processor hears of a span's start and end, not of its becoming current, so a span that is started and never made
current still owns what its thread launches until it ends.
"""

from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.trace import SpanProcessor

from ..._runtime import log
from ._resource import SCOPE

MAX_OPEN = 16_384


class ScopeProcessor(SpanProcessor):  # type: ignore[misc]
    """Runs on the application's threads; after its first failure it only watches.

    It is also where copies of gpusense find each other, of any version: by ``gpusense_copy`` (the name of the package)
    and ``gpusense_sends`` (whether it sends to this provider's exporters now). Both names stay.
    """

    gpusense_copy = SCOPE

    def __init__(self, pipeline: Any, scopes: bool = True) -> None:
        self._open: dict[int, Any] = {}
        self._forked = self._failed = False
        self._pipeline: Any = None
        self.serve(pipeline, scopes)

    def serve(self, pipeline: Any, scopes: bool = True) -> None:
        """Works for ``pipeline`` from now on: a processor cannot be taken off its provider."""
        self._failed = self._failed and pipeline is self._pipeline
        self._pipeline = pipeline
        self._active = scopes and not self._failed

    @property
    def gpusense_sends(self) -> bool:
        return bool(self._pipeline.is_open and self._pipeline.target.to_application)

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self._active:
            self._guarded(self._start, span)

    def on_end(self, span: Any) -> None:
        if self._open:
            self._guarded(self._end, span)

    def shutdown(self) -> None:
        """The provider ends: what there is goes now, while its exporters still work."""
        self._active = False
        if self.gpusense_sends:
            self._pipeline.provider_ends()

    def force_flush(self, timeout_millis: int | None = None) -> bool:
        if not self.gpusense_sends:
            return True
        return bool(self._pipeline.flush(30.0 if timeout_millis is None else timeout_millis / 1e3))

    def forget(self) -> None:
        """In a forked child: the spans of the parent end there."""
        self._open.clear()
        self._forked = self._active

    def _start(self, span: Any) -> None:
        context = span.get_span_context()
        if not self._pipeline.is_open or self._pipeline.yields_to is not None:
            return
        if len(self._open) >= MAX_OPEN:  # spans that nobody ended
            self._open.pop(next(iter(self._open)), None)
        if self._forked:
            self._forked = False
            self._pipeline.rejoin()
        blocks = self._pipeline.blocks
        blocks.announce(context)
        try:
            self._open[context.span_id] = self._pipeline.tracer.open_scope(span.name)
        finally:
            blocks.announce(None)

    def _end(self, span: Any) -> None:
        block = self._open.pop(span.get_span_context().span_id, None)
        if block is not None:
            self._pipeline.tracer.close_scope(block)

    def _guarded(self, step: Callable[[Any], None], span: Any) -> None:
        try:
            step(span)
        except Exception:  # noqa: BLE001 - nothing of ours may reach the application's span
            self._active, self._failed = False, True
            log.exception("otel-scope", "kernels are no longer attributed to OpenTelemetry spans")
