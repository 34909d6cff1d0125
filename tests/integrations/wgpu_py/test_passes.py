"""Passes without options, begun without wgpu-py's own Python, and how passes come together until they are read."""

import pathlib
import sys

import pytest
from support.wgpu_traced import Recording, all_back

from gpusense._records.records import GpuKernel, Unavailable
from gpusense.backends.wgpu import vulkan
from gpusense.integrations import wgpu_py
from gpusense.integrations.wgpu_py import _passes


def timer_of(gpu):
    return gpu.__dict__["_gpusense"]


def encode_one(work, **counts):
    encoder = work.gpu.create_command_encoder()
    started = encoder.begin_compute_pass()
    started.set_pipeline(work.pipeline)
    started.set_bind_group(0, work.group)
    started.dispatch_workgroups(**(counts or {"workgroup_count_x": 2}))
    started.end()
    work.gpu.queue.submit([encoder.finish()])


def facts(kernel):
    attributes = {key: value for key, value in kernel.attributes.items() if not key.startswith(("clock", "submitted"))}
    return kernel._replace(start_ns=0, end_ns=0, attributes=attributes)


def test_the_newest_wgpu_is_known(wgpu) -> None:
    from wgpu.backends.wgpu_native import _api

    assert _passes.plain_code(_api.GPUCommandEncoder.begin_compute_pass) is not None


