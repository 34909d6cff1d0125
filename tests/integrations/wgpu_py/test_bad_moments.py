"""What arrives in the middle of something: finalizers, signals, forks, destroyed devices, answers after the end."""

import gc
import sys
import threading
import weakref

import pytest
from support.wgpu_traced import Recording, all_back

from gpusense._records.records import GpuKernel
from gpusense._runtime import import_hook
from gpusense.integrations import wgpu_py
from gpusense.integrations.wgpu_py import _host, _timer, _transfers


def timer_of(gpu):
    return gpu.__dict__["_gpusense"]


def test_an_answer_that_comes_after_uninstrument(both) -> None:
    """What was asked for is answered at the program's next submit: by then nothing else of ours is left."""
    both("""
        import gc, sys
        work = programs.Compute(programs.device())
        work.write()
        work.run(600)
        wgpu_py = sys.modules.get("gpusense.integrations.wgpu_py")
        if wgpu_py is not None:
            assert any(timer._flying for timer in wgpu_py._installed.now.hooks.timers())
            wgpu_py.uninstrument(0)
            gc.collect()
        print(len(work.read()))
    """)


def test_a_device_destroyed_in_the_middle_of_a_step(both) -> None:
    """As a signal handler may: the submit that was about to follow would abort the process."""
    both("""
        import sys
        from wgpu.backends.wgpu_native import _api
        work = programs.Compute(programs.device())
        work.run(600)
        finish = _api.libf.wgpuCommandEncoderFinish
        def destroy_in_between(*arguments):
            made = finish(*arguments)
            _api.libf.wgpuCommandEncoderFinish = finish
            work.gpu.destroy()
            return made
        wgpu_py = sys.modules.get("gpusense.integrations.wgpu_py")
        if wgpu_py is None:
            work.gpu.destroy()
        else:
            _api.libf.wgpuCommandEncoderFinish = destroy_in_between
            assert wgpu_py.flush(5)
            assert _api.libf.wgpuCommandEncoderFinish is finish
            assert wgpu_py.statistics().untimed == {"the program destroyed the device": 600}
            assert wgpu_py.statistics().errors == 0
        print("alive")
    """)


def test_a_device_destroyed_while_results_are_on_their_way(both) -> None:
    """The map has succeeded, the device is gone, and then the callback comes: to read the data would abort."""
    both("""
        import sys
        gpu = programs.device()
        work = programs.Compute(gpu)
        work.run(5)
        wgpu_py = sys.modules.get("gpusense.integrations.wgpu_py")
        if wgpu_py is not None:
            hooks, timer = wgpu_py._installed.now.hooks, gpu.__dict__["_gpusense"]
            asked = []
            read = hooks.host.read
            hooks.host.read = lambda *arguments: (asked.append(1), read(*arguments))
            timer.pump(force=True)
            while not asked:
                timer.poll()
                timer.pump(force=True)
            hooks.drain = lambda *_: False  # the device works on, longer than destroy() waits
        gpu.destroy()
        gpu._poll_wait()
        other = programs.Compute(programs.device())
        other.run(label="other")
        print(len(other.read()))
        if wgpu_py is not None:
            del hooks.drain
            assert wgpu_py.flush(20)
            untimed = wgpu_py.statistics().untimed
            assert set(untimed) <= {"the program destroyed the device"}, untimed
            assert wgpu_py.statistics().timed == 6 - sum(untimed.values())
    """)


@pytest.mark.parametrize("reason", ["Destroyed", "destroyed"])
def test_a_device_destroyed_on_purpose_is_no_loss_of_others(recording, programs, reason: str) -> None:
    from wgpu.backends.wgpu_native import _api

    work = programs.Compute(programs.device())
    _api.error_handler.log_error(f"The WGPU device was lost ({reason}):\nDevice lost")
    work.run(2)
    assert len(recording.of(GpuKernel)) == 2


