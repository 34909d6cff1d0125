"""The official OTLP/HTTP exporters, quiet, made anew after a fork, and halving what a receiver finds too large."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from opentelemetry.trace import StatusCode

from ..._runtime import log
from ._answers import Answer, read

_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http",
)

GRPC = "port 4317 takes gRPC as a rule, and gpusense sends OTLP over HTTP, which port 4318 takes"
#: Kinds of spans whose messages are remembered.
MAX_KINDS = 4096

_quiet_threads: set[int] = set()


class _Quiet(logging.Filter):
    """Keeps the exporter's line a batch from the log while it runs for us; we say each reason once."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread not in _quiet_threads


_quiet = _Quiet()


def signal_url(endpoint: str, signal: str) -> str:
    """The full URL of one signal from a base URL ("http://host:4318") or from the URL of any signal.

    Raises ValueError for what is no such URL: the exporter would say nothing and send nothing.
    """
    if not isinstance(endpoint, str) or not endpoint.lower().startswith(("http://", "https://")):
        why = f"; {GRPC}" if isinstance(endpoint, str) and is_for_grpc(endpoint) else ""
        raise ValueError(f"{endpoint!r} is not a URL of OTLP over HTTP, such as 'http://localhost:4318'{why}")
    base = endpoint.rstrip("/")
    for known in ("traces", "metrics", "logs"):
        base = base.removesuffix(f"/v1/{known}")
    return f"{base}/v1/{signal}"


def is_for_grpc(endpoint: str) -> bool:
    """Whether :data:`GRPC` is to be said of it."""
    scheme, found, rest = endpoint.rpartition("://")
    return scheme.lower() in ("grpc", "grpcs") or (rest if found else endpoint).partition("/")[0].endswith(":4317")


