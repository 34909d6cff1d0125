"""wgpu on a real GPU through Vulkan, in at most 90 seconds: adapters, results, own timing, clock, CUDA beside it, cost.

``python benchmarks/gpu/wgpu_h100.py [step …]`` with the wgpu package importable and the Vulkan loader (libvulkan1)
present. Where the loader does not find NVIDIA's driver by itself, ``VK_DRIVER_FILES`` names its ICD. Each step runs in
a process of its own with a time limit, so that an abort, a crash or a hang costs that step and no other. A line that
begins with FAILED means that a claim does not hold; the last line counts them.
"""

import contextlib
import ctypes
import glob
import hashlib
import io
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PATHS = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests"), str(ROOT / "examples")]
LIMIT_S = 88.0
DRIVER_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")


def claim(holds: object, what: str) -> None:
    print(("  ok      " if holds else "FAILED    ") + what)


# --- the driver ---------------------------------------------------------------------------------------------------


def loads(library: str) -> str:
    """Empty when a child can open ``library``, else why not."""
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, library], capture_output=True, text=True, timeout=20)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it crashed"])[-1]


def driver(environ: dict[str, str]) -> None:
    """Says what the Vulkan loader will find, and helps it where it would find nothing."""
    for name in ("libvulkan.so.1", "libcuda.so.1"):
        print(f"  {name}: {loads(name) or 'loads'}")
    named = environ.get("VK_DRIVER_FILES") or environ.get("VK_ICD_FILENAMES") or ""
    for path in filter(None, named.split(os.pathsep)):
        try:
            library = json.loads(pathlib.Path(path).read_text())["ICD"]["library_path"]
        except (OSError, ValueError, KeyError) as error:
            print(f"  {path}: {type(error).__name__}: {error}")
            continue
        why = loads(library)
        print(f"  {path} → {library}: {why or 'loads'}")
        if not why:
            return
    if not named:
        return
    # NVIDIA's EGL library is the same Vulkan driver and needs no X11 libraries.
    candidates = ["libEGL_nvidia.so.0", "libGLX_nvidia.so.0"]
    candidates += [path for name in candidates for folder in DRIVER_FOLDERS for path in glob.glob(f"{folder}/{name}")]
    for library in candidates:
        why = loads(library)
        print(f"  instead {library}: {why or 'loads'}")
        if not why:
            text = json.dumps({"file_format_version": "1.0.1", "ICD": {"library_path": library, "api_version": "1.3"}})
            with tempfile.NamedTemporaryFile("w", suffix="_icd.json", delete=False) as made:
                made.write(text)
            environ["VK_DRIVER_FILES"] = environ["VK_ICD_FILENAMES"] = made.name
            return


# --- the steps ----------------------------------------------------------------------------------------------------


def adapters() -> None:
    import wgpu

    from gpusense.backends.wgpu import source as backend
    from gpusense.backends.wgpu import vulkan

    print(f"  wgpu {wgpu.__version__}, Python {sys.version.split()[0]}")
    for adapter in wgpu.gpu.enumerate_adapters_sync():
        info, features = adapter.info, adapter.features
        stamps = "timestamp-query" in features
        print(f"  {info['device']} ({info['backend_type']}, {info['adapter_type']}, time stamps: {stamps})")
    for card in vulkan.cards() or ():
        heap = next((heap for heap in card.heaps if heap.device_local), None)
        print(f"  vulkan: {card.name} {card.pci_bus_id} period {card.timestamp_period_ns:g} ns, {heap}")
    start = time.perf_counter()
    opened = backend.open(20)
    print(f"  backend: {(opened and opened.version) or opened}, first contact {time.perf_counter() - start:.2f} s")
    for device in opened.devices.devices() if opened else ():
        print(f"    {device.index} {device.name} {device.kind} {device.pci_bus_id} {device.uuid} {device.driver}")
    tried = backend.self_test(20)
    print(f"  self-test: {tried}")
    claim(tried and tried["correct"] and tried["validation_error_survived"], "computes and survives an error")


def _traced(action, **options):
    """(result, kernels, transfers, statistics) of ``action`` under instrumentation."""
    from gpusense._records.records import GpuKernel, GpuMemoryTransfer
    from gpusense.integrations import wgpu_py

    records: list = []
    answer = wgpu_py.instrument(emit=records.extend, **options)
    if answer is not True:
        raise RuntimeError(str(answer))
    try:
        result = action()
        claim(wgpu_py.flush(10), "everything was read in time")
        kernels = [record for record in records if type(record) is GpuKernel]
        transfers = [record for record in records if type(record) is GpuMemoryTransfer]
        return result, kernels, transfers, wgpu_py.statistics()
    finally:
        wgpu_py.uninstrument()


