"""A program goes on as without instrumentation: what it sees of itself, how often it waits, what its mistakes do."""

import gc
import threading
import time
import weakref

import pytest
from support.wgpu_traced import Recording, all_back

from gpusense._records.records import GpuKernel, GpuMemoryTransfer
from gpusense.integrations import wgpu_py
from gpusense.integrations.wgpu_py import _hooks, _host, _queries

pytestmark = pytest.mark.usefixtures("settled")


@pytest.fixture
def with_copies(wgpu):
    made = Recording()
    assert wgpu_py.instrument(emit=made.records.extend, copies=True) is True
    yield made
    wgpu_py.uninstrument()


def hooks():
    return wgpu_py._installed.now.hooks


def soon(what, timeout_s: float = 15) -> bool:
    end = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_features_that_were_added_do_not_show(with_copies, programs) -> None:
    asked, bare = programs.device(required_features=["timestamp-query"]), programs.device()
    assert "timestamp-query" in asked.features
    assert not {name for name in bare.features if name.startswith("timestamp")}
    assert asked.create_query_set(type="timestamp", count=2) is not None
    with pytest.raises(programs.wgpu.GPUValidationError, match="TIMESTAMP_QUERY"):
        bare.create_query_set(type="timestamp", count=2)
    bare.create_query_set(type="occlusion", count=2)
    programs.Compute(bare).run(label="timed")
    assert [kernel.name for kernel in with_copies.of(GpuKernel)] == ["timed"]


def test_a_device_with_added_features_is_timed_by_a_later_instrument(wgpu, programs) -> None:
    wgpu_py.instrument(emit=lambda _: None)
    work = programs.Compute(programs.device())
    wgpu_py.uninstrument()
    made = Recording()
    wgpu_py.instrument(emit=made.records.extend)
    try:
        work.run(label="later")
        assert [kernel.name for kernel in made.of(GpuKernel)] == ["later"]
    finally:
        wgpu_py.uninstrument()


def test_native_object_counts_are_the_programs_own(wgpu, programs) -> None:
    def counts() -> dict:
        gc.collect()
        return {name: row["count"] for name, row in wgpu.diagnostics.wgpu_native_counts.get_dict().items()}

    def run() -> list[dict]:
        found = [counts()]
        work = programs.Compute(programs.device())
        found.append(counts())
        work.run(10)
        work.read()
        wgpu_py.flush(5)
        found.append(counts())
        del work
        assert soon(lambda: counts() == found[0])
        return found

    programs.compute()
    gc.collect()
    bare = run()
    wgpu_py.instrument(emit=lambda _: None)
    try:
        assert run() == bare
        assert bare[2]["Buffer"] == bare[0]["Buffer"] + 1
    finally:
        wgpu_py.uninstrument()


def test_what_a_quiet_program_left_is_handed_on(recording, programs) -> None:
    work = programs.Compute(programs.device())
    work.write()
    work.run(3, label="last")
    assert soon(lambda: len(recording.records) == 4)
    assert sorted(record.name for record in recording.records) == ["last"] * 3 + ["write_buffer(numbers)"]


def test_a_device_that_is_let_go_is_read_and_dies(recording, programs) -> None:
    work = programs.Compute(programs.device())
    work.run(3, label="last")
    gpu, timer = weakref.ref(work.gpu), weakref.ref(work.gpu.__dict__["_gpusense"])
    del work
    gc.collect()
    assert gpu() is None
    assert soon(lambda: timer() is None)
    assert [record.name for record in recording.records] == ["last"] * 3


def test_a_submit_that_was_taken_before_is_seen(wgpu, programs) -> None:
    work = programs.Compute(programs.device(required_features=["timestamp-query"]))
    submit = work.gpu.queue.submit
    made = Recording()
    wgpu_py.instrument(emit=made.records.extend)
    try:
        encoder = work.gpu.create_command_encoder()
        work.encode(encoder, label="bound")
        submit([encoder.finish()])
        assert [kernel.name for kernel in made.of(GpuKernel)] == ["bound"]
        assert wgpu_py.statistics().not_run == 0
    finally:
        wgpu_py.uninstrument()


