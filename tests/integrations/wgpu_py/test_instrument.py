"""wgpu-py under instrumentation, in process: what is recorded, that results are the same, that nothing stays behind."""

import gc
import sys
import threading
import time
import weakref

import pytest
from support.wgpu_traced import Recording, all_back

from gpusense._records.records import GpuKernel, GpuMemoryTransfer, GpuSync
from gpusense.integrations import wgpu_py
from gpusense.integrations.wgpu_py import _queries

pytestmark = pytest.mark.usefixtures("settled")


@pytest.fixture
def with_copies(wgpu):
    made = Recording()
    assert wgpu_py.instrument(emit=made.records.extend, block=lambda: made.block, copies=True) is True
    yield made
    wgpu_py.uninstrument()


def methods() -> dict:
    """Every function of the host's classes, and of the objects that are patched on the instance."""
    from wgpu.backends.wgpu_native import _api

    owners = [kind for kind in vars(_api).values() if isinstance(kind, type)]
    found = {(owner.__name__, name): value for owner in owners for name, value in vars(owner).items()}
    found |= {("libf", name): value for name, value in vars(_api.libf).items()}
    found |= {("error_handler", name): value for name, value in vars(_api.error_handler).items()}
    return found


def test_everything_is_put_back(wgpu, programs) -> None:
    before = methods()
    wgpu_py.instrument(emit=lambda _: None, copies=True)
    during = methods()
    wgpu_py.uninstrument()
    assert methods() == before
    changed = {key for key in during if during[key] is not before.get(key)}
    assert ("libf", "wgpuQueueSubmit") in changed
    assert len(changed) > 20
    wgpu_py.uninstrument()


def test_twice_is_once(recording, programs) -> None:
    assert wgpu_py.instrument(emit=lambda _: pytest.fail("a second instrumentation")) is True
    programs.Compute(programs.device()).run()
    assert len(recording.of(GpuKernel)) == 1


@pytest.mark.parametrize("name", ["compute", "render"])
def test_results_are_the_same(wgpu, programs, name: str) -> None:
    bare = getattr(programs, name)()
    made = Recording()
    wgpu_py.instrument(emit=made.records.extend, copies=True)
    try:
        assert getattr(programs, name)() == bare
        assert any(bare)
        kinds = {attributes["operation"] for attributes in (record.attributes for record in made.of(GpuKernel))}
        assert kinds == {name}
        assert wgpu_py.statistics().errors == 0
    finally:
        wgpu_py.uninstrument()


def test_a_compute_pass_is_a_kernel(recording, programs) -> None:
    before = time.time_ns()
    work = programs.Compute(programs.device())
    work.run(label="first")
    (kernel,) = recording.of(GpuKernel)
    assert kernel.backend == "wgpu"
    assert (kernel.name, kernel.label, kernel.grid) == ("first", "first", (64, 1, 1))
    assert kernel.attributes["label_source"] == "pass"
    assert kernel.attributes["dispatches"] == 1
    slack = kernel.attributes["clock_uncertainty_ns"]
    assert before - slack <= kernel.start_ns < kernel.end_ns <= time.time_ns() + slack
    assert kernel.attributes["clock"] in ("calibrated", "causality")


def test_names_fall_back_from_pass_to_line(recording, programs) -> None:
    gpu = programs.device()
    work = programs.Compute(gpu)
    labelled = gpu.create_compute_pipeline(
        label="pipeline label",
        layout="auto",
        compute={"module": gpu.create_shader_module(code=programs.SHADER), "entry_point": "churn"},
    )
    encoder = gpu.create_command_encoder(label="encoder label")
    work.encode(encoder, label="pass label")
    work.encode(encoder)
    gpu.queue.submit([encoder.finish()])
    encoder = gpu.create_command_encoder()
    work.encode(encoder)
    started = encoder.begin_compute_pass()
    started.set_pipeline(labelled)
    started.end()
    encoder.begin_compute_pass().end()
    line = sys._getframe().f_lineno - 1
    gpu.queue.submit([encoder.finish()])
    found = [(kernel.name, kernel.attributes["label_source"]) for kernel in recording.of(GpuKernel)]
    assert found == [
        ("pass label", "pass"),
        ("encoder label", "encoder"),
        ("churn", "entry_point"),
        ("pipeline label", "pipeline"),
        (f"compute@test_instrument.py:{line}", "line"),
    ]
    assert recording.of(GpuKernel)[-1].label is None