def test_a_forked_child_waits_for_nobody(both) -> None:
    """The parent's lock is taken for ever in the child, and its device is not the child's to read from."""
    both("""
        import os, sys, threading, time
        gpu = programs.device(required_features=["timestamp-query"])
        work = programs.Compute(gpu)
        queries = gpu.create_query_set(type="timestamp", count=2)
        work.run(3)
        wgpu_py = sys.modules.get("gpusense.integrations.wgpu_py")
        taken, over = threading.Event(), threading.Event()
        def hold():
            with gpu.__dict__["_gpusense"].lock:
                taken.set()
                over.wait()
        if wgpu_py is not None:
            threading.Thread(target=hold).start()
            taken.wait()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            import signal
            signal.alarm(20)
            if wgpu_py is not None:
                assert wgpu_py.flush(15)
            queries.destroy()
            gpu.destroy()
            os._exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        over.set()
    """)


def test_a_pass_begun_in_the_middle_of_beginning_another(recording, programs) -> None:
    """Each keeps its own queries; a pass without any would be read as another's, or stall the device."""
    work = programs.Compute(programs.device())
    usage = programs.wgpu.TextureUsage.RENDER_ATTACHMENT
    texture = work.gpu.create_texture(size=(64, 64, 1), format="rgba8unorm", usage=usage)

    view = texture.create_view()

    class Attachments:
        def __iter__(self):  # wgpu-py asks for them on its way to the native call
            work.run(label="inner")
            yield {"view": view, "load_op": "clear", "store_op": "store", "clear_value": (0, 0, 0, 1)}

    encoder = work.gpu.create_command_encoder()
    encoder.begin_render_pass(label="outer", color_attachments=Attachments()).end()
    work.gpu.queue.submit([encoder.finish()])
    inner, outer = sorted(recording.of(GpuKernel), key=lambda kernel: kernel.name)
    assert (inner.name, outer.name) == ("inner", "outer")
    assert inner.end_ns <= outer.start_ns
    assert wgpu_py.statistics().untimed == {}
    assert all_back(timer_of(work.gpu))


