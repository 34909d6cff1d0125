"""What a busy service does to its exporter: spans that are written to, samplers, links, odd values."""

import enum

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanContext, StatusCode, TraceFlags
from providers import names, provider_of

HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def on(otel, app, tracer):
    assert otel.instrument(tracer=tracer, tracer_provider=app, metrics=False)
    return app.test_tracer


# --- the application's span goes on being used inside a block ---------------------------------------------------------


def test_what_is_said_to_the_current_span_inside_a_block_reaches_the_request(on, tracer, spans):
    with on.start_as_current_span("GET /"), tracer.trace("forward"), tracer.trace("inner"):
        span = trace.get_current_span()
        assert span.is_recording()
        span.set_attribute("user", 7)
        span.set_attributes({"tenant": "a"})
        span.add_event("cache miss")
        span.record_exception(ValueError("no"))
        span.set_status(StatusCode.ERROR)
        span.update_name("GET /item")
        inside = span.get_span_context()
    request = spans("GET /item")[0]
    assert (request.attributes["user"], request.attributes["tenant"]) == (7, "a")
    assert [event.name for event in request.events] == ["cache miss", "exception"]
    assert request.status.status_code is StatusCode.ERROR
    assert inside.span_id == spans("inner")[0].context.span_id


def test_a_block_without_a_request_is_not_recording(on, tracer):
    with tracer.trace("alone"):
        assert not trace.get_current_span().is_recording()
        trace.get_current_span().set_attribute("user", 7)


# --- sampling ---------------------------------------------------------------------------------------------------------


class Asked(Sampler):
    """Remembers what it was asked, samples what is not named "quiet"."""

    def __init__(self):
        self.seen = []

    def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, links=None, trace_state=None):
        parent = trace.get_current_span(parent_context).get_span_context()
        self.seen.append((name, parent.span_id))
        return SamplingResult(Decision.DROP if name == "quiet" else Decision.RECORD_AND_SAMPLE)

    def get_description(self):
        return "asked"


def test_a_remote_parent_leaves_the_decision_to_the_sampler(otel, tracer, monkeypatch):
    monkeypatch.setenv("TRACEPARENT", HEADER)
    exporter = InMemorySpanExporter()
    otel.instrument(tracer=tracer, tracer_provider=provider_of(exporter, sampler=ALWAYS_OFF), metrics=False)
    tracer.kernel("alone")
    otel.start_root_span()
    with tracer.trace("step"):
        tracer.kernel()
    assert otel.flush(10)
    assert names(exporter) == []
    assert otel.status()["dropped"] == {"unsampled": 3}


def test_a_remote_parent_that_is_not_sampled_may_be_overruled(otel, tracer, monkeypatch):
    monkeypatch.setenv("TRACEPARENT", HEADER[:-1] + "0")
    exporter = InMemorySpanExporter()
    otel.instrument(tracer=tracer, tracer_provider=provider_of(exporter, sampler=ALWAYS_ON), metrics=False)
    root = otel.start_root_span("serve")
    with tracer.trace("step"):
        tracer.kernel()
    root.end(0)
    assert otel.flush(10)
    assert names(exporter) == ["gpu_kernel: sgemm", "serve", "step"]


def test_the_sampler_is_told_the_remote_parent_and_asked_once(otel, tracer, monkeypatch):
    monkeypatch.setenv("TRACEPARENT", HEADER)
    exporter, sampler = InMemorySpanExporter(), Asked()
    otel.instrument(tracer=tracer, tracer_provider=provider_of(exporter, sampler=sampler), metrics=False)
    for name in ("loud", "quiet"):
        with tracer.trace(name):
            for _ in range(3):
                tracer.kernel(f"in {name}")
    assert otel.flush(10)
    assert sampler.seen == [("loud", 0xB7AD6B7169203331), ("quiet", 0xB7AD6B7169203331)]
    assert names(exporter) == ["gpu_kernel: in loud"] * 3 + ["loud"]


def test_a_span_that_is_recorded_and_not_sampled_takes_its_kernels_along(otel, tracer):
    class RecordOnly(Sampler):
        def should_sample(self, *_arguments, **_named):
            return SamplingResult(Decision.RECORD_ONLY)

        def get_description(self):
            return "record only"

    exporter = InMemorySpanExporter()
    provider = provider_of(exporter, sampler=RecordOnly())
    otel.instrument(tracer=tracer, tracer_provider=provider, metrics=False)
    otel.start_root_span("serve")
    with provider.get_tracer("app").start_as_current_span("GET /"):
        tracer.kernel()
    assert otel.flush(10)
    assert otel.status()["dropped"] == {"unsampled": 1}


