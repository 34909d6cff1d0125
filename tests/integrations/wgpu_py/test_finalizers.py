"""Objects of OpenGL devices end on the program's threads, whichever thread collects garbage."""

import gc
import sys
import threading

import pytest

from gpusense import GpuKernel
from gpusense._runtime import threads
from gpusense.integrations import wgpu_py


class Circle:
    """Garbage with a buffer in it."""

    def __init__(self, buffer) -> None:
        self.buffer, self.itself = buffer, self


def test_what_a_thread_of_ours_collects_the_main_thread_releases(wgpu, programs, monkeypatch) -> None:
    adapters = {one.info["backend_type"]: one for one in wgpu.gpu.enumerate_adapters_sync()}
    if not {"Vulkan", "OpenGL"} <= set(adapters):
        pytest.skip("needs Vulkan and OpenGL")
    api = sys.modules[type(adapters["OpenGL"]).__module__]
    told, release = [], api.GPUBuffer._release

    def noted(self) -> None:
        told.append(threading.current_thread() is threading.main_thread())
        release(self)

    monkeypatch.setattr(api.GPUBuffer, "_release", noted)
    made = []
    wgpu_py.instrument(emit=made.extend)
    try:
        by_backend = {}
        for backend in ("Vulkan", "OpenGL"):  # in this order: nothing is done before the first OpenGL device
            gpu = adapters[backend].request_device_sync()
            Circle(gpu.create_buffer(size=64, usage=wgpu.BufferUsage.COPY_DST))
            told.clear()
            threads.start(gc.collect, "gpusense-test").join(20)
            by_backend[backend] = told[:]
            assert len(told) == 1
        assert by_backend == {"Vulkan": [False], "OpenGL": [True]}
        programs.Compute(gpu).run()
        assert wgpu_py.flush(10)
        assert not [one for one in made if isinstance(one, GpuKernel)]
        assert list(wgpu_py.statistics().untimed) == ["times of OpenGL cannot be read beside the program's threads"]
    finally:
        wgpu_py.uninstrument()
    assert "__del__" not in vars(api.GPUObjectBase)