def test_a_step_is_not_taken_in_the_middle_of_one(recording, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = timer_of(programs.device())
    steps = []

    def step(force: bool) -> None:
        steps.append(force)
        if len(steps) < 4:
            timer.pump()
            timer.pump()

    monkeypatch.setattr(timer, "_step", step)
    timer.pump(force=True)
    assert steps == [True]
    timer.pump()
    assert len(steps) == 2


def test_a_submit_while_another_thread_finds_nothing_left(recording, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is held for what was submitted in between, or its passes could not be read any more."""
    work = programs.Compute(programs.device())
    idle = _timer.DeviceTimer.idle.fget
    submitters: list[threading.Thread] = []

    def seldom(timer) -> bool:
        answer = idle(timer)
        if answer and not submitters and threading.current_thread() is threading.main_thread():
            submitters.append(threading.Thread(target=lambda: work.run(label="in between")))
            submitters[0].start()
            submitters[0].join()
        return answer

    monkeypatch.setattr(_timer.DeviceTimer, "idle", property(seldom))
    timer_of(work.gpu).pump()
    assert len(submitters) == 1
    assert [kernel.name for kernel in recording.of(GpuKernel)] == ["in between"]


def test_a_device_lost_while_its_queries_are_made(recording, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """wgpu-native reports the loss inside the call, on the thread that holds our lock."""
    from wgpu.backends.wgpu_native import _api

    make = _host.Host.query_set

    def lose(self, *arguments):
        _api.error_handler.log_error("The WGPU device was lost (Unknown):\nout of memory")
        return make(self, *arguments)

    monkeypatch.setattr(_host.Host, "query_set", lose)
    made = threading.Thread(target=programs.device, daemon=True)
    made.start()
    made.join(30)
    assert not made.is_alive()


def test_queries_that_cannot_be_made_are_asked_for_once(recording, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(self, *arguments):
        asked.append(arguments)
        raise RuntimeError("too many sample buffers")

    monkeypatch.setattr(_host.Host, "query_set", refuse)
    work = programs.Compute(programs.device())
    work.run(30)
    assert len(asked) == 1
    assert wgpu_py.statistics().errors == 0
    assert wgpu_py.statistics().untimed == {"no query set could be made (RuntimeError)": 30}


def test_errors_while_flushing_stay_ours(recording, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    work = programs.Compute(programs.device())
    work.run(2)

    def refuse(self, *arguments):
        raise RuntimeError("no callback")

    monkeypatch.setattr(_host.Host, "when_done", refuse)
    assert wgpu_py.flush(5)
    assert wgpu_py.statistics().errors == 1
    assert wgpu_py.statistics().untimed == {"the work-done callback could not be set": 2}


def test_no_memory_to_read_into(recording, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    work = programs.Compute(programs.device())
    work.run(2)

    def refuse(self, *arguments):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(_host.Host, "pair", refuse)
        assert wgpu_py.flush(5)
    assert wgpu_py.statistics().untimed == {"no buffer to read the queries into could be made": 2}
    assert all_back(timer_of(work.gpu))
    work.run(label="later")
    assert [kernel.name for kernel in recording.of(GpuKernel)] == ["later"]


def test_an_index_that_says_there_is_none(recording, programs) -> None:
    gpu = programs.device(required_features=["timestamp-query"])
    work = programs.Compute(gpu)
    queries = gpu.create_query_set(type="timestamp", count=2)
    writes = {"query_set": queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 0xFFFFFFFF}
    work.run(timestamp_writes=writes)
    assert recording.of(GpuKernel) == []
    assert wgpu_py.statistics().errors == 0
    assert wgpu_py.statistics().untimed == {"the program times only one end of the pass": 1}


def test_passes_begun_before_the_last_uninstrument(wgpu, programs) -> None:
    made = Recording()
    wgpu_py.instrument(emit=made.records.extend)
    try:
        work = programs.Compute(programs.device())
        encoder = work.gpu.create_command_encoder()
        work.encode(encoder, label="middle of a frame")
        finish = encoder.finish
        wgpu_py.uninstrument()
        work.encode(encoder, label="not seen")
        commands = finish()
        wgpu_py.instrument(emit=made.records.extend)
        work.encode(other := work.gpu.create_command_encoder(), label="seen")
        encoders = [commands, other.finish()]
        work.gpu.queue.submit(encoders)
        assert [kernel.name for kernel in made.of(GpuKernel)] == ["seen"]
        assert wgpu_py.statistics().untimed == {"the pass was begun before uninstrument()": 1}
    finally:
        wgpu_py.uninstrument()


def test_wrappers_held_across_uninstrument_only_pass_through(wgpu, programs) -> None:
    """A program may keep bound methods, and so our functions, for as long as it likes."""
    made = Recording()
    wgpu_py.instrument(emit=made.records.extend)
    work = programs.Compute(programs.device())
    encoder = work.gpu.create_command_encoder()
    begin, finish, submit = encoder.begin_compute_pass, encoder.finish, work.gpu.queue.submit
    started = begin()
    started.end()
    set_pipeline, dispatch = type(started).set_pipeline, type(started).dispatch_workgroups
    wgpu_py.uninstrument()
    encoder = work.gpu.create_command_encoder()
    started = type(encoder).begin_compute_pass(encoder)
    set_pipeline(started, work.pipeline)
    started.set_bind_group(0, work.group)
    dispatch(started, 1)
    started.end()
    submit([encoder.finish()])
    begin.__func__(encoder := work.gpu.create_command_encoder()).end()
    submit([finish.__func__(encoder)])
    assert made.of(GpuKernel) == []
    assert wgpu_py.statistics() == wgpu_py.Statistics()


def test_a_pass_that_another_tools_wrapper_refuses(recording, programs) -> None:
    """Nothing stays behind for the next pass of the same encoder."""
    from wgpu.backends.wgpu_native import _api

    work = programs.Compute(programs.device())
    wrapper = _api.GPUCommandEncoder.begin_compute_pass
    inner = wrapper._gpusense_original
    cell = next(cell for cell in wrapper.__closure__ if cell.cell_contents is inner)

    def refuse(self, **options):
        raise KeyboardInterrupt

    encoder = work.gpu.create_command_encoder()
    cell.cell_contents = refuse
    try:
        with pytest.raises(KeyboardInterrupt):
            encoder.begin_compute_pass()
    finally:
        cell.cell_contents = inner
    assert wgpu_py._installed.now.hooks.waiting == {}
    assert all_back(timer_of(work.gpu))
    work.encode(encoder, label="after")
    work.gpu.queue.submit([encoder.finish()])
    assert [kernel.name for kernel in recording.of(GpuKernel)] == ["after"]


def test_steps_are_taken_seldom_and_soon_enough(recording, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_timer, "LOOK_NS", 1 << 62)  # so that time does not decide
    monkeypatch.setattr(_timer, "AGE_NS", 1 << 62)
    gpu = programs.device(required_features=["timestamp-query"])
    work = programs.Compute(gpu)
    timer = timer_of(gpu)
    steps = []
    step = timer._step
    monkeypatch.setattr(timer, "_step", lambda force: (steps.append(force), step(force)))
    timer.look_ns = 1 << 62
    work.run(10)
    work.run(10)
    assert steps == []
    queries = gpu.create_query_set(type="timestamp", count=2)
    work.run(timestamp_writes={"query_set": queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1})
    assert (steps, timer.own_waits) == ([], True)
    work.run(0)
    assert (len(steps) <= 1, timer.own_waits) == (True, False)  # read before the program could write them again
    for _ in range(_timer.BATCH // 16 - 2):
        work.run(16)
    assert len(steps) <= 2  # what was asked for has arrived
    work.run(_timer.BATCH)
    before = len(steps)
    assert before >= 2
    timer.look_ns = 0
    work.run()
    assert len(steps) > before
    assert len(recording.of(GpuKernel)) == 22 + 2 * _timer.BATCH - 32
    assert all_back(timer)


def test_dispatches_of_an_unknown_wgpu_are_counted(wgpu, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other parameters than those known: the program's own arguments reach it, and no grid is guessed."""
    from wgpu.backends.wgpu_native import _api

    inner = _api.GPUComputePassEncoder.dispatch_workgroups
    given = []

    def dispatch_workgroups(self, x, *more, **options):
        given.append((x, more, options))
        inner(self, x, *more)

    monkeypatch.setattr(_api.GPUComputePassEncoder, "dispatch_workgroups", dispatch_workgroups)
    made = Recording()
    wgpu_py.instrument(emit=made.records.extend)
    try:
        work = programs.Compute(programs.device())
        encoder = work.gpu.create_command_encoder()
        started = encoder.begin_compute_pass(label="x")
        started.set_pipeline(work.pipeline)
        started.set_bind_group(0, work.group)
        started.dispatch_workgroups(2, 1, of=3)
        started.end()
        work.gpu.queue.submit([encoder.finish()])
        (kernel,) = made.of(GpuKernel)
    finally:
        wgpu_py.uninstrument()
    assert given == [(2, (1,), {"of": 3})]
    assert (kernel.grid, kernel.attributes["dispatches"]) == (None, 1)


def test_pipelines_die_when_the_program_lets_go(recording, programs) -> None:
    work = programs.Compute(programs.device())
    work.run()
    pipeline = weakref.ref(work.pipeline)
    del work.pipeline
    gc.collect()
    assert pipeline() is None
    assert [kernel.name for kernel in recording.of(GpuKernel)] == ["churn"]


def test_an_entry_point_in_a_struct_is_a_name(recording, programs) -> None:
    gpu = programs.device()
    work = programs.Compute(gpu)
    stage = getattr(programs.wgpu, "ProgrammableStage", dict)(
        module=gpu.create_shader_module(code=programs.SHADER), entry_point="churn"
    )
    work.pipeline = gpu.create_compute_pipeline(layout="auto", compute=stage)
    entries = [{"binding": 0, "resource": {"buffer": work.buffer, "offset": 0, "size": 4 * work.count}}]
    work.group = gpu.create_bind_group(layout=work.pipeline.get_bind_group_layout(0), entries=entries)
    work.run()
    assert [kernel.name for kernel in recording.of(GpuKernel)] == ["churn"]


def test_all_of_it_or_nothing(wgpu, monkeypatch: pytest.MonkeyPatch) -> None:
    from wgpu.backends.wgpu_native import _api

    submit = _api.GPUQueue.submit

    def refuse(*_: object) -> None:
        raise AttributeError("GPUQueue has no method write_buffer")

    monkeypatch.setattr(_transfers, "install", refuse)
    answer = wgpu_py.instrument(emit=print)
    assert not answer
    assert "write_buffer" in answer.reason
    assert _api.GPUQueue.submit is submit
    assert wgpu_py.statistics().timed == 0


def test_an_error_after_the_import_is_not_the_programs(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "watched_module.py").write_text("value = 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def ready() -> None:
        raise RuntimeError("ours")

    finder = import_hook.watch("watched_module", ready)
    try:
        import watched_module

        assert watched_module.value == 5
    finally:
        finder.remove()
        sys.modules.pop("watched_module", None)
