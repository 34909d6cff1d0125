"""Parents, links, names, attributes and times of spans, with an exporter in memory."""

import asyncio
import contextvars
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import StatusCode
from scripted import GPU, ScriptedTracer

from gpusense._capture.identity import rank_and_world
from gpusense._records.records import ComputeBlock, GpuCollective, GpuKernel, GpuMemset, GpuSync
from gpusense._runtime import clock


@pytest.fixture
def on(otel, app, tracer):
    assert otel.instrument(tracer=tracer, tracer_provider=app, metrics=False)
    return app.test_tracer


def by_name(spans):
    return {span.name: span for span in spans}


def parent_id(span):
    return span.parent.span_id if span.parent else None


def test_kernel_below_block_below_request(on, tracer, spans):
    with on.start_as_current_span("GET /"), tracer.trace("forward", {"batch": 64}):
        tracer.kernel("sgemm", start_ns=1_700_000_000_000_000_001, duration_ns=123_457)
    found = by_name(spans())
    request, forward, kernel = found["GET /"], found["forward"], found["gpu_kernel: sgemm"]
    assert parent_id(forward) == request.context.span_id
    assert parent_id(kernel) == forward.context.span_id
    assert {span.context.trace_id for span in (request, forward, kernel)} == {request.context.trace_id}
    assert (kernel.start_time, kernel.end_time) == (1_700_000_000_000_000_001, 1_700_000_000_000_123_458)
    assert forward.attributes["batch"] == 64
    assert forward.attributes["gpu.operation"] == "block"


def test_the_applications_span_inside_a_block_is_its_child(on, tracer, spans):
    with tracer.trace("step"), on.start_as_current_span("query"):
        tracer.kernel()
    found = by_name(spans())
    assert parent_id(found["query"]) == found["step"].context.span_id
    assert parent_id(found["gpu_kernel: sgemm"]) == found["query"].context.span_id
    assert found["step"].parent is None
    assert not trace.get_current_span().get_span_context().is_valid


def test_kernel_directly_below_a_span_that_is_not_ours(on, tracer, spans):
    with on.start_as_current_span("GET /"):
        tracer.kernel()
    found = by_name(spans())
    assert set(found) == {"GET /", "gpu_kernel: sgemm"}
    assert parent_id(found["gpu_kernel: sgemm"]) == found["GET /"].context.span_id


def test_threads_and_executors_keep_their_own_parents(on, tracer, spans):
    barrier = threading.Barrier(4)

    def work(number):
        with on.start_as_current_span(f"request {number}"), tracer.trace("forward"):
            barrier.wait(10)
            tracer.kernel(f"k{number}")
            barrier.wait(10)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    found = spans()
    ids = {span.context.span_id: span for span in found}
    for number in range(4):
        kernel = next(span for span in found if span.name == f"gpu_kernel: k{number}")
        assert ids[parent_id(ids[parent_id(kernel)])].name == f"request {number}"


def test_context_carried_into_a_thread(on, tracer, spans):
    def work():
        with tracer.trace("inner"):
            tracer.kernel()

    with on.start_as_current_span("outer"):
        carried = contextvars.copy_context()
        thread = threading.Thread(target=carried.run, args=(work,))
        thread.start()
        thread.join()
    found = by_name(spans())
    assert parent_id(found["inner"]) == found["outer"].context.span_id


def test_interleaved_tasks(on, tracer, spans):
    async def request(number):
        with on.start_as_current_span(f"request {number}"), tracer.trace("forward"):
            await asyncio.sleep(0)
            tracer.kernel(f"k{number}")
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(*(request(number) for number in range(3)))

    asyncio.run(main())
    found = spans()
    ids = {span.context.span_id: span for span in found}
    for number in range(3):
        kernel = next(span for span in found if span.name == f"gpu_kernel: k{number}")
        assert ids[parent_id(ids[parent_id(kernel)])].name == f"request {number}"


def test_generator_closed_in_another_context_leaves_no_trace(on, tracer, spans, caplog):
    def generator():
        with tracer.trace("lazily"):
            yield 1

    made = generator()
    contextvars.copy_context().run(next, made)
    made.close()
    assert not trace.get_current_span().get_span_context().is_valid
    assert [span.name for span in spans()] == ["lazily"]
    assert not caplog.records