def test_both_ways_give_the_same(wgpu, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> tuple:
        made = Recording()
        assert wgpu_py.instrument(emit=made.records.extend) is True
        try:
            results = programs.compute()
            work = programs.Compute(programs.device())
            encode_one(work)
            encoder = work.gpu.create_command_encoder()
            encoder.begin_compute_pass().end()
            work.gpu.queue.submit([encoder.finish()])
            return results, sorted(map(facts, made.of(GpuKernel)), key=repr)  # devices are read in any order
        finally:
            wgpu_py.uninstrument()

    plain = run()
    monkeypatch.setattr(_passes, "plain_code", lambda _: None)
    assert run() == plain
    assert {kernel.attributes["label_source"] for kernel in plain[1]} >= {"entry_point", "line"}


def test_wgpus_own_python_is_left_out_where_it_is_known(wgpu, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    from wgpu.backends.wgpu_native import _api

    made = Recording()
    assert wgpu_py.instrument(emit=made.records.extend) is True
    try:
        work = programs.Compute(programs.device())
        encoder = work.gpu.create_command_encoder()
        with monkeypatch.context() as patch:
            patch.setattr(_api, "new_struct_p", lambda *_, **__: pytest.fail("wgpu-py made a descriptor"))
            started = encoder.begin_compute_pass()
        started.end()
        work.gpu.queue.submit([encoder.finish()])
        assert [kernel.attributes["label_source"] for kernel in made.of(GpuKernel)] == ["line"]
    finally:
        wgpu_py.uninstrument()


def test_a_wgpu_that_does_more_is_called(wgpu, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    from wgpu.backends.wgpu_native import _api

    inner, called = _api.GPUCommandEncoder.begin_compute_pass, []

    def begin_compute_pass(self, *, label="", timestamp_writes=None):
        called.append(label)
        return inner(self, label=label, timestamp_writes=timestamp_writes)

    monkeypatch.setattr(_api.GPUCommandEncoder, "begin_compute_pass", begin_compute_pass)
    made = Recording()
    assert wgpu_py.instrument(emit=made.records.extend) is True
    try:
        encode_one(programs.Compute(programs.device()))
        assert [kernel.name for kernel in made.of(GpuKernel)] == ["churn"]
        assert called == [""]
    finally:
        wgpu_py.uninstrument()


def test_a_wgpu_that_differs_in_a_constant_is_called(wgpu) -> None:
    import inspect
    import textwrap

    from wgpu.backends.wgpu_native import _api

    source = textwrap.dedent(inspect.getsource(_api.GPUCommandEncoder.begin_compute_pass))
    other = source.replace("to_c_string_view(label)", 'to_c_string_view(label or "unnamed")')
    assert other != source
    made: dict = {}
    exec(other, vars(_api), made)
    assert _passes.plain_code(made["begin_compute_pass"]) is None
    exec(source, vars(_api), made)
    assert _passes.plain_code(made["begin_compute_pass"]) is not None


def test_a_pass_that_the_native_library_refuses(wgpu, programs, monkeypatch: pytest.MonkeyPatch) -> None:
    from wgpu.backends.wgpu_native import _api

    native, refused = _api.libf.wgpuCommandEncoderBeginComputePass, []

    def refuse(*arguments):
        if not refused:
            refused.append(1)
            raise RuntimeError("no pass")
        return native(*arguments)

    monkeypatch.setattr(_api.libf, "wgpuCommandEncoderBeginComputePass", refuse)
    made = Recording()
    assert wgpu_py.instrument(emit=made.records.extend) is True
    try:
        work = programs.Compute(programs.device())
        encoder = work.gpu.create_command_encoder()
        with pytest.raises(RuntimeError, match="no pass"):
            encoder.begin_compute_pass()
        assert all_back(timer_of(work.gpu))
        encode_one(work)
        assert len(made.of(GpuKernel)) == 1
        assert wgpu_py.statistics().untimed == {}
    finally:
        wgpu_py.uninstrument()


def test_workgroup_counts_of_an_odd_type(recording, programs) -> None:
    class Count:
        """As some array libraries have them: a number that has no hash, and whose comparison is none."""

        __hash__ = None

        def __init__(self, value: int) -> None:
            self.value = value

        def __int__(self) -> int:
            return self.value

        __index__ = __int__

        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

    work = programs.Compute(programs.device())
    encode_one(work)
    encode_one(work, workgroup_count_x=Count(3))
    encode_one(work, workgroup_count_x=Count(4))
    assert [kernel.grid for kernel in recording.of(GpuKernel)] == [(2, 1, 1), (3, 1, 1), (4, 1, 1)]
    assert wgpu_py.statistics().errors == 0


def test_encoders_that_take_turns(recording, programs) -> None:
    """Their queries lie mixed: each pass gets its own times."""
    work = programs.Compute(programs.device())
    encoders = [work.gpu.create_command_encoder() for _ in range(3)]
    for number in range(4):
        for which, encoder in enumerate(encoders):
            work.encode(encoder, label=f"{which}.{number}")
    work.gpu.queue.submit([encoder.finish() for encoder in encoders])
    names = [kernel.name for kernel in recording.of(GpuKernel)]
    assert names == [f"{which}.{number}" for which in range(3) for number in range(4)]


def test_a_submit_in_the_middle_of_a_step_waits_for_the_next(recording, programs) -> None:
    """As a finalizer's may come: what is being looked at is not touched."""
    work = programs.Compute(programs.device())
    timer = timer_of(work.gpu)
    timer._stepping = True
    work.run(2, label="in between")
    assert len(timer._ready) == 0
    timer._stepping = False
    work.run(1, label="after")
    assert [kernel.name for kernel in recording.of(GpuKernel)] == ["in between"] * 2 + ["after"]


def test_more_passes_in_one_batch_than_are_waited_for(recording, programs) -> None:
    work = programs.Compute(programs.device())
    for size in (500, 700):
        encoder = work.gpu.create_command_encoder()
        for number in range(size):
            encoder.begin_compute_pass(label=f"{size}.{number}").end()
        work.gpu.queue.submit([encoder.finish()])
    names = [kernel.name for kernel in recording.of(GpuKernel)]
    assert sorted(names) == sorted(f"{size}.{number}" for size in (500, 700) for number in range(size))
    assert all_back(timer_of(work.gpu))


def test_nothing_is_timed_once_tracing_is_off(recording, programs) -> None:
    """After too many errors of ours, or as the process ends: encoders begun before find no queries either."""
    work = programs.Compute(programs.device())
    encoder = work.gpu.create_command_encoder()
    work.encode(encoder, label="before")
    hooks = wgpu_py._installed.now.hooks
    hooks._off()
    work.encode(encoder, label="after")
    for one in (encoder, work.gpu.create_command_encoder()):
        for options in ({}, {"label": "after"}):
            started = one.begin_compute_pass(**options)
            started.end()
            assert started._gpusense is None
    encode_one(work)
    work.gpu.queue.submit([encoder.finish()])
    assert recording.records == []
    assert wgpu_py.statistics().untimed == {}
    assert wgpu_py.statistics().errors == 0


def test_lines_of_one_function_are_told_apart(recording, programs) -> None:
    gpu = programs.device()
    encoder = gpu.create_command_encoder()
    for _ in range(2):
        encoder.begin_compute_pass().end()
        encoder.begin_compute_pass().end()
    line = sys._getframe().f_lineno - 2
    gpu.queue.submit([encoder.finish()])
    names = [kernel.name for kernel in recording.of(GpuKernel)]
    assert names == [f"compute@test_passes.py:{line}", f"compute@test_passes.py:{line + 1}"] * 2


KNOWN = {"0.16.0": False, "0.20.1": False, "0.25.0": True, "0.32.0": True}

PROGRAM = """
import sys
from collections import Counter
sys.path.insert(0, sys.argv[1])
from gpusense.integrations import wgpu_py
from gpusense.integrations.wgpu_py import _passes
import wgpu
import wgpu.backends.wgpu_native._api as api
print(_passes.plain_code(api.GPUCommandEncoder.begin_compute_pass) is not None)
found = []
assert wgpu_py.instrument(emit=found.extend) is True
if hasattr(wgpu.gpu, "request_adapter_sync"):
    gpu = wgpu.gpu.request_adapter_sync(power_preference="high-performance").request_device_sync()
else:
    gpu = wgpu.gpu.request_adapter(power_preference="high-performance").request_device()
usage = wgpu.TextureUsage.RENDER_ATTACHMENT
view = gpu.create_texture(size=(4, 4, 1), format="rgba8unorm", usage=usage).create_view()
target = dict(view=view, resolve_target=None, clear_value=(0, 0, 0, 1), load_op="clear", store_op="store")
for _ in range(200):
    encoder = gpu.create_command_encoder()
    encoder.begin_compute_pass().end()
    encoder.begin_compute_pass(label="x").end()
    encoder.begin_render_pass(label="y", color_attachments=[target]).end()
    gpu.queue.submit([encoder.finish()])
assert wgpu_py.flush(20)
statistics = wgpu_py.statistics()
assert (statistics.errors, statistics.untimed) == (0, {}), statistics
print(sorted((record.attributes["label_source"], record.attributes["operation"]) for record in found[:3]))
print(sorted(Counter(record.name.partition("@")[0] for record in found).items()))
"""


def test_every_wgpu(wheel: pathlib.Path, driver: None, run_python) -> None:
    """All kinds of passes, over several batches and query sets; which wgpu-py is known as plain."""
    version = [int(part) for part in wheel.name.split(".")]
    if version < [0, 31]:
        _vulkan_tells_the_period()
    done = run_python(PROGRAM, str(wheel))
    if "sniffio" in done.stderr:
        pytest.skip("this wgpu-py needs sniffio")
    plain, sources, names = done.stdout.splitlines()
    assert plain == str(KNOWN.get(wheel.name, plain == "True")), done.stderr
    assert sources == "[('line', 'compute'), ('pass', 'compute'), ('pass', 'render')]"
    assert names == "[('compute', 200), ('x', 200), ('y', 200)]"


def _vulkan_tells_the_period() -> None:
    cards = vulkan.cards()
    if isinstance(cards, Unavailable):
        pytest.skip(f"the length of a tick is unknown: {cards.reason}")
