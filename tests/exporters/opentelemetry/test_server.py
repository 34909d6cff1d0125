"""An inference server under ``gpusense run``: the spans that arrive hold each request's work as the session file does.

The driver and CUPTI are scripted libraries; ``tests/gpu/test_otel.py`` does the same on a GPU with torch.
"""

import sys
from collections import Counter

import pytest
from support import request_counts

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries"),
]


@pytest.fixture
def serve(build_library, tmp_path):
    libraries = {
        "GPUSENSE_LIBCUDA": str(build_library("libcuda.c", "libcuda.so.1")),
        "GPUSENSE_LIBCUPTI": str(build_library("libcupti.c", "libcupti.so.13")),
    }
    return lambda *words, **more: request_counts.run_server(tmp_path, "ptx", *words, **libraries, **more)


def inside(spans, name):
    """Kernels and copies that the spans of this name say they hold."""
    said = [{one.key: one.value.int_value for one in span.attributes} for span in spans if span.name == name]
    return tuple(sum(one[f"gpu.inside.{what}"] for one in said) for what in ("kernels", "transfers"))


@pytest.mark.parametrize("clients", [1, 4])
@pytest.mark.parametrize("style", ["spans", "blocks"])
def test_live_spans_below_the_applications_requests(serve, style, clients):
    told, received, kept, spans = serve(style, "--live", clients=clients)
    assert len(received.requests) == 12
    assert received == kept  # to the nanosecond
    assert received.linked == []
    assert {
        name: [Counter(work[1] for work in done if work[0] == "kernel"), sum(work[0] == "transfer" for work in done)]
        for name, done in received.requests.items()
    } == told
    assert all(kernels["spin"] for kernels, _copies in told.values())
    assert {span.name for span in spans} >= {"gpusense.process", *(["forward"] if style == "blocks" else [])}
    if style == "blocks":
        launched = sum(sum(kernels.values()) for kernels, _copies in told.values())
        assert inside(spans, "forward") == (launched, sum(copies for _kernels, copies in told.values()))


def test_from_the_file_after_the_server_ended(serve):
    """Without ``--live`` kernels are decoded at the end, and requests are gpusense's own blocks."""
    told, received, kept, spans = serve("file", clients=4)
    assert received == kept
    assert {name: [counts["kernel"], counts["transfer"]] for name, counts in received.counts().items()} == {
        name: [sum(kernels.values()), copies] for name, (kernels, copies) in told.items()
    }
    launched = sum(sum(kernels.values()) for kernels, _copies in told.values())
    assert sum(inside(spans, name)[0] for name in told) == launched
    (whole,) = [span for span in spans if span.name == "gpusense.session"]
    assert {span.trace_id for span in spans} == {whole.trace_id}