def test_several_dispatches_have_no_one_grid(recording, programs) -> None:
    gpu = programs.device()
    work = programs.Compute(gpu)
    encoder = gpu.create_command_encoder()
    started = encoder.begin_compute_pass(label="two")
    started.set_pipeline(work.pipeline)
    started.set_bind_group(0, work.group)
    started.dispatch_workgroups(1)
    started.dispatch_workgroups(workgroup_count_x=2, workgroup_count_y=1)
    started.end()
    started = encoder.begin_compute_pass(label="one")
    started.set_pipeline(work.pipeline)
    started.set_bind_group(0, work.group)
    started.dispatch_workgroups(workgroup_count_x=2, workgroup_count_y=3)
    started.end()
    gpu.queue.submit([encoder.finish()])
    two, one = recording.of(GpuKernel)
    assert (two.grid, two.attributes["dispatches"]) == (None, 2)
    assert one.grid == (2, 3, 1)


def test_transfers_carry_bytes_label_usage_and_waiting(recording, programs) -> None:
    work = programs.Compute(programs.device(), count=1 << 16)
    work.write()
    work.run(4)
    work.read()
    write, read = recording.of(GpuMemoryTransfer)
    assert (write.name, write.direction, write.bytes) == ("write_buffer(numbers)", "cpu_to_gpu", 4 << 16)
    assert (read.name, read.direction, read.bytes) == ("read_buffer(numbers)", "gpu_to_cpu", 4 << 16)
    for transfer in (write, read):
        assert (transfer.label, transfer.timing, transfer.backend) == ("numbers", "host", "wgpu")
        assert transfer.usage == "COPY_SRC|COPY_DST|STORAGE"
        assert transfer.end_ns > transfer.start_ns
    assert write.wait_ns is None
    kernels = recording.of(GpuKernel)
    # The read waited for the passes that were still running when it began, and no longer than it took.
    running = max(0, kernels[-1].end_ns - read.start_ns)
    assert running - 1_000_000 <= read.wait_ns <= read.duration_ns


def test_parts_of_data_are_counted_as_parts(recording, programs) -> None:
    work = programs.Compute(programs.device())
    queue = work.gpu.queue
    queue.write_buffer(work.buffer, 0, bytes(64), 16)
    queue.write_buffer(work.buffer, 0, bytes(64), 0, 8)
    queue.write_buffer(work.buffer, 0, memoryview(bytes(64)), size=12)
    assert [transfer.bytes for transfer in recording.of(GpuMemoryTransfer)] == [48, 8, 12]


