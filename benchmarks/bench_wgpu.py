"""What timing wgpu-py costs, in one process: bare, hand-written timestamp writes, instrumented.

Run by hand, for steady figures pinned to one core: ``taskset -c 0 python benchmarks/bench_wgpu.py``. The ways
alternate round by round, so that a change of the machine's speed meets all of them; printed are the median of the
rounds and their quartiles, and the least of them, which says more where others use the machine. A round ends when the
GPU is idle and, instrumented, when all records are handed on.

``records`` makes every record and drops it: the cost of instrumenting wgpu-py itself. ``gpusense`` is the whole: the
tracer's thread has also counted or kept each record by the end of the round, on the same core if pinned.
"""

import argparse
import gc
import os
import statistics
import time

import wgpu

import gpusense
from gpusense.integrations import wgpu_py

SHADER = """
@group(0) @binding(0) var<storage, read_write> data: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) { data[id.x] += 1u; }
"""


class Program:
    """A compute program that submits ``passes`` passes at a time."""

    def __init__(self) -> None:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
        self.device = device = adapter.request_device_sync(required_features=["timestamp-query"])
        self.name = adapter.info["device"]
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        self.buffer = device.create_buffer(size=4 * 64, usage=usage)
        module = device.create_shader_module(code=SHADER)
        self.pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
        layout = self.pipeline.get_bind_group_layout(0)
        entries = [{"binding": 0, "resource": {"buffer": self.buffer, "offset": 0, "size": 256}}]
        self.group = device.create_bind_group(layout=layout, entries=entries)
        queries = device.create_query_set(type="timestamp", count=64)
        self.writes = [
            {"query_set": queries, "beginning_of_pass_write_index": 2 * n, "end_of_pass_write_index": 2 * n + 1}
            for n in range(32)
        ]

    def submit(self, passes: int, timed_by_hand: bool) -> None:
        encoder = self.device.create_command_encoder()
        for number in range(passes):
            if timed_by_hand:
                work = encoder.begin_compute_pass(timestamp_writes=self.writes[number])
            else:
                work = encoder.begin_compute_pass()
            work.set_pipeline(self.pipeline)
            work.set_bind_group(0, self.group)
            work.dispatch_workgroups(1)
            work.end()
        self.device.queue.submit([encoder.finish()])

    def wait(self) -> None:
        self.device.queue.read_buffer(self.buffer)


INSTRUMENTED = ("records", "gpusense")


def instrument(way: str) -> None:
    if way == "gpusense":
        wgpu_py.instrument()
    elif way == "records":
        wgpu_py.instrument(emit=lambda _: None, block=lambda: None)


def finish(way: str) -> None:
    """All records have arrived where they go; later rounds do not pay for them."""
    if way in INSTRUMENTED:
        wgpu_py.flush(5)
    if way == "gpusense":
        gpusense.get_tracer().flush(5)


