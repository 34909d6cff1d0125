"""What is read from an endpoint's answer: rejections, its own words, and nothing from bytes that mean nothing."""

import json

import pytest
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from gpusense.exporters.opentelemetry._answers import Answer, read

PROTOBUF, JSON = "application/x-protobuf", "application/json; charset=utf-8"


def part(kind, **fields):
    answer = kind()
    for name, value in fields.items():
        setattr(answer.partial_success, name, value)
    return answer.SerializeToString()


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.text(alphabet="abc ", max_size=40))
def test_rejections_are_read_as_they_were_written(count, message):
    for signal, kind, name, key in (
        ("traces", ExportTraceServiceResponse, "rejected_spans", "rejectedSpans"),
        ("metrics", ExportMetricsServiceResponse, "rejected_data_points", "rejectedDataPoints"),
    ):
        expected = Answer(200, max(count, 0), " ".join(message.split()))
        assert read(signal, 200, PROTOBUF, part(kind, **{name: count, "error_message": message})) == expected
        for number in (count, str(count)):
            body = json.dumps({"partialSuccess": {key: number, "errorMessage": message}}).encode()
            assert read(signal, 200, JSON, body) == expected


@pytest.mark.parametrize("status", [200, 400, 429, 503])
def test_a_status_in_the_body_is_the_reason(status):
    expected = Answer(status, None, "quota of tenant 7 is used up")
    said = Status(code=8, message="quota of tenant 7\n is used up")
    assert read("traces", status, PROTOBUF, said.SerializeToString()) == expected
    for body in (
        {"code": 8, "message": expected.message},
        {"error": expected.message},
        {"error": {"code": 8, "message": expected.message}},
    ):
        assert read("metrics", status, JSON, json.dumps(body).encode()) == expected
    assert expected.text == f"status {status}: quota of tenant 7 is used up"


@pytest.mark.parametrize(
    ("status", "content", "body", "expected"),
    [
        (200, "", b"", Answer(200)),
        (200, PROTOBUF, b"", Answer(200)),
        (200, JSON, b"{}", Answer(200)),
        (200, JSON, b"[1]", Answer(200)),
        (200, JSON, b"{nonsense", Answer(200)),
        (200, "text/plain", b"error? who knows", Answer(200)),
        (200, PROTOBUF, b"x" * (2 << 20), Answer(200)),
        (200, "text/html", b"<html>", Answer(200, None, "the answer is a web page: this is not an OTLP endpoint")),
        (302, "text/html", b"<html>moved", Answer(302, None)),
        (401, "text/plain", b"no \x1b[31mtoken\n", Answer(401, None, "no \ufffd[31mtoken")),
        (503, JSON, b"{}", Answer(503, None)),
    ],
)
def test_other_bodies(status, content, body, expected):
    assert read("traces", status, content, body) == expected


@given(
    st.sampled_from(["traces", "metrics"]),
    st.integers(100, 599),
    st.sampled_from([PROTOBUF, JSON, "", "text/x"]),
    st.binary(max_size=200),
)
def test_no_bytes_raise_and_no_message_moves_a_cursor(signal, status, content, body):
    answer = read(signal, status, content, body)
    assert answer.text.isprintable()
    assert (answer.rejected is None) >= (not 200 <= status < 300)