def test_block_that_ends_after_a_span_begun_inside_it(on, tracer, spans):
    block = tracer.open_scope("early")
    other = trace.use_span(on.start_span("longer"), end_on_exit=True)
    other.__enter__()
    tracer.close_scope(block)
    assert trace.get_current_span().name == "longer"
    other.__exit__(None, None, None)
    assert not trace.get_current_span().get_span_context().is_valid
    assert {span.name for span in spans()} == {"early", "longer"}


def test_late_kernels_find_their_closed_block(on, tracer, spans):
    with tracer.trace("step") as block:
        pass
    assert spans("step")
    tracer.kernel("late", block_id=block.block_id)
    assert parent_id(spans("gpu_kernel: late")[0]) == spans("step")[0].context.span_id


def test_unsampled_parent_gives_no_spans_but_counts(otel, tracer):
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel.instrument(tracer=tracer, tracer_provider=provider, metrics=False)
    with provider.get_tracer("app").start_as_current_span("GET /"), tracer.trace("forward"):
        tracer.kernel()
    with tracer.trace("alone"):
        tracer.kernel()
    assert otel.flush(10)
    assert exporter.get_finished_spans() == ()
    status = otel.status()
    assert status["dropped"] == {"unsampled": 4}
    assert status["received"] == 4


def test_work_under_no_span_is_counted_not_sent(on, otel, tracer, spans):
    tracer.kernel()
    assert spans() == []
    assert otel.status()["dropped"] == {"no_parent": 1}


def test_root_span_takes_what_has_no_parent(on, otel, tracer, spans):
    root = otel.start_root_span("train", {"epochs": 3})
    tracer.kernel()
    with tracer.trace("step"):
        tracer.kernel("inner")
    root.end(3)
    found = by_name(spans())
    train = found["train"]
    assert parent_id(found["gpu_kernel: sgemm"]) == train.context.span_id == parent_id(found["step"])
    assert train.attributes["process.exit.code"] == 3
    assert train.attributes["epochs"] == 3
    assert train.status.status_code is StatusCode.ERROR
    assert train.parent is None
    root.end(0)
    assert len(spans("train")) == 1


def test_a_hang_is_a_span_of_its_own(on, tracer, spans):
    now = clock.now_ns()
    wait = {"since_ns": now - 9, "name": "AllReduce", "sequence": 41, "rank": 0, "absent": [1, 3], "ranks": 4}
    tracer.meta["hang"] = [
        {"noticed_ns": now, "after_s": 30.0, "text": "rank 0 waits", "wait": wait},
        {"noticed_ns": now + 5, "after_s": 60.0, "last_completed_ns": None},
    ]
    with on.start_as_current_span("GET /"):
        tracer.kernel()
    tracer.kernel()
    assert len(spans("gpusense.hang")) == len(spans("gpusense.hang")) == 2
    waits, other = spans("gpusense.hang")
    assert (waits.start_time, waits.end_time, waits.status.status_code) == (now - 9, now, StatusCode.ERROR)
    assert dict(waits.attributes) == {
        "gpusense.hang.text": "rank 0 waits", "gpusense.hang.absent": [1, 3], "gpu.collective.name": "AllReduce",
        "gpu.collective.sequence": 41, "gpu.communicator.rank": 0, "gpu.communicator.size": 4,
    }  # fmt: skip
    assert other.attributes["gpusense.hang.text"] == "nothing completed for 60 s although there was work"


@pytest.mark.parametrize("steps", [(3600, 3600), (-3600, -3600), (0, 3600), (0, -3600)])
def test_the_span_of_the_process_lies_around_its_work_whatever_the_wall_clock_does(
    on, otel, tracer, spans, monkeypatch, steps
):
    """Blocks and work come from the tracer on the session's clock."""
    wall = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall() + steps[0] * 10**9)
    root = otel.start_root_span("serve")
    start = clock.now_ns()
    monkeypatch.setattr(time, "time_ns", lambda: wall() + steps[1] * 10**9)
    tracer.kernel(start_ns=start, duration_ns=10)
    root.end(0)
    found = by_name(spans())
    serve, kernel = found["serve"], found["gpu_kernel: sgemm"]
    assert parent_id(kernel) == serve.context.span_id
    assert serve.start_time <= kernel.start_time <= kernel.end_time <= serve.end_time