def test_a_read_polls_for_nobody_else(recording, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its wait is taken from its own mapping; a poll of ours before it would be a second wait."""
    work = programs.Compute(programs.device(), count=1 << 16)
    work.run()
    with monkeypatch.context() as patch:
        patch.setattr(hooks().host, "poll", lambda *_: pytest.fail("a poll of ours"))
        work.read()
    (read,) = recording.of(GpuMemoryTransfer)
    assert 0 < read.wait_ns <= read.duration_ns


def test_the_programs_own_mistakes_do_not_end_the_tracing(with_copies, programs) -> None:
    work = programs.Compute(programs.device())
    other = work.gpu.create_buffer(size=4 * work.count, usage=programs.U.COPY_DST)
    encoder = work.gpu.create_command_encoder()
    for _ in range(_hooks.MAX_ERRORS + 5):
        with pytest.raises(TypeError):
            encoder.copy_buffer_to_buffer(work.buffer)
    encoder.copy_buffer_to_buffer(work.buffer, 0, other, 0, 64)
    work.gpu.queue.submit([encoder.finish()])
    for _ in range(_hooks.MAX_ERRORS + 5):
        with pytest.raises(programs.wgpu.GPUError):
            encoder.copy_buffer_to_buffer(work.buffer, 0, other, 0, 64)
    work.run(label="after")
    assert [kernel.name for kernel in with_copies.of(GpuKernel)] == ["after"]
    assert [copy.bytes for copy in with_copies.of(GpuMemoryTransfer)] == [64]
    statistics = wgpu_py.statistics()
    assert (statistics.errors, statistics.untimed) == (0, {})
    del encoder
    gc.collect()
    assert all_back(work.gpu.__dict__["_gpusense"])


def test_many_own_queries_are_read_together(recording, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = programs.device(required_features=["timestamp-query"])
    work = programs.Compute(gpu)
    queries = gpu.create_query_set(type="timestamp", count=400)
    runs = []
    resolve = _host.Host.resolve
    monkeypatch.setattr(_host.Host, "resolve", lambda self, *given: (runs.extend(given[2]), resolve(self, *given))[1])
    encoder = gpu.create_command_encoder()
    for number in range(200):
        writes = {"beginning_of_pass_write_index": 2 * number, "end_of_pass_write_index": 2 * number + 1}
        work.encode(encoder, label=str(number), timestamp_writes={"query_set": queries, **writes})
    gpu.queue.submit([encoder.finish()])
    assert [kernel.name for kernel in recording.of(GpuKernel)] == [str(number) for number in range(200)]
    assert [count for _, _, count, _ in runs] == [400]


def test_given_up_after_errors_what_is_not_timed_is_counted(recording, programs) -> None:
    work = programs.Compute(programs.device())
    for _ in range(_hooks.MAX_ERRORS):
        hooks().fail("a test")
    work.run(3)
    assert list(wgpu_py.statistics().untimed.values()) == [3]


@pytest.mark.parametrize("own", [False, True])
def test_a_submit_that_is_lost_without_a_word_has_no_times(wgpu, programs, monkeypatch, own: bool) -> None:
    """Its queries still hold an earlier pass's stamps."""
    from wgpu.backends.wgpu_native import _api

    submit, lose = _api.libf.wgpuQueueSubmit, []
    monkeypatch.setattr(_api.libf, "wgpuQueueSubmit", lambda *given: None if lose else submit(*given))
    monkeypatch.setattr(_queries, "MOST", _queries.A_SET)  # so that queries are soon lent again
    made = Recording()
    wgpu_py.instrument(emit=made.records.extend)
    try:
        gpu = programs.device(required_features=["timestamp-query"])
        work = programs.Compute(gpu)
        queries = gpu.create_query_set(type="timestamp", count=2)
        writes = {"query_set": queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
        options = {"timestamp_writes": writes} if own else {}
        for _ in range(1 if own else _queries.A_SET // 2):
            work.run(label="ran", **options)
        count = len(made.of(GpuKernel))
        monkeypatch.setattr(hooks().host, "_submit", submit)
        lose.append(True)
        work.run(label="lost", **options)
        lose.clear()
        assert len(made.of(GpuKernel)) == count
        assert wgpu_py.statistics().untimed == {"its queries were not written again: its commands did not run": 1}
        work.run(label="ran", **options)
        assert {kernel.name for kernel in made.of(GpuKernel)} == {"ran"}
        assert len(made.records) == count + 1
    finally:
        wgpu_py.uninstrument()


def test_a_poll_that_does_not_return_holds_nobody_up(recording, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    work = programs.Compute(programs.device())
    work.run()
    over = threading.Event()
    monkeypatch.setattr(hooks().host, "poll", lambda *_: over.wait(60))
    try:
        began = time.monotonic()
        assert wgpu_py.flush(0.5) is False
        work.gpu.destroy()
        wgpu_py.uninstrument(0.5)
        assert time.monotonic() - began < 20
    finally:
        over.set()
