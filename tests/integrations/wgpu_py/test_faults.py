"""Programs that do wrong, or end at a bad moment: with and without instrumentation the same end and the same output.

Each case runs twice in a process of its own; the second time what was recorded is written to a file as it arrives.
"""

import importlib.util
import os
import pathlib

import pytest
from support.machine import HERE


def test_work_pending_at_the_end(both) -> None:
    done = both("""
        work = programs.Compute(programs.device())
        work.write()
        for _ in range(20): work.run(label="pending")
        import sys; sys.exit(7)
    """)
    assert done.code == 7
    assert done.kernels == ["pending"] * 20
    assert ["GpuMemoryTransfer", "write_buffer(numbers)"] in done.recorded


@pytest.mark.parametrize(("ending", "code"), [("raise RuntimeError('the end')", 1), ("os._exit(3)", 3)])
def test_every_way_out(both, ending: str, code: int) -> None:
    done = both(f"""
        import os, sys
        work = programs.Compute(programs.device())
        work.run(3, label="last")
        {ending}
    """)
    assert done.code == code
    assert done.kernels == ([] if "os._exit" in ending else ["last"] * 3)


def test_no_garbage_collection_and_everything_in_globals(both) -> None:
    done = both("""
        import gc
        gc.disable()
        gpus = [programs.device() for _ in range(2)]
        works = [programs.Compute(gpu) for gpu in gpus]
        encoders = [gpu.create_command_encoder() for gpu in gpus]
        for work, encoder in zip(works, encoders): work.encode(encoder)
        buffers = [encoders[0].finish()]
        works[0].run(label="seen")
        del gpus, works
    """)
    assert done.kernels == ["seen"]


def test_any_order_of_death(both) -> None:
    done = both("""
        import gc
        for order in ("gpu work encoder", "encoder work gpu", "work gpu encoder"):
            gpu = programs.device(); work = programs.Compute(gpu); encoder = gpu.create_command_encoder()
            work.encode(encoder)
            work.run(2, label=order)
            for name in order.split():
                del globals()[name]
                gc.collect()
            print("alive", flush=True)
    """)
    assert done.out == "alive\n" * 3
    assert sorted(done.kernels) == sorted(2 * ["gpu work encoder", "encoder work gpu", "work gpu encoder"])


def test_a_buffer_destroyed_before_submit(both) -> None:
    """wgpu-native aborts the process for it (wgpu-native#588): so it does with us, and not for any reason of ours."""
    both("""
        work = programs.Compute(programs.device())
        work.run()
        encoder = work.gpu.create_command_encoder()
        work.encode(encoder)
        commands = encoder.finish()
        work.buffer.destroy()
        print("submitting", flush=True)
        work.gpu.queue.submit([commands])
        print("survived", flush=True)
    """)


def test_commands_submitted_twice(both) -> None:
    both("""
        work = programs.Compute(programs.device())
        encoder = work.gpu.create_command_encoder()
        work.encode(encoder)
        commands = encoder.finish()
        work.gpu.queue.submit([commands])
        print("again", flush=True)
        work.gpu.queue.submit([commands])
    """)


def test_a_destroyed_device_used_again(both) -> None:
    done = both("""
        work = programs.Compute(programs.device())
        work.run(4)
        work.gpu.destroy()
        for attempt in range(3):
            try:
                encoder = work.gpu.create_command_encoder()
                work.encode(encoder)
                encoder.finish()
                print("encoded")
            except Exception as error:
                print(type(error).__name__)
        try:
            work.write()
            print("wrote")
        except Exception as error:
            print(type(error).__name__)
    """)
    assert len(done.kernels) == 4