def test_textures_and_mapped_buffers(recording, programs) -> None:
    programs.render()
    write, read = recording.of(GpuMemoryTransfer)
    assert (write.name, read.name) == ("write_texture(picture)", "read_texture(picture)")
    assert write.bytes == read.bytes == 4 * 256 * 128
    assert write.usage == "COPY_SRC|COPY_DST|RENDER_ATTACHMENT"
    recording.records.clear()
    gpu = programs.device()
    buffer = gpu.create_buffer(
        label="in", size=64, usage=programs.U.MAP_WRITE | programs.U.COPY_SRC, mapped_at_creation=True
    )
    buffer.write_mapped(bytes(range(64)))
    buffer.unmap()
    target = gpu.create_buffer(label="out", size=64, usage=programs.U.MAP_READ | programs.U.COPY_DST)
    encoder = gpu.create_command_encoder()
    encoder.copy_buffer_to_buffer(buffer, 0, target, 0, 64)
    gpu.queue.submit([encoder.finish()])
    target.map_async("READ").sync_wait()
    view = target.read_mapped(copy=False)
    assert bytes(view) == bytes(range(64))
    del view
    assert bytes(target.read_mapped()) == bytes(range(64))
    target.unmap()
    names = [transfer.name for transfer in recording.of(GpuMemoryTransfer)]
    assert names == ["write_mapped(in)", "read_mapped(out)"]  # a view moves nothing
    waits = recording.of(GpuSync)  # none where the map was done before anyone waited
    assert len(waits) <= 1
    assert all((wait.name, wait.backend) == ("map_buffer", "wgpu") for wait in waits)


def test_copies_on_request_are_other_records_than_staging(with_copies, programs) -> None:
    work = programs.Compute(programs.device(), count=1 << 18)
    other = work.gpu.create_buffer(size=4 << 18, usage=programs.U.COPY_DST)
    work.write()
    encoder = work.gpu.create_command_encoder(label="move")
    encoder.copy_buffer_to_buffer(work.buffer, 0, other, 0, 4 << 18)
    work.gpu.queue.submit([encoder.finish()])
    staged, copied = sorted(with_copies.of(GpuMemoryTransfer), key=lambda record: record.timing, reverse=True)
    assert (staged.name, staged.timing, staged.direction) == ("write_buffer(numbers)", "host", "cpu_to_gpu")
    assert (copied.name, copied.timing, copied.direction) == ("copy_buffer_to_buffer(move)", "device", "on_device")
    assert copied.bytes == 4 << 18
    assert copied.bandwidth_mb_per_s > 0


def test_without_asking_no_copy_is_timed(recording, programs) -> None:
    programs.compute()
    assert all(transfer.timing == "host" for transfer in recording.of(GpuMemoryTransfer))


def test_a_program_that_times_itself_gets_its_own_figures(recording, programs) -> None:
    printed = programs.self_timed()
    ours = [kernel.duration_ns / 1e6 for kernel in recording.of(GpuKernel)]
    assert ours == pytest.approx(printed, rel=0.02)
    assert len(printed) == 3