CUBE = """
struct Place { turn: mat4x4<f32> };
@group(0) @binding(0) var<uniform> place: Place;
struct Corner { @builtin(position) at: vec4<f32>, @location(0) colour: vec3<f32> };
@vertex fn corner(@builtin(vertex_index) i: u32) -> Corner {
    let side = i / 6u;
    var square = array<vec2<f32>, 6>(
        vec2(-1., -1.), vec2(1., -1.), vec2(1., 1.), vec2(-1., -1.), vec2(1., 1.), vec2(-1., 1.));
    let face = square[i % 6u];
    let sign = f32(i32(side % 2u) * 2 - 1);
    var at = vec3(face, sign);
    if (side / 2u == 1u) { at = vec3(sign, face.y, face.x); }
    if (side / 2u == 2u) { at = vec3(face.x, sign, face.y); }
    let turned = place.turn * vec4(at * 0.4, 1.0);
    return Corner(vec4(turned.xy, turned.z * 0.5 + 0.5, 1.0), at * 0.5 + 0.5);
}
@fragment fn paint(in: Corner) -> @location(0) vec4<f32> { return vec4(in.colour, 1.0); }
"""


def _cube(frames: int = 30) -> str:
    """A turning cube with depth, drawn by a render bundle; the digest of all its pixels."""
    import math

    import wgpu
    from support import wgpu_programs as programs

    gpu, width, height = programs.device(), 256, 128
    module = gpu.create_shader_module(code=CUBE)
    attachment = wgpu.TextureUsage.RENDER_ATTACHMENT
    size = (width, height, 1)
    colour = gpu.create_texture(size=size, format="rgba8unorm", usage=attachment | wgpu.TextureUsage.COPY_SRC)
    depth = gpu.create_texture(size=size, format="depth24plus", usage=attachment)
    pipeline = gpu.create_render_pipeline(
        layout="auto",
        vertex={"module": module, "entry_point": "corner", "buffers": []},
        fragment={"module": module, "entry_point": "paint", "targets": [{"format": "rgba8unorm"}]},
        primitive={"topology": "triangle-list"},
        depth_stencil={"format": "depth24plus", "depth_write_enabled": True, "depth_compare": "less"},
    )
    uniform = gpu.create_buffer(label="turn", size=64, usage=wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST)
    entries = [{"binding": 0, "resource": {"buffer": uniform, "offset": 0, "size": 64}}]
    group = gpu.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    bundler = gpu.create_render_bundle_encoder(color_formats=["rgba8unorm"], depth_stencil_format="depth24plus")
    bundler.set_pipeline(pipeline)
    bundler.set_bind_group(0, group)
    bundler.draw(36)
    bundle = bundler.finish()
    views = colour.create_view(), depth.create_view()
    digest = hashlib.sha256()
    for frame in range(frames):
        c, s = math.cos(0.1 * frame), math.sin(0.1 * frame)
        turn = (ctypes.c_float * 16)(c, s * s, s * c, 0, 0, c, -s, 0, -s, c * s, c * c, 0, 0, 0, 0, 1)
        gpu.queue.write_buffer(uniform, 0, turn)
        encoder = gpu.create_command_encoder()
        work = encoder.begin_render_pass(
            color_attachments=[
                {"view": views[0], "load_op": "clear", "store_op": "store", "clear_value": (0, 0, 0, 1)},
            ],
            depth_stencil_attachment={
                "view": views[1],
                "depth_clear_value": 1.0,
                "depth_load_op": "clear",
                "depth_store_op": "discard",
            },
        )
        work.execute_bundles([bundle])
        work.end()
        gpu.queue.submit([encoder.finish()])
        layout = {"offset": 0, "bytes_per_row": 4 * width, "rows_per_image": height}
        digest.update(gpu.queue.read_texture({"texture": colour, "mip_level": 0}, layout, size))
    return digest.hexdigest()


def results() -> None:
    from support import wgpu_programs as programs

    for name, action in (("compute", programs.compute), ("render", programs.render), ("cube, 30 frames", _cube)):
        bare = action()
        same, kernels, transfers, found = _traced(action)
        claim(same == bare and any(bare), f"{name}: the same result, {len(kernels)} passes, {len(transfers)} transfers")
        claim(found.errors == 0 and not found.untimed, f"{name}: errors {found.errors}, untimed {found.untimed}")


