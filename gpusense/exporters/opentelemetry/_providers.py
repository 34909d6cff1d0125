"""Keeps gpusense on the application's providers, whichever they are now: the instruments on its meter provider, and one
span processor on its tracer provider, which gives the application's own spans their kernels.
"""

import atexit
import functools
import weakref
from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor

from ..._runtime import log
from ._pipeline import Pipeline
from ._resource import SCOPE
from ._target import processors_of, put_first

MAX_OPEN = 16_384


class ScopeProcessor(SpanProcessor):  # type: ignore[misc]
    """Keeps a scope open while a span of the application is. Runs on its threads; after its first failure it only
    watches.

    A processor hears of a span's start and end, not of its becoming current, so a span that is started and never made
    current still owns what its thread launches until it ends.

    It is also where copies of gpusense find each other, of any version: by ``gpusense_copy`` (the name of the package)
    and ``gpusense_sends`` (whether it sends to this provider's exporters now). Both names stay.
    """

    gpusense_copy = SCOPE

    def __init__(self, pipeline: Pipeline, scopes: bool) -> None:
        self._open: dict[int, Any] = {}
        self._forked = self._failed = False
        self._pipeline = pipeline
        self._active = scopes

    def serve(self, pipeline: Pipeline, scopes: bool) -> None:
        """Works for ``pipeline`` from now on: a processor cannot be taken off its provider."""
        self._failed = self._failed and pipeline is self._pipeline
        self._pipeline = pipeline
        self._active = scopes and not self._failed

    @property
    def gpusense_sends(self) -> bool:
        return self._pipeline.is_open and self._pipeline.target.to_application

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
        return self._pipeline.flush(30.0 if timeout_millis is None else timeout_millis / 1e3)

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


_processors: "weakref.WeakKeyDictionary[Any, ScopeProcessor]" = weakref.WeakKeyDictionary()  # by their providers


class Providers:
    """Follows the application from one provider to the next. ``scopes``: its spans get their kernels."""

    def __init__(self, pipeline: Pipeline, scopes: bool) -> None:
        self._pipeline = pipeline
        self._scopes = scopes
        self._known: list[Any] = []
        self._replaced: Any = None
        self._watching: Any = None

    def follow(self) -> None:
        pipeline, metrics = self._pipeline, self._pipeline.metrics
        provider = pipeline.target.provider() if pipeline.settings.spans else None
        if provider is not None and hasattr(provider, "add_span_processor"):
            pipeline.yields_to = _first_copy(provider, self._on(provider))
        if metrics is not None:
            metrics.muted = pipeline.yields_to is not None
            metrics.attach()
        known = [provider, metrics.provider() if metrics is not None else None]
        if any(now is not before for now, before in zip(known, self._known or [None, None], strict=True)):
            self._known = known
            _end_before(pipeline)

    def watch(self) -> None:
        """Follows at once when the application sets its provider: its first request must not have to wait for a tick.
        Wraps ``trace.set_tracer_provider``; what was bound before is noticed with the next tick.
        """
        replaced = self._replaced = trace.set_tracer_provider

        @functools.wraps(replaced)
        def set_tracer_provider(*arguments: Any, **named: Any) -> Any:
            result = replaced(*arguments, **named)
            if self._pipeline.is_open:
                try:
                    self.follow()
                except Exception:  # noqa: BLE001 - nothing of ours may reach the application's start
                    log.exception("otel-follow", "the new OpenTelemetry provider is looked at later")
            return result

        trace.set_tracer_provider = self._watching = set_tracer_provider

    def unwatch(self) -> None:
        """Puts the function back, unless another tool has wrapped it meanwhile; ours only passes on then."""
        if self._watching is not None and trace.set_tracer_provider is self._watching:
            trace.set_tracer_provider = self._replaced

    def _on(self, provider: Any) -> ScopeProcessor:
        known = _processors.get(provider)
        if known is None:
            known = _processors[provider] = ScopeProcessor(self._pipeline, self._scopes)
            put_first(provider, known)
        known.serve(self._pipeline, self._scopes)
        return known

    def forget(self) -> None:
        """In a forked child."""
        for processor in list(_processors.values()):
            processor.forget()


def _first_copy(provider: Any, own: ScopeProcessor) -> str | None:
    """The other copy of gpusense that sends to the exporters of ``provider`` and came first; None where we did.

    All copies see every kernel, since they share one capture: two that send would double each span.
    """
    if not own.gpusense_sends:
        return None
    sending = [known for known in processors_of(provider) if getattr(known, "gpusense_sends", False) is True]
    first = sending[-1] if sending else own  # each went before those that were there
    if first is own:
        return None
    name = str(getattr(first, "gpusense_copy", "another copy of gpusense"))
    log.once("otel-copy", "%s sends GPU work to the same provider already; this copy sends nothing", name)
    return name


def _end_before(pipeline: Pipeline) -> None:
    """Ends ``pipeline`` at exit before the providers that there are by now: exit handlers run in reverse order, and
    gpusense's own may have been registered long before theirs. Nothing happens twice at the end.
    """
    kept = weakref.ref(pipeline)

    def end() -> None:
        found = kept()
        if found is not None:
            found.at_exit()

    atexit.register(end)