def test_queries_written_twice_before_they_could_be_read_are_counted(recording, programs) -> None:
    gpu = programs.device(required_features=["timestamp-query"])
    work = programs.Compute(gpu)
    queries = gpu.create_query_set(type="timestamp", count=3)
    writes = {"query_set": queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
    encoder = gpu.create_command_encoder()
    work.encode(encoder, label="lost", timestamp_writes=writes)
    work.encode(encoder, label="kept", timestamp_writes=writes)
    work.encode(encoder, label="half", timestamp_writes={"query_set": queries, "end_of_pass_write_index": 2})
    gpu.queue.submit([encoder.finish()])
    assert [kernel.name for kernel in recording.of(GpuKernel)] == ["kept"]
    assert wgpu_py.statistics().untimed == {
        "a later pass wrote the same queries": 1,
        "the program times only one end of the pass": 1,
    }


def test_features_the_program_asked_for_stay(recording, programs) -> None:
    asked = ["float32-filterable"]
    gpu = programs.device(required_features=asked)
    assert asked == ["float32-filterable"]
    assert "float32-filterable" in gpu.features
    with pytest.raises(KeyError, match="no-such-feature"):
        programs.device(required_features=["no-such-feature"])
    assert wgpu_py.statistics().errors == 0


def test_devices_made_before(wgpu, programs) -> None:
    without, having = programs.device(), programs.device(required_features=["timestamp-query"])
    made = Recording()
    wgpu_py.instrument(emit=made.records.extend)
    try:
        for gpu in (without, having):
            work = programs.Compute(gpu)
            work.write()
            work.run(2, label="late")
            work.read()
        assert len(made.of(GpuKernel)) == 2
        assert len(made.of(GpuMemoryTransfer)) == 4
        (reason,) = wgpu_py.statistics().untimed
        assert "before instrument()" in reason
        assert wgpu_py.statistics().untimed[reason] == 2
    finally:
        wgpu_py.uninstrument()
    work.run()
    assert "_gpusense" not in gpu.__dict__


def test_uninstrument_hands_on_what_is_pending(wgpu, programs) -> None:
    made = Recording()
    wgpu_py.instrument(emit=made.records.extend)
    work = programs.Compute(programs.device())
    work.run(5)
    encoder = work.gpu.create_command_encoder()  # begun instrumented, ended bare
    work.encode(encoder)
    wgpu_py.uninstrument()
    work.gpu.queue.submit([encoder.finish()])
    assert len([record for record in made.records if type(record) is GpuKernel]) == 5
    assert wgpu_py.statistics() == wgpu_py.Statistics()
    assert wgpu_py.flush() is True


def test_thousands_of_passes_in_one_encoder(recording, programs) -> None:
    gpu = programs.device()
    encoder = gpu.create_command_encoder()
    for number in range(5000):
        encoder.begin_compute_pass(label=str(number)).end()
    gpu.queue.submit([encoder.finish()])
    assert [kernel.name for kernel in recording.of(GpuKernel)] == [str(number) for number in range(5000)]
    assert wgpu_py.statistics().untimed == {}
    assert all_back(gpu.__dict__["_gpusense"])


def test_more_passes_than_queries(recording, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_queries, "MOST", 4096)
    gpu = programs.device()
    encoder = gpu.create_command_encoder()
    for _ in range(3000):
        encoder.begin_compute_pass().end()
    gpu.queue.submit([encoder.finish()])
    assert len(recording.of(GpuKernel)) == 2048
    assert wgpu_py.statistics().untimed == {"more passes were under way than there are queries": 952}
    programs.Compute(gpu).run(2000)
    assert len(recording.of(GpuKernel)) == 4048


def test_commands_never_submitted_give_their_queries_back(recording, programs) -> None:
    gpu = programs.device()
    work = programs.Compute(gpu)
    for kind in ("encoder", "buffer"):
        for _ in range(30):
            encoder = gpu.create_command_encoder()
            for _ in range(100):
                encoder.begin_compute_pass().end()
            if kind == "buffer":
                encoder.finish()
            del encoder
            gc.collect()
            work.run()
    assert len(recording.of(GpuKernel)) == 60
    assert (wgpu_py.statistics().not_run, wgpu_py.statistics().untimed) == (6000, {})
    assert all_back(gpu.__dict__["_gpusense"])


def test_a_pass_that_wgpu_refuses_gives_its_queries_back(recording, programs) -> None:
    gpu = programs.device()
    encoder = gpu.create_command_encoder()
    with pytest.raises(TypeError):
        encoder.begin_compute_pass(nonsense=1)
    with pytest.raises(Exception, match=r"."):
        encoder.begin_render_pass(color_attachments=[{"view": None}])
    assert all_back(gpu.__dict__["_gpusense"])
    programs.Compute(gpu).run()
    assert len(recording.of(GpuKernel)) == 1


def test_submit_takes_what_wgpu_takes(recording, programs) -> None:
    gpu = programs.device()
    work = programs.Compute(gpu)

    def commands():
        for _ in range(2):
            encoder = gpu.create_command_encoder()
            work.encode(encoder)
            yield encoder.finish()

    gpu.queue.submit(commands())
    gpu.queue.submit(tuple(commands()))
    gpu.queue.submit(command_buffers=list(commands()))
    gpu.queue.submit(command_buffers=commands())
    gpu.queue.submit([])
    assert len(recording.of(GpuKernel)) == 8
    with pytest.raises(TypeError):
        gpu.queue.submit(None)
    with pytest.raises(AttributeError):
        gpu.queue.submit([object()])


def test_several_devices_do_not_mix(recording, programs) -> None:
    works = [programs.Compute(programs.device()) for _ in range(3)]
    for number, work in enumerate(works):
        for _ in range(10):
            work.run(label=f"device {number}")
    names = sorted(kernel.name for kernel in recording.of(GpuKernel))
    assert names == sorted(f"device {number}" for number in range(3) for _ in range(10))


def test_many_threads_submitting_to_one_device(recording, programs) -> None:
    work = programs.Compute(programs.device())
    failures = []

    def run() -> None:
        try:
            for _ in range(150):
                work.run()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(recording.of(GpuKernel)) == 600
    assert wgpu_py.statistics().errors == 0


def test_two_threads_first_passes_share_one_timer(wgpu, programs) -> None:
    gpu = programs.device(required_features=["timestamp-query"])
    work = programs.Compute(gpu)
    made = Recording()
    wgpu_py.instrument(emit=made.records.extend)
    try:
        barrier = threading.Barrier(8)

        def run() -> None:
            barrier.wait()
            work.run()

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made.of(GpuKernel)) == 8
    finally:
        wgpu_py.uninstrument()