def own_timing() -> None:
    """A pass's time against what the program's own time stamps say, which are in ticks."""
    from support import wgpu_programs as programs

    printed, kernels, _, found = _traced(programs.self_timed)
    ours = [kernel.duration_ns / 1e6 for kernel in kernels]
    for mine, theirs in zip(ours, printed, strict=False):
        print(f"  program {theirs:.6f} ms, gpusense {mine:.6f} ms")
    worst = max((abs(mine / theirs - 1) for mine, theirs in zip(ours, printed, strict=True)), default=1)
    claim(len(ours) == 3 and worst < 0.001, f"worst difference {worst:.4%} (untimed {found.untimed})")


def clock() -> None:
    from gpusense.backends.wgpu import vulkan

    for card in vulkan.cards() or ():
        start = time.perf_counter()
        calibrator = vulkan.calibrator(card.vendor_id, card.device_id, card.name)
        print(f"  {card.name}: opened in {(time.perf_counter() - start) * 1e3:.0f} ms")
        if not isinstance(calibrator, vulkan.Calibrator):
            print(f"  {calibrator}")
            continue
        start = time.perf_counter()
        samples = [sample for sample in (calibrator.sample() for _ in range(500)) if sample]
        cost = (time.perf_counter() - start) * 2e3
        numerator, denominator = card.timestamp_period_ns.as_integer_ratio()
        offsets = [sample.wall_ns - sample.ticks * numerator // denominator for sample in samples]
        deviations = sorted(sample.deviation_ns for sample in samples)
        print(f"  period {card.timestamp_period_ns:g} ns, {card.timestamp_valid_bits} bits, {cost:.1f} µs a reading")
        print(f"  deviation: median {deviations[len(deviations) // 2]} ns, most {deviations[-1]} ns")
        print(f"  offset spread {max(offsets) - min(offsets)} ns")
        time.sleep(2)
        late = calibrator.sample()
        if late:
            drift = late.wall_ns - late.ticks * numerator // denominator - statistics.median(offsets)
            print(f"  drift {drift / 2:.0f} ns a second")
        calibrator.close()
    _order()


def _order() -> None:
    """Every pass lies between its submit and the return of the wait that followed."""
    from support import wgpu_programs as programs

    from gpusense.integrations.wgpu_py._gpu_clock import GpuClock

    brackets: list[tuple[int, int]] = []

    def run() -> None:
        work = programs.Compute(programs.device(), count=1 << 16)
        work.run()
        work.read()
        for _ in range(200):
            before = time.time_ns()
            work.run(label="bracketed")
            work.gpu._poll_wait()
            brackets.append((before, time.time_ns()))

    _, kernels, _, found = _traced(run)
    kernels = [kernel for kernel in kernels if kernel.name == "bracketed"]
    pairs = list(zip(kernels, brackets, strict=True))
    slack = max(kernel.attributes["clock_uncertainty_ns"] for kernel in kernels)
    outside = sum(
        not (before - slack <= kernel.start_ns and kernel.end_ns <= after + slack) for kernel, (before, after) in pairs
    )
    lead = statistics.median(kernel.start_ns - before for kernel, (before, _) in pairs)
    tail = statistics.median(after - kernel.end_ns for kernel, (_, after) in pairs)
    print(f"  {found.clocks}")
    print(f"  submit → begin {lead / 1e3:.1f} µs, end → seen {tail / 1e3:.1f} µs")
    claim(outside == 0, f"{outside} of {len(kernels)} passes outside their submit and wait, ±{slack} ns")
    passive = GpuClock(1.0)
    for kernel, (before, after) in pairs:
        passive.observe(kernel.start_ns, kernel.end_ns, before, after)
    print(f"  by causality alone: {passive.quality(brackets[-1][1])}")


def threads() -> None:
    from support import wgpu_programs as programs

    def run() -> None:
        work = programs.Compute(programs.device())

        def loop() -> None:
            for _ in range(300):
                work.run()

        workers = [threading.Thread(target=loop) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    _, kernels, _, found = _traced(run)
    claim(
        len(kernels) == 600 and found.errors == 0,
        f"2 threads × 300 submits: {len(kernels)} passes, errors {found.errors}, untimed {found.untimed}",
    )


def unified() -> None:
    """CUDA kernels of gpusense.cuda, wgpu passes, transfers and blocks of one process in one session."""
    import unified_timeline

    import gpusense

    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["unified_timeline.py", str(pathlib.Path(folder) / "session.json")]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            unified_timeline.main()
    print(
        "\n".join("  " + line for line in said.getvalue().splitlines() if line.startswith(("wgpu", "without", "GPU")))
    )
    gpusense.get_tracer().flush(5)
    session = gpusense.get_tracer().session()
    by_backend = {}
    for kernel in session.kernels:
        by_backend[kernel.backend] = by_backend.get(kernel.backend, 0) + 1
    print(f"  kernels {by_backend}, transfers {len(session.transfers)}, blocks {len(session.blocks)}")
    print(f"  aggregates {[(one.name, one.count) for one in session.aggregates][:6]}")
    print(f"  sources {json.dumps(session.meta.get('sources', {}), default=str)[:400]}")
    claim(by_backend.get("wgpu"), "wgpu's passes are in the session")
    if gpusense.cuda.cuda_available():
        claim(any(name != "wgpu" for name in by_backend), "CUDA's kernels are in the same session")


def destroyed() -> None:
    """A device destroyed while its passes are under way, and another that lives on."""
    from support import wgpu_programs as programs

    def run() -> int:
        first, second = programs.Compute(programs.device(), count=1 << 16), programs.Compute(programs.device())
        for _ in range(5):
            first.run(30)
        first.gpu.destroy()
        second.run(5)
        return len(second.read())

    bare = run()
    same, kernels, _, found = _traced(run)
    claim(same == bare and found.errors == 0, f"{len(kernels)} of 155 passes timed, untimed {found.untimed}")


def overhead(passes: int) -> None:
    import bench_wgpu

    program = bench_wgpu.Program()
    found = bench_wgpu.passes(program, passes, 384 // passes, 9)
    bench_wgpu.show(f"  {passes} passes a submit on {program.name}", found, "+ 20 µs" if passes == 1 else "+ 8 µs")
    if passes > 1:
        bench_wgpu.show("  write_buffer, 256 bytes", bench_wgpu.writes(program, 1024, 7), "+ 3 µs")


def cost_1() -> None:
    overhead(1)


def cost_16() -> None:
    overhead(16)


#: name: (what to do, seconds it may take)
STEPS = {
    "adapters": (adapters, 30.0),
    "results": (results, 20.0),
    "own timing": (own_timing, 12.0),
    "clock": (clock, 15.0),
    "unified": (unified, 20.0),
    "threads": (threads, 12.0),
    "cost of a pass, 1 a submit": (cost_1, 20.0),
    "cost of a pass, 16 a submit": (cost_16, 20.0),
    "destroyed": (destroyed, 12.0),
}


def child(name: str) -> int:
    sys.path[:0] = PATHS
    try:
        STEPS[name][0]()
    except Exception as error:
        import traceback

        last = traceback.extract_tb(error.__traceback__)[-1]
        print(f"FAILED    {type(error).__name__}: {error} ({pathlib.Path(last.filename).name}:{last.lineno})")
    return 0


def step(name: str, environ: dict[str, str], limit_s: float) -> int:
    """Runs one step; the number of claims that do not hold."""
    start = time.perf_counter()
    command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--child", name]
    ended = ""
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit_s, env=environ, stdin=subprocess.DEVNULL)
        out, err = done.stdout, done.stderr
        if done.returncode:
            ended = f"ended with {done.returncode}"
    except subprocess.TimeoutExpired as late:
        out, err, ended = late.stdout or b"", late.stderr or b"", f"took more than {limit_s:.0f} s"
    lines = out.decode("utf-8", "replace").splitlines()
    print(f"== {name} ({time.perf_counter() - start:.1f} s)")
    print("\n".join(lines))
    failed = sum(line.startswith("FAILED") for line in lines)
    if ended:
        failed += 1
        print(f"FAILED    the step {ended}")
    if failed:
        print("\n".join("    | " + line for line in err.decode("utf-8", "replace").splitlines()[-8:]))
    sys.stdout.flush()
    return failed


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2])
    start = time.monotonic()
    environ = {"XDG_RUNTIME_DIR": "/tmp", "PYTHONUNBUFFERED": "1", **os.environ}
    failed = 0
    print("== driver")
    try:
        driver(environ)
    except Exception as error:
        print(f"FAILED    {type(error).__name__}: {error}")
        failed += 1
    for name in sys.argv[1:] or STEPS:
        left = LIMIT_S - (time.monotonic() - start)
        if left < 3:
            print(f"== {name}: no time left")
            continue
        failed += step(name, environ, min(left, STEPS[name][1]))
    print(f"{time.monotonic() - start:.0f} s, {failed} claims do not hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
