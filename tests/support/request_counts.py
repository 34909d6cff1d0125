"""What the spans that a receiver got say of each request, beside what the session file of the same run says."""

import json
import os
import pathlib
import subprocess
import sys
from collections import Counter
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "exporters" / "opentelemetry"))  # the receiver
WORK = ("kernel", "transfer")
LONGEST = 119  # characters of a span's name that are certainly the record's


class Found(NamedTuple):
    """Per request (by name) its device work as ``(operation, name, start_ns, end_ns)``, sorted; ``linked`` is the work
    that may belong to several requests, ``outside`` what belongs to none."""

    requests: dict[str, list[tuple[str, str, int, int]]]
    linked: list[tuple[str, str, int, int]]
    outside: list[tuple[str, str, int, int]]

    def counts(self) -> dict[str, Counter[str]]:
        return {name: Counter(operation for operation, *_ in work) for name, work in self.requests.items()}


def run_server(folder, kind, style, *options, clients=1, requests=12, **variables):
    """Runs the server below ``gpusense run``; what each request says it launched, the work per request by the spans
    that arrived and by the session file, and all the spans.
    """
    from servers import receiver

    from gpusense.session import load

    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSENSE", "FAKE", "OTEL"))}
    environ |= {"PYTHONPATH": path, "GPUSENSE_OTEL_MAX_SPANS_PER_S": "0", **variables}
    with receiver() as got:
        command = ["run", "-o", "server.gpusense", "--trace-all", "--otlp", got.url, *options]
        program = [str(HERE / "inference_server.py"), kind, style, str(clients), str(requests), got.url]
        done = subprocess.run(
            [sys.executable, "-m", "gpusense", *command, *program],
            cwd=folder, env=environ, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        spans = list(got.spans)
    assert f"spans: sent to {got.url}" in done.stderr or ", 0 refused" in done.stderr, done.stderr
    session = load(folder / "server.gpusense")
    assert session.meta["complete"]
    assert session.meta["damage"] == []
    assert session.counters.dropped == session.counters.missed == 0
    return json.loads(done.stdout), of_spans(spans), of_session(session), spans


def is_request(name):
    return name.startswith("POST /infer/")


def of_spans(spans):
    """From OTLP: spans of every request that came in; work below a request, by its parents, in the request's trace."""
    ids = {span.span_id: span for span in spans}
    assert len(ids) == len(spans), "a span came twice"
    found = Found({span.name: [] for span in spans if is_request(span.name)}, [], [])
    for span in spans:
        operation = attribute(span, "gpu.operation")
        if operation not in WORK:
            continue
        name = span.name.partition(": ")[2][:LONGEST]
        work = (operation, name, span.start_time_unix_nano, span.end_time_unix_nano)
        above = span
        while above is not None and not is_request(above.name):
            above = ids.get(above.parent_span_id)
        if span.links:
            found.linked.append(work)
        elif above is None:
            found.outside.append(work)
        else:
            assert above.trace_id == span.trace_id
            found.requests[above.name].append(work)
    return _sorted(found)


def of_session(session):
    """From the file: the same by blocks, where a request's span left one."""
    blocks = {block.block_id: block for block in session.blocks}
    found = Found({block.name: [] for block in session.blocks if is_request(block.name)}, [], [])
    for operation, records in (("kernel", session.kernels), ("transfer", session.transfers)):
        for record in records:
            work = (operation, record.name[:LONGEST], record.start_ns, record.end_ns)
            above = blocks.get(record.block_id)
            while above is not None and not is_request(above.name):
                above = blocks.get(above.parent_id)
            if record.ambiguous:
                found.linked.append(work)
            elif above is None:
                found.outside.append(work)
            else:
                found.requests[above.name].append(work)
    return _sorted(found)


def attribute(span, key):
    for entry in span.attributes:
        if entry.key == key:
            return getattr(entry.value, entry.value.WhichOneof("value"))
    return None


def _sorted(found):
    for work in (*found.requests.values(), found.linked, found.outside):
        work.sort()
    return found