def test_a_sampler_that_fails_costs_its_block_alone(otel, tracer, caplog):
    class Broken(Sampler):
        def should_sample(self, _context, _id, name, *_arguments, **_named):
            if name == "bad":
                raise RuntimeError("rules are gone")
            return SamplingResult(Decision.RECORD_AND_SAMPLE)

        def get_description(self):
            return "broken"

    exporter = InMemorySpanExporter()
    otel.instrument(tracer=tracer, tracer_provider=provider_of(exporter, sampler=Broken()), metrics=False)
    for name in ("bad", "bad", "good"):
        with tracer.trace(name):
            tracer.kernel()
    assert otel.flush(10)
    assert names(exporter) == ["good", "gpu_kernel: sgemm"]
    assert len(caplog.records) == 1


# --- links ------------------------------------------------------------------------------------------------------------


def context(number):
    return SpanContext(1, number, False, TraceFlags(1))


def test_one_target_may_stand_for_a_list_and_lists_are_bounded(on, tracer, spans):
    with on.start_as_current_span("GET /") as request:
        for name, links in (
            ("a span", request),
            ("a context", request.get_span_context()),
            ("a link", Link(request.get_span_context())),
            ("a number", 7),
            ("many", [Link(context(number)) for number in range(1, 1000)]),
            ("endless", (context(number) for number in iter(lambda: 5, None))),
        ):
            with tracer.trace(name, links=links):
                pass
    found = {span.name: [link.context.span_id for link in span.links] for span in spans()}
    wanted = [request.get_span_context().span_id]
    assert found["a span"] == found["a context"] == found["a link"] == wanted
    assert found["a number"] == []
    assert found["many"] == list(range(1, 33))
    assert found["endless"] == [5] * 32


# --- values -----------------------------------------------------------------------------------------------------------


class Colour(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Loud(str):
    def __str__(self):
        raise RuntimeError("no text of me")


def test_subclasses_become_what_they_hold(on, tracer, spans):
    with tracer.trace("step", {"colour": Colour.RED, "level": Level.HIGH, "loud": Loud("text")}):
        pass
    attributes = spans("step")[0].attributes
    assert (attributes["colour"], attributes["level"], attributes["loud"]) == ("red", 3, "text")


def test_huge_values_are_cut_before_they_are_worked_on():
    from gpusense.exporters.opentelemetry._attributes import MAX_TEXT, clean

    class Counting(str):
        """Text that says how much of it was encoded."""

        encoded = 0

        def __getitem__(self, part):
            return Counting(super().__getitem__(part))

        def encode(self, *arguments):
            Counting.encoded = max(Counting.encoded, len(self))
            return super().encode(*arguments)

    from gpusense.exporters.opentelemetry import _attributes

    assert len(_attributes.text(Counting("é" * 10**6), MAX_TEXT)) == MAX_TEXT
    assert 0 < Counting.encoded <= MAX_TEXT + 1
    assert len(clean(1 << 10**6)) == MAX_TEXT
    assert len(clean("é" * 10**6)) == MAX_TEXT


def test_a_mapping_of_a_million_attributes_is_not_cleaned_to_the_end(on, otel, tracer, spans):
    from gpusense.exporters.opentelemetry._attributes import MAX_ATTRIBUTES

    cleaned = []

    class Value:
        def item(self):
            cleaned.append(self)
            return 1

    with tracer.trace("step", {f"a{number}": Value() for number in range(1000)}):
        pass
    assert len(spans("step")[0].attributes.keys() - {"gpu.backend"}) == MAX_ATTRIBUTES
    assert len(cleaned) < MAX_ATTRIBUTES
    assert otel._active.lost_attributes == 1000 - len(cleaned)


def test_the_limit_of_the_environment_counts_where_it_is_shorter(otel, app, tracer, spans, monkeypatch):
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "16")
    otel.instrument(tracer=tracer, tracer_provider=app, metrics=False)
    with tracer.trace("step", {"text": "x" * 100, "list": ["y" * 100]}):
        tracer.kernel("k", full_name="void " + "k" * 100)
    found = {span.name: span.attributes for span in spans()}
    assert len(found["step"]["text"]) == len(found["step"]["list"][0]) == 16
    assert len(found["gpu_kernel: k"]["gpu.kernel.name"]) == 16


def test_odd_keys_of_a_record_cost_that_record(otel, app, tracer, spans):
    otel.instrument(tracer=tracer, tracer_provider=app, metrics=False, max_spans_per_s=4)
    with tracer.trace("step"):
        for number in range(6):
            tracer.kernel("good", duration_ns=200_000 + number)
            tracer.kernel(["list"], duration_ns=1000)
            tracer.kernel("device", device=[0], duration_ns=1000)
            tracer.kernel("stream", stream={}, duration_ns=1000)
    assert otel.flush(10)
    status = otel.status()
    assert status["received"] == 25
    assert status["received"] == status["exported"] + status["folded"] + sum(status["dropped"].values())
    assert sum(span.attributes.get("gpu.aggregate.count", 1) for span in spans("gpu_kernel: good")) == 6
