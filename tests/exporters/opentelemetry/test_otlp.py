"""Requests whose spans are copies: what a receiver reads is what the official encoder would have sent."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from gpusense.exporters.opentelemetry._otlp import Encoding, Otlp

SHAPES = [
    {"gpu.operation": "kernel", "n": number, "f": 0.5, "b": True, "s": "text", "l": [1, 2]} for number in range(3)
]
RESOURCES = [Resource({"service.name": "one"}), Resource({"service.name": "two"}), Resource({"service.name": "one"})]
SCOPES = [InstrumentationScope("gpusense", "1"), InstrumentationScope("gpusense", "1", "https://schema"), None]
numbers = itertools.count(1)


def context(remote=False, state=None):
    return SpanContext(1 << 90 | next(numbers), 1 << 60 | next(numbers), remote, TraceFlags(1), state)


@st.composite
def spans(draw):
    shape = draw(st.sampled_from([*SHAPES, None, "own", "empty"]))
    attributes = {"own": next(numbers)} if shape == "own" else {} if shape == "empty" else shape
    parent = draw(st.sampled_from([None, "here", "remote"]))
    start = draw(st.integers(0, 1 << 62))
    return ReadableSpan(
        draw(st.sampled_from(["a", "b"])),
        context=context(state=draw(st.sampled_from([None, None, TraceState([("k", "v")])]))),
        parent=None if parent is None else context(parent == "remote"),
        resource=draw(st.sampled_from(RESOURCES)),
        attributes=attributes,
        links=draw(st.sampled_from([(), (), (Link(context(), {"why": 1}),)])),
        events=draw(st.sampled_from([(), (), (Event("then", timestamp=5),)])),
        kind=draw(st.sampled_from([SpanKind.INTERNAL, SpanKind.SERVER])),
        status=draw(st.sampled_from([Status(), Status(), Status(StatusCode.ERROR, "bad")])),
        start_time=start,
        end_time=start + draw(st.integers(0, 100)),
        instrumentation_scope=draw(st.sampled_from(SCOPES)),
    )


def read(request):
    """Resources and scopes in their order, each with its spans in any."""
    return [
        (
            group.resource.SerializeToString(deterministic=True),
            group.schema_url,
            [
                (one.scope.SerializeToString(), one.schema_url, sorted(span.SerializeToString() for span in one.spans))
                for one in group.scope_spans
            ],
        )
        for group in request.resource_spans
    ]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(spans(), min_size=1, max_size=25), min_size=1, max_size=3))
def test_a_receiver_reads_what_the_official_encoder_would_have_sent(batches):
    encoding = Encoding()
    for batch in batches:  # later ones are copies of what earlier ones brought
        assert read(encoding.request(batch, encode_spans)) == read(encode_spans(batch))


def kernels(count, shapes=SHAPES):
    parent = context()
    return [
        ReadableSpan(
            f"kernel {place % len(shapes)}",
            context=context(),
            parent=parent,
            resource=RESOURCES[0],
            attributes=shapes[place % len(shapes)],
            start_time=place + 1,
            end_time=place + 2,
            instrumentation_scope=SCOPES[0],
        )
        for place in range(count)
    ]


def test_the_official_encoder_gets_one_span_of_a_kind():
    encoded = []

    def encode(spans):
        encoded.append(len(spans))
        return encode_spans(spans)

    encoding = Encoding()
    for _ in range(3):
        encoding.request(kernels(1000), encode)
    assert encoded == [3, 1, 1]  # and one that brings resource and scope


def test_what_is_kept_is_bounded():
    encoding = Encoding()
    for start in range(0, 20_000, 1000):
        encoding.request(kernels(1000, [{"n": start + place} for place in range(1000)]), encode_spans)
    assert len(encoding._known) <= 4096 + 1000


@pytest.mark.parametrize("wrong", ["raises", "arranged otherwise"])
def test_an_encoder_that_changed_is_noticed(wrong):
    def encode(spans):
        if wrong == "raises":
            raise TypeError("changed")
        request = encode_spans(spans)
        request.resource_spans.add()
        return request

    encoding = Encoding()
    with pytest.raises((TypeError, ValueError)):
        encoding.request(kernels(10), encode)
    assert read(encoding.request(kernels(10), encode_spans))  # nothing of it is left


class Client:
    def __init__(self):
        self.sent = []

    def export(self, data):
        self.sent.append(data)
        return type("Answer", (), {"success": True})()

    def shutdown(self):
        pass


@pytest.fixture
def otlp():
    made = Otlp("traces", "http://127.0.0.1:9")
    client = getattr(made.make(), "_client", None)
    if client is None:
        pytest.skip("this exporter has no client of its own")
    made.make()._client = Client()
    return made


def test_requests_go_through_the_exporters_own_client(otlp):
    assert otlp.export_spans(kernels(100)) == 0
    assert otlp._encoding
    assert len(otlp.make()._client.sent) == 1


@pytest.mark.parametrize("why", ["encoder", "internal metrics", "too large"])
def test_else_the_exporter_makes_its_request_itself(otlp, why, monkeypatch):
    asked = []
    exporter = otlp.make()
    monkeypatch.setattr(type(exporter), "export", lambda self, spans: asked.append(len(spans)))
    if why == "encoder":
        monkeypatch.setattr(Encoding, "request", lambda *_: 1 / 0)
    elif why == "internal metrics":
        monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    else:
        exporter._max_request_size = 100
    otlp.export_spans(kernels(10))
    otlp.export_spans(kernels(10))
    assert asked == [10, 10]
    assert exporter._client.sent == []
