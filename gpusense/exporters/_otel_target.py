"""Where spans go and whose decisions count: the application's provider, a private one, or a given exporter."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from opentelemetry import trace

from ._otel_blocks import Ids, sdk_ids
from ._otel_otlp import Otlp, hand_over


class Sent(NamedTuple):
    failed: int
    reason: str = "export_failed"


class Target:
    """Resolves the provider each time it is asked, because an application may set its own late, and never sets one.

    ``provider`` fixes it; ``private`` makes one of our own (sampler and resource from ``OTEL_*``) while the application
    has none. ``exporter`` or ``otlp`` take all spans; without them they go where the application's own spans go.
    """

    def __init__(
        self, provider: Any = None, exporter: Any = None, otlp: Otlp | None = None, private: bool = False
    ) -> None:
        self._given = provider
        self._exporter = exporter
        self._otlp = otlp
        self._private = private
        self._own: Any = None
        self._seen: Any = None
        self._ids: Ids | None = None

    def provider(self) -> Any:
        """An SDK provider, or None."""
        provider = self._given or trace.get_tracer_provider()
        if _is_sdk(provider):
            return provider
        return self._private_provider() if self._private else None

    def ids(self) -> Ids | None:
        provider = self.provider()
        if provider is not self._seen:
            self._ids = sdk_ids(provider) if provider is not None else None
            self._seen = provider
        return self._ids

    def send(self, spans: Sequence[Any]) -> Sent:
        """Hands one batch over on the calling thread."""
        if self._otlp is not None:
            return Sent(self._otlp.export_spans(spans))
        if self._exporter is not None:
            return Sent(0 if hand_over(self._exporter, spans, None) else len(spans))
        return self._send_to_application(spans)

    def close(self) -> None:
        if self._otlp is not None:
            self._otlp.close()

    def forget(self) -> None:
        if self._otlp is not None:
            self._otlp.forget()

    def _private_provider(self) -> Any:
        if self._own is None:
            from opentelemetry.sdk.trace import TracerProvider

            self._own = TracerProvider(shutdown_on_exit=False)
        return self._own

    def _send_to_application(self, spans: Sequence[Any]) -> Sent:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

        reached = failed = False
        for processor in _processors(self.provider()):
            if type(processor) in (BatchSpanProcessor, SimpleSpanProcessor):
                reached = True
                failed |= not hand_over(processor.span_exporter, spans, _lock_of(processor))
            elif isinstance(processor, (BatchSpanProcessor, SimpleSpanProcessor)):
                reached = True  # a subclass may filter or enrich in on_end, so it goes through there
                for span in spans:
                    processor.on_end(span)
        if not reached:
            return Sent(len(spans), "no_exporter")
        return Sent(len(spans) if failed else 0)


def _is_sdk(provider: Any) -> bool:
    return all(hasattr(provider, name) for name in ("sampler", "id_generator", "resource", "add_span_processor"))


def _processors(provider: Any) -> Sequence[Any]:
    active = getattr(provider, "_active_span_processor", None)
    return tuple(getattr(active, "_span_processors", ()))


def _lock_of(processor: Any) -> Any:
    """The lock under which a batch processor exports: an exporter must not be called twice at once."""
    return getattr(getattr(processor, "_batch_processor", None), "_export_lock", None)