def test_validation_errors_are_the_programs(both) -> None:
    both(
        """
        gpu = programs.device()
        work = programs.Compute(gpu)
        queries = None
        def attempt(action):
            try:
                action()
                print("no error")
            except Exception as error:
                print(type(error).__name__)
        def open_pass():
            encoder = gpu.create_command_encoder()
            encoder.begin_compute_pass()
            encoder.finish()
        def ended_twice():
            encoder = gpu.create_command_encoder()
            work = encoder.begin_compute_pass()
            work.end(); work.end()
            encoder.finish()
        def finished_twice():
            encoder = gpu.create_command_encoder()
            encoder.finish(); encoder.finish()
        def pass_after_finish():
            encoder = gpu.create_command_encoder()
            encoder.finish()
            encoder.begin_compute_pass().end()
        def copy_in_pass():
            encoder = gpu.create_command_encoder()
            encoder.begin_compute_pass()
            encoder.copy_buffer_to_buffer(work.buffer, 0, work.buffer, 4096, 64)
            encoder.finish()
        def wrong_copy():
            encoder = gpu.create_command_encoder()
            encoder.copy_buffer_to_buffer(work.buffer, 3, work.buffer, 0, 1)
        def no_pipeline():
            encoder = gpu.create_command_encoder()
            started = encoder.begin_compute_pass()
            started.dispatch_workgroups(1)
            started.end()
            encoder.finish()
        def bad_writes():
            encoder = gpu.create_command_encoder()
            encoder.begin_compute_pass(timestamp_writes={"nonsense": 1})
        def write_too_much():
            gpu.queue.write_buffer(work.buffer, 0, bytes(1 << 20))
        def write_nothing():
            gpu.queue.write_buffer(work.buffer, 0, None)
        def read_nothing():
            gpu.queue.read_buffer(None)
        def read_beyond():
            gpu.queue.read_buffer(work.buffer, 1 << 20)
        def read_unmapped():
            work.buffer.read_mapped()
        def write_unmapped():
            work.buffer.write_mapped(bytes(8))
        def bad_texture():
            gpu.queue.write_texture({}, bytes(8), {}, (1, 1, 1))
        for action in (open_pass, ended_twice, finished_twice, pass_after_finish, copy_in_pass, wrong_copy, no_pipeline,
                       bad_writes, write_too_much, write_nothing, read_nothing, read_beyond, read_unmapped,
                       write_unmapped, bad_texture):
            print(action.__name__, end=" ")
            attempt(action)
        work.run()
        print(len(work.read()))
    """,
        copies=True,
    )


def test_threads_of_many_devices_and_sudden_end(both) -> None:
    done = both("""
        import threading
        def run(number):
            work = programs.Compute(programs.device())
            for _ in range(60): work.run()
            work.read()
        threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print("done")
    """)
    assert len(done.kernels) == 180


def test_daemon_threads_still_submitting_at_exit(both) -> None:
    both("""
        import threading, time
        work = programs.Compute(programs.device())
        def run():
            while True: work.run()
        threading.Thread(target=run, daemon=True).start()
        time.sleep(0.3)
        import os; os._exit(0)
    """)


def test_a_forked_child_records_nothing(both) -> None:
    done = both("""
        import os, sys
        work = programs.Compute(programs.device())
        work.run(2, label="parent")
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os._exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        work.run(2, label="parent")
        print(len(work.read()))
    """)
    assert done.kernels == ["parent"] * 4


def test_instrumented_on_import(wgpu, tmp_path: pathlib.Path, run_python) -> None:
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from gpusense.integrations import wgpu_py
found = []
assert wgpu_py.instrument(when_imported=True, emit=found.extend) is True
assert not any(name.split(".")[0] == "wgpu" for name in sys.modules)
assert wgpu_py.statistics().timed == 0
before = [finder for finder in sys.meta_path if type(finder).__name__ == "_Finder"]
from support import wgpu_programs as programs
import wgpu.backends.wgpu_native._api as api
assert len(before) == 1 and before[0] not in sys.meta_path
assert type(api.__loader__).__name__ == "SourceFileLoader", api.__loader__
programs.Compute(programs.device()).run(label="x")
assert wgpu_py.flush(5)
assert [record.name for record in found] == ["x"], found
print("ok")
"""
    done = run_python(code, str(HERE))
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.parametrize("imported", [False, True])
def test_instrumented_at_once_after_it_was_to_be_done_on_import(wgpu, run_python, imported: bool) -> None:
    """As where ``gpusense run`` waits for the import, and the program asks by itself."""
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from gpusense.integrations import wgpu_py
found, late = [], []
finders = list(sys.meta_path)
assert wgpu_py.instrument(when_imported=True, emit=late.extend) is True
if sys.argv[2] == "True":
    import wgpu.backends.wgpu_native
    wanted = late
else:
    wanted = found
answer = wgpu_py.instrument(emit=found.extend)
assert answer is True, answer
assert sys.meta_path == finders
from support import wgpu_programs as programs
programs.Compute(programs.device()).run(label="x")
assert wgpu_py.flush(5)
assert [record.name for record in wanted] == ["x"] and not (found and late), (found, late)
wgpu_py.uninstrument()
programs.Compute(programs.device()).run(label="y")
assert len(wanted) == 1
print("ok")
"""
    done = run_python(code, str(HERE), str(imported))
    assert done.stdout == "ok\n", done.stderr


def test_without_wgpu_a_reason(run_python) -> None:
    code = """
import sys
sys.modules["wgpu"] = None
from gpusense.integrations import wgpu_py
answer = wgpu_py.instrument(emit=print)
assert not answer
print(answer)
assert wgpu_py.statistics().timed == 0
assert wgpu_py.flush() is True
wgpu_py.uninstrument()
"""
    done = run_python(code)
    assert "wgpu_py: wgpu" in done.stdout, done.stderr


