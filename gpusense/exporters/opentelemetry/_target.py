"""Where spans go and whose decisions count: the application's provider, a private one, or the caller's exporter."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from opentelemetry import trace

from ..._runtime import log
from ._otlp import Otlp, hand_over
from ._parents import Ids, sdk_ids
from ._resource import detected

#: Spans put into a queue of somebody else's before it is asked to empty it; the SDK's queue holds 2,048.
CHUNK = 256


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
        self._fixed = provider
        self._exporter = exporter
        self._otlp = otlp
        self._private = private
        self._own: Any = None
        self._seen: Any = None
        self._ids: Ids | None = None

    @property
    def to_application(self) -> bool:
        """Whether spans go where the application's own go."""
        return self._otlp is None and self._exporter is None

    def provider(self) -> Any:
        """An SDK provider, or None."""
        provider = self._fixed or trace.get_tracer_provider()
        if _is_sdk(provider):
            return provider
        return self._private_provider() if self._private else None

    def ids(self) -> Ids | None:
        provider = self.provider()
        if provider is not self._seen:
            self._ids = sdk_ids(provider) if provider is not None else None
            self._seen = provider
        return self._ids

    def send(self, spans: Sequence[Any], more: bool = False) -> Sent:
        """Hands one batch over on the calling thread; ``more``: another one went just before."""
        if self._otlp is not None:
            return Sent(self._otlp.export_spans(spans))
        if self._exporter is not None:
            return Sent(0 if hand_over(self._exporter, spans, None) else len(spans))
        return self._send_to_application(spans, more)

    def close(self) -> None:
        if self._otlp is not None:
            self._otlp.close()

    def forget(self) -> None:
        if self._otlp is not None:
            self._otlp.forget()

    def _private_provider(self) -> Any:
        if self._own is None:
            from opentelemetry.sdk.trace import TracerProvider

            self._own = TracerProvider(resource=detected(), shutdown_on_exit=False)
        return self._own

    def _send_to_application(self, spans: Sequence[Any], more: bool) -> Sent:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

        reached = failed = False
        for processor in processors_of(self.provider()):
            if not isinstance(processor, (BatchSpanProcessor, SimpleSpanProcessor)) or has_ended(processor):
                continue
            reached = True
            if type(processor) not in (BatchSpanProcessor, SimpleSpanProcessor):
                _feed(processor, spans)
                continue
            if more:  # whoever asks for a lock again at once gets it again: the application's own spans first
                processor.force_flush()
            failed |= not hand_over(processor.span_exporter, spans, _lock_of(processor))
        if not reached:
            log.once("otel-no-exporter", "the application's provider has no exporter that gpusense can use")
            return Sent(len(spans), "no_exporter")
        return Sent(len(spans) if failed else 0)


def _is_sdk(provider: Any) -> bool:
    return all(hasattr(provider, name) for name in ("sampler", "id_generator", "resource", "add_span_processor"))


def processors_of(provider: Any) -> Sequence[Any]:
    active = getattr(provider, "_active_span_processor", None)
    return tuple(getattr(active, "_span_processors", ()))


def put_first(provider: Any, processor: Any) -> None:
    """Adds ``processor`` before the others: ``force_flush()`` and ``shutdown()`` must reach it while they still work.

    Where the SDK keeps them in another way it stays last, and what came just before a shutdown is lost and counted.
    """
    provider.add_span_processor(processor)
    active: Any = getattr(provider, "_active_span_processor", None)
    lock = getattr(active, "_lock", None)
    if lock is None:
        return
    with lock:
        known = getattr(active, "_span_processors", None)
        if type(known) is tuple and known and known[-1] is processor:
            active._span_processors = (processor, *known[:-1])


def has_ended(owner: Any) -> bool:
    """Whether a processor or reader of the SDK was shut down; its exporter would log a warning for every batch."""
    inner = getattr(owner, "_batch_processor", owner)
    return getattr(inner, "_shutdown", None) is True or getattr(inner, "done", None) is True


def _feed(processor: Any, spans: Sequence[Any]) -> None:
    """Through ``on_end``, where a subclass filters or enriches; never so many that its queue overflows."""
    for start in range(0, len(spans), CHUNK):
        for span in spans[start : start + CHUNK]:
            processor.on_end(span)
        processor.force_flush()


def _lock_of(processor: Any) -> Any:
    """The lock under which a batch processor exports: an exporter must not be called twice at once."""
    return getattr(getattr(processor, "_batch_processor", None), "_export_lock", None)