def passes(program: Program, per_submit: int, submits: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds a pass, by way."""
    found: dict[str, list[float]] = {"bare": [], "by hand": [], "records": [], "gpusense": []}
    for number in range(rounds + 1):
        for way, times in found.items():
            instrument(way)
            if way in INSTRUMENTED:
                for _ in range(600 // per_submit):  # queries and buffers are made once a device, not once a round
                    program.submit(per_submit, False)
            finish(way)
            gc.collect()
            start = time.perf_counter_ns()
            for _ in range(submits):
                program.submit(per_submit, way == "by hand")
            program.wait()
            finish(way)
            elapsed = time.perf_counter_ns() - start
            if way in INSTRUMENTED:
                untimed = wgpu_py.statistics().untimed
                wgpu_py.uninstrument()
                if untimed:
                    print("  untimed:", untimed)
            if number:  # the first round warms up
                times.append(elapsed / 1e3 / submits / per_submit)
    return found


def writes(program: Program, calls: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds a write_buffer of 256 bytes, records included."""
    found: dict[str, list[float]] = {"bare": [], "records": [], "gpusense": []}
    data, buffer = bytes(256), program.buffer
    for number in range(rounds + 1):
        for way, times in found.items():
            instrument(way)
            write = program.device.queue.write_buffer
            elapsed = 0
            for _ in range(calls // 64):
                start = time.perf_counter_ns()
                for _ in range(64):
                    write(buffer, 0, data)
                elapsed += time.perf_counter_ns() - start
                program.submit(1, False)
            program.wait()
            if way in INSTRUMENTED:
                finish(way)
                wgpu_py.uninstrument()
            if number:
                times.append(elapsed / 1e3 / (calls // 64 * 64))
    return found


def frames(count: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds a frame of a small pygfx scene, drawn offscreen."""
    os.environ["RENDERCANVAS_FORCE_OFFSCREEN"] = "1"
    wgpu_py.instrument(emit=lambda _: None)  # so that pygfx's device has time stamps
    import pygfx
    from rendercanvas.offscreen import RenderCanvas

    canvas = RenderCanvas(size=(320, 240), pixel_ratio=1)
    renderer = pygfx.renderers.WgpuRenderer(canvas)
    scene = pygfx.Scene()
    scene.add(pygfx.AmbientLight(), pygfx.DirectionalLight())
    meshes = []
    for number in range(20):
        mesh = pygfx.Mesh(pygfx.box_geometry(10, 10, 10), pygfx.MeshPhongMaterial(color="#369"))
        mesh.local.position = (number % 5 * 15 - 30, number // 5 * 15 - 22, 0)
        meshes.append(mesh)
        scene.add(mesh)
    camera = pygfx.PerspectiveCamera(60, 4 / 3)
    camera.local.position = (0, 0, 120)
    canvas.request_draw(lambda: renderer.render(scene, camera))
    canvas.draw()
    wgpu_py.uninstrument()
    found: dict[str, list[float]] = {"bare": [], "gpusense": []}
    for number in range(rounds + 1):
        for way in ("bare", "gpusense") if number % 2 else ("gpusense", "bare"):
            if way == "gpusense":
                instrument(way)
                canvas.draw()
                finish(way)
            start = time.perf_counter_ns()
            for turn in range(count):
                for mesh in meshes:
                    mesh.local.rotation = (0, 0.1 * turn, 0, 1)
                canvas.draw()
            finish(way)
            elapsed = time.perf_counter_ns() - start
            if way == "gpusense":
                wgpu_py.uninstrument()
            if number:
                found[way].append(elapsed / 1e3 / count)
    return found


def show(title: str, found: dict[str, list[float]], budget: str) -> None:
    print(f"{title} (budget: bare {budget})")
    for way, times in found.items():
        low, middle, high = statistics.quantiles(times, n=4)
        pairs = list(zip(times, found["bare"], strict=True))
        extra, ratio = (statistics.median(values) for values in zip(*((a - b, a / b) for a, b in pairs), strict=True))
        least = min(times)
        more = f"  +{extra:5.1f}  ×{ratio:.3f}" if way != "bare" else " " * 16
        beyond = f" +{least - min(found['bare']):.1f}" if way != "bare" else ""
        print(f"  {way:10} {middle:7.1f} µs  [{low:.1f} … {high:.1f}]{more}  least {least:.1f}{beyond}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--frames", type=int, default=0, help="pygfx frames a round; 0: without pygfx")
    parser.add_argument("--submits", type=int, default=1024)
    options = parser.parse_args()
    program = Program()
    print(f"wgpu {wgpu.__version__} on {program.name}")
    show("one pass a submit", passes(program, 1, options.submits, options.rounds), "+ 20 µs")
    show("16 passes a submit", passes(program, 16, options.submits // 8, options.rounds), "+ 8 µs")
    show("write_buffer, 256 bytes", writes(program, options.submits * 2, options.rounds), "+ 3 µs")
    if options.frames:
        show("pygfx frame", frames(options.frames, options.rounds), "× 1.03")


if __name__ == "__main__":
    main()