class Otlp:
    """One signal's exporter. Made on first use; ``export`` blocks for its timeout at most and never raises."""

    def __init__(self, signal: str, endpoint: str | None, timeout_s: float | None = None) -> None:
        self.signal = signal
        self.url = signal_url(endpoint, signal) if endpoint else None
        self._timeout_s = timeout_s
        self._exporter: Any = None
        self._answer: Answer | None = None  # to the last request
        self.why = ""  # something was not taken, last
        self.warned = ""  # of the endpoint, which took all, last
        self.largest: int | None = None  # spans a request, once a receiver refused more
        self._encoding: Any = None

    def export_spans(self, spans: Sequence[Any]) -> int:
        """Sends ``spans``; returns how many were not taken."""
        failed = 0
        pending = [spans]
        while pending:
            batch = pending.pop()
            if self.largest is not None and len(batch) > self.largest:
                pending += [batch[self.largest :], batch[: self.largest]]
                continue
            rejected = self._send(batch)
            if rejected is not None:
                failed += min(rejected, len(batch))
            elif self._answer is not None and self._answer.status == 413 and len(batch) > 1:
                self.largest = max(len(batch) // 2, 1)
                pending.append(batch)
            else:
                failed += len(batch)
        return failed

    def export_metrics(self, data: Any) -> bool:
        """Whether every data point was taken."""
        return self._send(data) == 0

    @property
    def preferred_temporality(self) -> Any:
        return getattr(self.make(), "_preferred_temporality", None)

    def close(self) -> None:
        """Ends a running back-off at once. What is inside a socket call ends with its own timeout."""
        if self._exporter is not None:
            self._quietly(self._exporter.shutdown)

    def forget(self) -> None:
        """In a forked child: the parent's connection and threads are not ours."""
        self._exporter = self._encoding = None
        _quiet_threads.clear()

    def _send(self, batch: Any) -> int | None:
        """How many parts of ``batch`` were rejected; None where it was not taken as a whole."""
        self._answer = None
        try:
            result = self._quietly(lambda: self._export(batch))
        except Exception as error:  # noqa: BLE001 - an exporter may fail in any way; it must cost its batch alone
            self._say(type(error).__name__ + ": " + str(error))
            return None
        answer = self._answer
        # The exporter takes a redirection for success, and follows none: what was sent is nowhere.
        taken = getattr(result, "name", "") == "SUCCESS" and (answer is None or answer.rejected is not None)
        if answer is None:
            if not taken:
                self._say(f"no answer{self._hint(0)}")
            return 0 if taken else None
        if not taken:
            self._say(answer.text + self._hint(answer.status))
        elif answer.rejected:
            self._say(answer.text, "not all accepted")
        elif answer.message:
            self.warned = answer.text
            log.once(f"otlp-{self.signal}-warned", "%s says: %s", self.url or "the endpoint", answer.text)
        return answer.rejected if taken else None

    def _hint(self, status: int) -> str:
        """What to look at first, where it is the program's own setting."""
        if is_for_grpc(self._where()):
            return f" ({GRPC})"
        names = [f"OTEL_EXPORTER_OTLP{signal}_COMPRESSION" for signal in ("", "_TRACES", "_METRICS")]
        found = [f"{name}={os.environ[name]}" for name in names if os.environ.get(name, "").strip()]
        return f" ({', '.join(found)}: does it read that?)" if status in (400, 415) and found else ""

    def _where(self) -> str:
        """The endpoint, also where the environment names it."""
        names = (f"OTEL_EXPORTER_OTLP_{self.signal.upper()}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
        return self.url or next(filter(None, (os.environ.get(name, "").strip() for name in names)), "")

    def _export(self, batch: Any) -> Any:
        """Through the exporter's own client with what :class:`Encoding` makes, where it has one, else as ever."""
        exporter = self.make()
        data = self._encoded(exporter, batch) if self.signal == "traces" else None
        if data is None:
            return exporter.export(batch)
        result = exporter._client.export(data)
        status = getattr(result, "status_code", None)
        if self._answer is None and status:
            self._answered(status, "", b"")
        return _RESULTS[bool(result.success)]

    def _encoded(self, exporter: Any, batch: Any) -> bytes | None:
        """The request; None where the exporter should make it: it is of another version, has ended, measures itself,
        or would find it too large.
        """
        client = getattr(exporter, "_client", None)
        if self._encoding is False or not hasattr(client, "export") or getattr(exporter, "_shutdown", True):
            return None
        if os.environ.get("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "").strip().lower() == "true":
            return None
        try:
            from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

            self._encoding = self._encoding or Encoding()
            data: bytes = self._encoding.request(batch, encode_spans).SerializePartialToString()
        except Exception as error:  # noqa: BLE001 - the exporter's own way is always there
            log.debug("the exporter encodes the spans, which is slower: %s", error)
            self._encoding = False
            return None
        most = getattr(exporter, "_max_request_size", None)
        return None if most and len(data) > most > 0 else data

    def _say(self, why: str, what: str = "not accepted") -> None:
        self.why = why
        log.once(f"otlp-{self.signal}", "%s are %s by %s: %s", self.signal, what, self.url or "the endpoint", why)

    def prepare(self) -> None:
        """Makes the exporter ahead: its imports run ``eval``, which in an interpreter that is ending changes the exit
        status of Ctrl-C. Raises ``ImportError`` alone; what else is wrong is logged when something is to be sent.
        """
        try:
            self.make()
        except ImportError:
            raise
        except Exception as error:  # noqa: BLE001
            log.debug("the %s exporter could not be made ahead: %s", self.signal, error)

    def make(self) -> Any:
        """The SDK's exporter, made now if it was not yet; connects to nothing."""
        if self._exporter is None:
            self._check_protocol()
            if is_for_grpc(self._where()):
                log.once("otlp-port", "%s: %s", self._where(), GRPC)
            self._exporter = _make(self.signal, self.url, self._timeout_s, self._answered)
        return self._exporter

    def _check_protocol(self) -> None:
        for name in (f"OTEL_EXPORTER_OTLP_{self.signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
            wanted = os.environ.get(name, "").strip().lower()
            if wanted and wanted != "http/protobuf":
                log.once("otlp-protocol", "%s=%s: gpusense sends OTLP over HTTP, to port 4318 as a rule", name, wanted)
            if wanted:
                return

    def _answered(self, status: int, content_type: str, body: bytes) -> None:
        self._answer = read(self.signal, status, content_type, body)

    @staticmethod
    def _quietly(call: Callable[[], Any]) -> Any:
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_quiet)  # added once, however often asked
        thread = threading.get_ident()
        _quiet_threads.add(thread)
        try:
            return call()
        finally:
            _quiet_threads.discard(thread)


class _Result:
    def __init__(self, name: str) -> None:
        self.name = name


_RESULTS = {True: _Result("SUCCESS"), False: _Result("FAILURE")}


def _make(signal: str, url: str | None, timeout_s: float | None, answered: Callable[..., None]) -> Any:
    session = _session(answered)
    if signal == "traces":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=url, timeout=timeout_s, session=session)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter(endpoint=url, timeout=timeout_s, session=session)


def _session(answered: Callable[..., None]) -> Any:
    """A requests session that reports answers to us, which the exporter keeps to itself, and follows no redirection:
    earlier exporters would, with a request that has lost its body. A credential provider named in the environment makes
    the exporter's own session, so none is passed then.
    """
    if any(name.endswith("CREDENTIAL_PROVIDER") and name.startswith("OTEL_PYTHON_EXPORTER") for name in os.environ):
        return None
    try:
        import requests  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return None
    session: Any = requests.Session()

    def hook(response: Any, *_arguments: Any, **_named: Any) -> None:
        try:
            body = response.content
        except Exception:  # noqa: BLE001 - what cannot be unpacked says nothing; its status does
            body = b""
        answered(response.status_code, response.headers.get("content-type", ""), body)

    session.hooks["response"].append(hook)
    session.get_redirect_target = lambda _response: None
    return session


def hand_over(exporter: Any, batch: Any, lock: Any) -> bool:
    """Whether the application's own exporter took ``batch``; called under its owner's lock, where it has one."""
    try:
        with lock if lock is not None else nullcontext():
            result = exporter.export(batch)
    except Exception:  # noqa: BLE001 - a foreign exporter may fail in any way; it costs its batch
        log.exception(f"otel-exporter-{type(exporter).__name__}", "%s failed", type(exporter).__name__)
        return False
    return getattr(result, "name", "SUCCESS") == "SUCCESS"


class Encoding:
    """Spans as one request, byte for byte what the official encoder makes of them but for their order.

    The official encoder takes most of what exporting costs, and a program launches the same few kernels again and
    again. So it encodes one span of a kind (one name with one object of attributes); the others are copies of that
    message with their own ids and times. Spans with links, events, a status or a trace state it encodes one by one, as
    ever. For one thread at a time.
    """

    def __init__(self) -> None:
        #: Kind of span → its message, and its attributes, whose identity is part of the kind.
        self._known: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def request(self, spans: Sequence[Any], encode: Any) -> Any:
        """The request of ``spans``; ``encode`` is the official ``encode_spans``. Raises what that raises, and
        ``ValueError`` where its answer is not as expected.
        """
        if len(self._known) > MAX_KINDS:
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