def test_an_unknown_wgpu_native_is_refused(build_library, wgpu, run_python) -> None:
    """A host module whose library is of a later major: nothing of it is called but its version."""
    path = build_library("libwgpu_native.c", "libwgpu_native.so", "-DVERSION=0x63000000u")
    code = """
import sys, types, cffi
ffi = cffi.FFI()
ffi.cdef("uint32_t wgpuGetVersion(void);")
api = types.ModuleType("wgpu.backends.wgpu_native._api")
api.ffi, api.lib = ffi, ffi.dlopen(sys.argv[1])
sys.modules[api.__name__] = api
for name in ("wgpu", "wgpu.backends", "wgpu.backends.wgpu_native"):
    sys.modules[name] = types.ModuleType(name)
from gpusense.integrations import wgpu_py
print(wgpu_py.instrument(emit=print))
"""
    done = run_python(code, str(path))
    assert "99.0.0.0 is not known" in done.stdout, done.stderr


def test_no_period_is_said_and_not_guessed(wheel: pathlib.Path, driver: None, run_python) -> None:
    """Before 27.0.4 wgpu-native has no period, and without a Vulkan loader nobody else tells."""
    code = """
import sys
sys.path[:0] = sys.argv[1:3]
from gpusense.integrations import wgpu_py
found = []
assert wgpu_py.instrument(emit=found.extend) is True
import wgpu
if hasattr(wgpu.gpu, "request_adapter_sync"):
    gpu = wgpu.gpu.request_adapter_sync(power_preference="high-performance").request_device_sync()
else:
    gpu = wgpu.gpu.request_adapter(power_preference="high-performance").request_device()
for _ in range(3):
    encoder = gpu.create_command_encoder()
    encoder.begin_compute_pass().end()
    gpu.queue.submit([encoder.finish()])
assert wgpu_py.flush(5)
statistics = wgpu_py.statistics()
assert statistics.errors == 0, statistics
print(statistics.timed, *statistics.untimed)
"""
    done = run_python(code, str(wheel), str(HERE), GPUSENSE_LIBVULKAN="/nowhere/libvulkan.so.1")
    if "sniffio" in done.stderr:
        pytest.skip("this wgpu-py needs sniffio")
    version = [int(part) for part in wheel.name.split(".")]
    expected = "3\n" if version >= [0, 31] else "0 the length of a tick is unknown"
    assert done.stdout.startswith(expected), done.stdout + done.stderr


def test_two_vendored_copies_do_not_wrap_each_other(wgpu, tmp_path: pathlib.Path, run_python) -> None:
    import os
    import shutil

    import gpusense

    source = os.path.dirname(gpusense.__file__)
    shutil.copytree(source, tmp_path / "vendored", ignore=shutil.ignore_patterns("__pycache__"))
    code = """
import sys
sys.path[:0] = sys.argv[1:]
import importlib
first = importlib.import_module("gpusense.integrations.wgpu_py")
second = importlib.import_module("vendored.integrations.wgpu_py")
found = []
assert first.instrument(emit=found.extend) is True
refused = second.instrument(emit=print)
assert not refused and "another copy" in refused.reason, refused
from support import wgpu_programs as programs
programs.Compute(programs.device()).run(label="once")
assert first.flush(5) and [record.name for record in found] == ["once"]
first.uninstrument()
assert second.instrument(emit=found.extend) is True
second.uninstrument()
print("ok")
"""
    done = run_python(code, str(tmp_path), str(HERE))
    assert done.stdout == "ok\n", done.stderr


def test_a_pygfx_scene_is_the_same_picture(both) -> None:
    if not importlib.util.find_spec("pygfx"):
        if os.environ.get("CI"):
            pytest.fail("CI must have pygfx")
        pytest.skip("needs pygfx")
    done = both("""
        import hashlib, os
        os.environ["RENDERCANVAS_FORCE_OFFSCREEN"] = "1"
        import pygfx
        from rendercanvas.offscreen import RenderCanvas
        canvas = RenderCanvas(size=(160, 120), pixel_ratio=1)
        renderer = pygfx.renderers.WgpuRenderer(canvas)
        scene = pygfx.Scene()
        scene.add(pygfx.Background.from_color("#234"), pygfx.AmbientLight(), pygfx.DirectionalLight())
        mesh = pygfx.Mesh(pygfx.box_geometry(20, 20, 20), pygfx.MeshPhongMaterial(color="#369"))
        scene.add(mesh)
        camera = pygfx.PerspectiveCamera(60, 4 / 3)
        camera.local.position = (0, 0, 60)
        canvas.request_draw(lambda: renderer.render(scene, camera))
        for number in range(4):
            mesh.local.rotation = (0, 0.1 * number, 0, 1)
            print(hashlib.sha256(bytes(memoryview(canvas.draw()).cast("B"))).hexdigest())
    """)
    assert len(set(done.out.split())) > 1
    assert len(done.kernels) >= 8
    assert all("@" in name for name in done.kernels)  # pygfx names nothing: file and line do