def test_a_destroyed_device_ends_in_peace(recording, programs) -> None:
    work = programs.Compute(programs.device())
    work.run(3)
    work.gpu.destroy()
    assert len(recording.of(GpuKernel)) == 3  # drained first
    encoder = None
    try:
        encoder = work.gpu.create_command_encoder()
        work.encode(encoder)
    except Exception:
        encoder = None
    work.gpu.destroy()
    assert wgpu_py.flush(1)
    assert wgpu_py.statistics().errors == 0


def test_a_destroyed_query_set_is_counted(recording, programs) -> None:
    gpu = programs.device(required_features=["timestamp-query"])
    work = programs.Compute(gpu)
    queries = gpu.create_query_set(type="timestamp", count=2)
    writes = {"query_set": queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
    encoder = gpu.create_command_encoder()
    work.encode(encoder, timestamp_writes=writes)
    commands = encoder.finish()
    queries.destroy()
    gpu.queue.submit([commands])
    assert recording.of(GpuKernel) == []
    assert wgpu_py.statistics().untimed == {"the program destroyed its query set": 1}


def test_a_lost_device_is_left_alone(recording, programs) -> None:
    from wgpu.backends.wgpu_native import _api

    work = programs.Compute(programs.device())
    work.run(2)
    _api.error_handler.log_error("The WGPU device was lost (Unknown):\nthe driver crashed")
    work.run(2)
    assert recording.of(GpuKernel) == []
    untimed = wgpu_py.statistics().untimed
    assert untimed == {"a device was lost: the driver crashed": 4}


def test_a_device_outlives_its_last_reference_until_its_passes_are_read(recording, programs) -> None:
    def scope() -> weakref.ref:
        work = programs.Compute(programs.device())
        work.run(label="short-lived")
        return weakref.ref(work.gpu)

    reference = scope()
    gc.collect()
    assert [kernel.name for kernel in recording.of(GpuKernel)] == ["short-lived"]
    gc.collect()
    assert reference() is None


def test_blocks_are_those_current_when_the_pass_was_begun(recording, programs) -> None:
    class Block:
        path, block_id = ("outer", "inner"), 7

    class LeftOut(Block):
        recorded = False

    work = programs.Compute(programs.device())
    recording.block = Block()
    work.write()
    work.run()
    recording.block = LeftOut()
    work.run()
    recording.block = None
    work.run()
    found = [(kernel.path, kernel.block_id) for kernel in recording.of(GpuKernel)]
    assert found == [(("outer", "inner"), 7), ((), None), ((), None)]
    (write,) = recording.of(GpuMemoryTransfer)
    assert (write.path, write.block_id) == (("outer", "inner"), 7)


def test_an_emit_that_raises_does_not_reach_the_program(wgpu, programs) -> None:
    def emit(_records) -> None:
        raise RuntimeError("a sink of the user's")

    wgpu_py.instrument(emit=emit)
    try:
        programs.compute()
        assert wgpu_py.flush(5)
        assert wgpu_py.statistics().errors > 0
    finally:
        wgpu_py.uninstrument()


def test_nothing_is_left_behind_by_ten_thousand_passes(recording, programs) -> None:
    work = programs.Compute(programs.device())
    timer = work.gpu.__dict__["_gpusense"]
    for _ in range(40):
        work.run(50)
    assert wgpu_py.flush(10)
    recording.records.clear()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(160):
        work.run(50)
    assert wgpu_py.flush(10)
    assert len(recording.of(GpuKernel)) == 8000
    recording.records.clear()
    gc.collect()
    assert len(gc.get_objects()) - before < 200
    assert all_back(timer)
    assert timer.idle


def test_object_counts_are_the_programs_own(wgpu, programs) -> None:
    def counts() -> dict:
        gc.collect()
        return {name: row["count"] for name, row in wgpu.diagnostics.object_counts.get_dict().items()}

    programs.compute()
    before = counts()
    wgpu_py.instrument(emit=lambda _: None)
    try:
        work = programs.Compute(programs.device())
        work.run(10)
        assert wgpu_py.flush(5)
        during = counts()
    finally:
        wgpu_py.uninstrument()
    assert during["QuerySet"] == before["QuerySet"]
    assert during["Buffer"] == before["Buffer"] + 1
    del work
    assert counts() == before


def test_another_tools_time_stamps_stay(recording, programs) -> None:
    """A wrapper below ours that times the pass itself: its queries are written, ours go back unresolved."""
    from wgpu.backends.wgpu_native import _api

    gpu = programs.device(required_features=["timestamp-query"])
    work = programs.Compute(gpu)
    queries = gpu.create_query_set(type="timestamp", count=2)
    target = gpu.create_buffer(size=16, usage=programs.U.QUERY_RESOLVE | programs.U.COPY_SRC)
    theirs = {"query_set": queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
    inner = _api.GPUCommandEncoder.begin_compute_pass._gpusense_original
    encoder = gpu.create_command_encoder()
    encoder_begin = _api.GPUCommandEncoder.begin_compute_pass
    cell = next(cell for cell in encoder_begin.__closure__ if cell.cell_contents is inner)
    cell.cell_contents = lambda self, **options: inner(self, timestamp_writes=theirs, **options)
    try:
        work.encode(encoder)
    finally:
        cell.cell_contents = inner
    encoder.resolve_query_set(queries, 0, 2, target, 0)
    gpu.queue.submit([encoder.finish()])
    begin, end = gpu.queue.read_buffer(target).cast("Q")
    assert 0 < begin < end
    assert recording.of(GpuKernel) == []
    assert wgpu_py.statistics().untimed == {"another tool times the pass": 1}
    assert all_back(gpu.__dict__["_gpusense"])


def test_a_setting_that_leaves_wgpu_out(wgpu, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpusense

    gpusense.configure(backends=("cupti",))
    try:
        answer = wgpu_py.instrument()
        assert not answer
        assert "backends=cupti" in answer.reason
    finally:
        gpusense.configure(backends=None)
        gpusense.disable()


def test_the_clock_of_a_device_that_timed_nothing_is_told_in_words(recording, programs) -> None:
    used, idle = programs.device(), programs.device()
    programs.Compute(used).run()
    assert wgpu_py.flush(10)
    texts = [text for _, text in wgpu_py.statistics().clocks]
    assert len(texts) == 2
    assert not any("None" in text for text in texts)
    assert any(text.startswith(("calibrated", "causality")) for text in texts)
    assert idle is not used
