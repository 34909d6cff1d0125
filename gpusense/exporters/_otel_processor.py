"""A span processor that gives the application's own spans their kernels: a scope is open while the span is.

A processor hears of a span's start and end, not of its becoming current, so a span that is started and never made
current still owns what its thread launches until it ends.
"""

from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.trace import SpanProcessor

from .. import _log

MAX_OPEN = 16_384


class ScopeProcessor(SpanProcessor):  # type: ignore[misc]
    """Runs on the application's threads; after its first failure it only watches."""

    def __init__(self, pipeline: Any) -> None:
        self._open: dict[int, Any] = {}
        self._forked = False
        self.serve(pipeline)

    def serve(self, pipeline: Any) -> None:
        """Works for ``pipeline`` from now on: a processor cannot be taken off its provider."""
        self._pipeline = pipeline
        self._active = True

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self._active:
            self._guarded(self._start, span)

    def on_end(self, span: Any) -> None:
        if self._open:
            self._guarded(self._end, span)

    def shutdown(self) -> None:
        self._active = False

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True

    def forget(self) -> None:
        """In a forked child: the spans of the parent end there."""
        self._open.clear()
        self._forked = self._active

    def _start(self, span: Any) -> None:
        context = span.get_span_context()
        if not context.trace_flags.sampled or len(self._open) >= MAX_OPEN or not self._pipeline.is_open:
            return
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
            self._active = False
            _log.exception("otel-scope", "kernels are no longer attributed to OpenTelemetry spans")