def test_traceparent_joins_the_process_to_a_trace(otel, app, tracer, spans, monkeypatch):
    monkeypatch.setenv("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    monkeypatch.setenv("TRACESTATE", "vendor=1")
    otel.instrument(tracer=tracer, tracer_provider=app, metrics=False)
    tracer.kernel("before")
    root = otel.start_root_span()
    with tracer.trace("step"):
        pass
    root.end(0)
    found = by_name(spans())
    assert parent_id(found["gpu_kernel: before"]) == parent_id(found["gpusense.process"]) == 0xB7AD6B7169203331
    assert parent_id(found["step"]) == found["gpusense.process"].context.span_id
    assert found["step"].context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert found["step"].context.trace_state.get("vendor") == "1"
    assert found["gpusense.process"].status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("header", ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", "rubbish", ""])
def test_unsampled_or_broken_traceparent(otel, app, tracer, spans, monkeypatch, header):
    monkeypatch.setenv("TRACEPARENT", header)
    otel.instrument(tracer=tracer, tracer_provider=app, metrics=False)
    tracer.kernel()
    assert spans() == []
    assert otel.status()["dropped"] == {"unsampled" if header.startswith("00") else "no_parent": 1}


def test_links_of_a_block(on, tracer, spans):
    requests = [on.start_span(f"request {number}") for number in range(3)]
    with tracer.trace("decode", links=[span.get_span_context() for span in requests[:2]] + [requests[2], "rubbish"]):
        tracer.kernel()
    decode = spans("decode")[0]
    assert [link.context.span_id for link in decode.links] == [span.get_span_context().span_id for span in requests]


def test_ambiguous_kernel_is_linked_to_every_candidate_and_child_of_none(on, tracer, spans):
    blocks = []

    def work(name):
        with on.start_as_current_span(f"request {name}"), tracer.trace(name) as block:
            blocks.append(block)

    for name in ("a", "b"):
        thread = threading.Thread(target=work, args=(name,))
        thread.start()
        thread.join()
    tracer.kernel("shared", block_id=None, ambiguous=tuple(block.block_id for block in blocks))
    found = by_name(spans())
    kernel = found["gpu_kernel: shared"]
    assert {link.context.span_id for link in kernel.links} == {found[name].context.span_id for name in ("a", "b")}
    assert kernel.parent is None
    assert kernel.attributes["gpu.attribution.candidates"] == 2


def test_ambiguous_kernel_below_the_block_around_the_candidates(on, tracer, spans):
    with tracer.trace("around") as around:
        with tracer.trace("a") as a:
            pass
        with tracer.trace("b") as b:
            pass
    tracer.kernel("shared", block_id=around.block_id, ambiguous=(a.block_id, b.block_id))
    tracer.kernel("shared", block_id=None, ambiguous=(a.block_id, b.block_id))
    found = spans()
    around_id = by_name(found)["around"].context.span_id
    assert [parent_id(span) for span in found if span.name == "gpu_kernel: shared"] == [around_id, around_id]


def test_error_leaves_a_status(on, tracer, spans):
    with pytest.raises(ValueError, match="no"), tracer.trace("step"):
        raise ValueError("no")
    status = spans("step")[0].status
    assert status.status_code is StatusCode.ERROR
    assert status.description == "ValueError"


def test_names_and_attributes_of_every_kind(on, tracer, spans):
    now = time.time_ns()
    with tracer.trace("step") as block:
        tracer.kernel(
            "gemm",
            full_name="void gemm<float, 128>(float*)",
            backend="cuda",
            context=1,
            stream=7,
            grid=(128, 1, 1),
            block=(256, 1, 1),
            registers_per_thread=64,
            static_shared_bytes=1024,
            dynamic_shared_bytes=512,
            occupancy=0.5,
            is_slow=True,
            graph_id=9,
        )
        tracer.transfer("mesh_upload", label="mesh_upload", size=10_485_760, duration_ns=25_000_000, source="pageable")
        tracer.record(
            [
                GpuMemset("memset", 4096, now, now + 1, 0, block_id=block.block_id),
                GpuSync("stream_synchronize", now, now + 5, 0, source_line="train.py:41 step", block_id=block.block_id),
                ComputeBlock("normalise", now, now + 9, elements=10_000, block_id=block.block_id),
                GpuCollective(
                    "AllReduce",
                    now,
                    now + 3,
                    "ab",
                    rank=1,
                    sequence=41,
                    block_id=block.block_id,
                    device_start_ns=now + 2,
                    device_end_ns=now + 8,
                    channels=((0, now + 2, now + 8),),
                ),
            ]
        )
    found = by_name(spans())
    assert dict(found["gpu_kernel: gemm"].attributes) == {
        "gpu.operation": "kernel",
        "gpu.kernel.name": "void gemm<float, 128>(float*)",
        "gpu.stream.id": 7,
        "gpu.kernel.grid": "128,1,1",
        "gpu.kernel.block": "256,1,1",
        "gpu.is_slow": True,
        "gpu.kernel.shared_memory": 1536,
        "gpu.kernel.registers": 64,
        "gpu.kernel.occupancy": 0.5,
        "gpu.graph.id": 9,
        "gpu.backend": "cuda",
        "gpu.device.index": 0,
        "hw.name": "Test GPU",
    }
    assert found["step"].attributes["gpu.backend"] == "host"
    upload = found["gpu_transfer: mesh_upload"].attributes
    assert upload["gpu.transfer.bytes"] == 10_485_760
    assert upload["gpu.transfer.bandwidth"] == pytest.approx(419_430_400)
    assert upload["gpu.transfer.direction"] == "cpu_to_gpu"
    waited = found["gpu_sync: stream_synchronize"].attributes
    assert waited["code.line.number"] == 41
    assert (waited["code.file.path"], waited["code.function.name"]) == ("train.py", "step")
    assert found["compute_block: normalise"].attributes["compute.elements"] == 10_000
    assert "gpu_memset: memset" in found
    together = found["gpu_collective: AllReduce"]
    assert (together.start_time, together.end_time) == (now + 2, now + 8)  # on the device, as all work
    assert (together.attributes["gpu.communicator.id"], together.attributes["gpu.collective.sequence"]) == ("ab", 41)


def test_scope_and_resource(on, tracer, spans):
    with tracer.trace("step"):
        tracer.kernel()
    kernel = spans("gpu_kernel: sgemm")[0]
    scope = kernel.instrumentation_scope
    assert scope.name == "gpusense"
    assert scope.version
    assert scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"
    assert scope.attributes["gpu.backend"] == "cuda"
    assert scope.attributes["hw.id"] == GPU.uuid
    assert scope.attributes["gpu.sm_count"] == 132
    assert scope.attributes["gpu.device.index"] == 0
    assert scope.attributes["gpu.threshold_ns"] == 100_000
    attributes = kernel.resource.attributes
    assert attributes["service.name"] == "shop"
    assert attributes["gpu.uuids"] == (GPU.uuid,)
    assert attributes["gpu.cupti.version"] == "13.0"
    assert attributes["hw.driver_version"] == "550.54.15"
    assert list(attributes["gpu.capabilities"]) == ["kernels", "transfers"]


def test_spans_say_themselves_where_they_ran_and_the_process_what_it_is(otel, app, tracer, spans, monkeypatch):
    """Jaeger drops the scope, and hides the resource."""
    monkeypatch.setattr(sys, "argv", ["/srv/train.py", "--secret"])
    other = GPU._replace(index=1, cuda_index=1, name="Other GPU", uuid="GPU-2")
    tracer.devices, tracer.meta["frameworks"] = (GPU, other), {"torch": "2.11", "triton": "3.6"}
    otel.instrument(tracer=tracer, tracer_provider=app, metrics=False, max_spans_per_s=8)
    root = otel.start_root_span()
    for device in (0, 1):
        for duration in range(8):
            tracer.kernel("k", device=device, duration_ns=1000 + duration)
    root.end(0)
    found = spans("gpu_kernel: k")
    assert {span.attributes["hw.name"] for span in found if "gpu.aggregate.count" in span.attributes} >= {"Test GPU"}
    for span in found:
        device = (GPU, other)[span.attributes["gpu.device.index"]]
        assert (span.attributes["gpu.backend"], span.attributes["hw.name"]) == ("cuda", device.name)
        assert span.attributes["hw.name"] == span.instrumentation_scope.attributes["hw.name"]
    process = spans("gpusense.process")[0]
    assert (process.attributes["process.command"], process.attributes["process.pid"]) == ("train.py", os.getpid())
    assert process.resource.attributes["process.pid"] == tracer.meta["pid"]
    assert process.resource.attributes["compute.library"] == ("torch", "triton")


def test_what_is_hidden_of_a_device_is_hidden_on_its_spans(otel, app, tracer, spans):
    def redact(key, value):
        return None if key == "hw.name" else f"<{value}>"

    otel.instrument(tracer=tracer, tracer_provider=app, metrics=False, redact=redact)
    with tracer.trace("step"):
        tracer.kernel()
    kernel = next(span for span in spans() if span.attributes["gpu.operation"] == "<kernel>")
    assert kernel.attributes["gpu.backend"] == "<cuda>"  # and not twice
    assert "hw.name" not in kernel.attributes


def test_ranks_stand_on_the_resource(otel, app, tracer, spans, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "3")
    monkeypatch.setenv("PMI_SIZE", "8")
    monkeypatch.setenv("SLURM_PROCID", "4")  # alone it says nothing
    tracer.meta["rank"], tracer.meta["world_size"] = rank_and_world()
    otel.instrument(tracer=tracer, tracer_provider=app, metrics=False)
    with tracer.trace("step"):
        pass
    attributes = spans("step")[0].resource.attributes
    assert (attributes["gpu.rank"], attributes["gpu.world_size"]) == (3, 8)


class Scalar:
    """What a numpy scalar looks like."""

    def __init__(self, value):
        self.value = value

    def item(self):
        return self.value


def test_bad_values_cost_themselves(on, otel, tracer, spans):
    users = {
        "nan": float("nan"),
        "scalar": Scalar(1.5),
        "huge": 2**70,
        "object": object(),
        "none": None,
        "mixed": [1, "a"],
        "bytes": b"\xff\x00ok",
        "text": "\ud800broken",
        3: "no key",
    }
    with tracer.trace("step", users):
        tracer.kernel("k\udcff\x00", occupancy=float("inf"), grid=[2, 1, 1], stream=2**64)
        tracer.record([GpuKernel("float", 1.7e18, 1.7e18 + 512, block_id=1)])
        tracer.record([GpuKernel("nan", float("nan"), 5, block_id=1)])
        tracer.record([GpuKernel("backwards", 10, 5, block_id=1)])
        tracer.record([GpuKernel("zero", 0, 5, block_id=1)])
    found = by_name(spans())
    step = found["step"].attributes
    assert step["scalar"] == 1.5
    assert step["huge"] == hex(2**70)
    assert step["text"] == "\\ud800broken"
    assert {"nan", "object", "none", "mixed"}.isdisjoint(step)
    kernel = next(span for name, span in found.items() if name.startswith("gpu_kernel: k"))
    kernel.name.encode()
    assert kernel.attributes["gpu.stream.id"] == hex(2**64)
    assert kernel.attributes["gpu.kernel.grid"] == "2,1,1"
    assert "gpu.kernel.occupancy" not in kernel.attributes
    assert type(found["gpu_kernel: float"].start_time) is int
    assert otel.status()["dropped"] == {"invalid": 3}


def test_redaction_of_names_and_attributes(otel, app, tracer, spans):
    def redact(key, value):
        if key == "boom":
            raise RuntimeError
        return None if key in ("span.name", "gpu.kernel.name") else value

    otel.instrument(tracer=tracer, tracer_provider=app, metrics=False, redact=redact)
    with tracer.trace("secret", {"boom": 1, "kept": 2}):
        tracer.kernel("secret_kernel")
    found = spans()
    assert {span.name for span in found} == {"block", "gpu_kernel"}
    assert "secret" not in repr([(span.name, dict(span.attributes)) for span in found])
    assert next(span for span in found if span.name == "block").attributes["kept"] == 2


def test_over_budget_folds_and_keeps_the_slowest(otel, app, tracer, spans):
    otel.instrument(tracer=tracer, tracer_provider=app, metrics=False, max_spans_per_s=100)
    now = time.time_ns()
    with tracer.trace("step"):
        for number in range(1000):
            tracer.kernel("sgemm", start_ns=now + number, duration_ns=100_000 + number, stream=7)
        tracer.kernel("rare", start_ns=now, duration_ns=5, stream=7)
    found = spans("gpu_kernel: sgemm")
    folded = [span for span in found if "gpu.aggregate.count" in span.attributes]
    single = [span for span in found if "gpu.aggregate.count" not in span.attributes]
    assert len(folded) == 1
    assert len(single) + folded[0].attributes["gpu.aggregate.count"] == 1000
    shortest = min(span.end_time - span.start_time for span in single)
    assert folded[0].attributes["gpu.threshold_ns"] == shortest
    assert folded[0].attributes["gpu.aggregate.max_ns"] < shortest
    assert folded[0].attributes["gpu.aggregate.min_ns"] == 100_000
    assert folded[0].attributes["gpu.aggregate.total_ns"] == sum(
        100_000 + number for number in range(1000 - len(single))
    )
    assert folded[0].start_time == now
    status = otel.status()
    assert status["exported"] + status["folded"] == status["received"] == 1002
    assert len(spans()) <= 101


def test_applications_provider_set_later(otel, tracer, monkeypatch):
    from opentelemetry.util._once import Once

    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    otel.instrument(tracer=tracer, metrics=False)
    with tracer.trace("early"):
        tracer.kernel()
    assert otel.flush(10)
    assert otel.status()["dropped"] == {"no_provider": 2}
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with tracer.trace("late"):
        tracer.kernel()
    assert otel.flush(10)
    assert {span.name for span in exporter.get_finished_spans()} == {"late", "gpu_kernel: sgemm"}
    assert trace.get_tracer_provider() is provider
    provider.shutdown()


def test_a_processor_subclass_sees_our_spans(otel, tracer):
    class Filter(SimpleSpanProcessor):
        def on_end(self, span):
            if span.name != "hidden":
                super().on_end(span)

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Filter(exporter))
    otel.instrument(tracer=tracer, tracer_provider=provider, metrics=False)
    for name in ("hidden", "shown"):
        with tracer.trace(name):
            pass
    assert otel.flush(10)
    assert [span.name for span in exporter.get_finished_spans()] == ["shown"]


def test_provider_without_exporter_is_counted(otel, tracer):
    otel.instrument(tracer=tracer, tracer_provider=TracerProvider(shutdown_on_exit=False), metrics=False)
    with tracer.trace("step"):
        pass
    assert otel.flush(10)
    assert otel.status()["dropped"] == {"no_exporter": 1}


def test_instrumenting_again_after_the_end(otel, app, tracer, spans):
    for _ in range(2):
        second = ScriptedTracer()
        assert otel.instrument(tracer=second, tracer_provider=app, metrics=False)
        assert otel.instrument(tracer=tracer, tracer_provider=app)  # already active: nothing changes
        with app.test_tracer.start_as_current_span("GET /"):
            second.kernel()
        spans()
        otel.uninstrument()
    found = app.test_exporter.get_finished_spans()
    assert [span.name for span in found].count("gpu_kernel: sgemm") == 2
    with app.test_tracer.start_as_current_span("after"):
        pass


@pytest.mark.parametrize(
    "setting",
    [
        {"max_spans_per_s": -1},
        {"max_spans_per_s": float("nan")},
        {"max_spans_per_s": "many"},
        {"redact": "not callable"},
        {"exit_timeout_s": "2 s"},
        {"exit_timeout_s": -1},
        {"endpoint": "localhost:4318"},
        {"endpoint": 4318},
    ],
)
def test_bad_settings_are_refused(otel, app, tracer, setting):
    with pytest.raises(ValueError, match=r"must be|is not a URL"):
        otel.instrument(tracer=tracer, tracer_provider=app, **setting)
    assert otel.status() is None


def test_full_queue_drops_and_counts(app, tracer):
    from gpusense.exporters.opentelemetry._worker import Inbox

    inbox = Inbox(limit=10)
    inbox.put(list(range(8)))
    inbox.put(list(range(8)))
    inbox.put(list(range(8)))
    assert len(inbox.take()) == 10
    assert (inbox.received, inbox.refused) == (24, 14)
