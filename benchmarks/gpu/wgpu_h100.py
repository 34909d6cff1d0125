"""wgpu on a real GPU through Vulkan, in under a minute: facts, clock, results, own timing, threads, overhead.

``python benchmarks/gpu/wgpu_h100.py`` with the wgpu package importable, the Vulkan loader (libvulkan1) installed and,
where the loader does not find the driver, ``VK_DRIVER_FILES`` naming NVIDIA's ICD. Prints short tables; a line that
begins with FAILED means that a claim does not hold.
"""

import os
import pathlib
import statistics
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "tests" / "wgpu")]
os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")

import bench_wgpu  # noqa: E402
import programs  # noqa: E402
import wgpu  # noqa: E402

from gpusense._records import GpuKernel  # noqa: E402
from gpusense._wgpu_clock import GpuClock  # noqa: E402
from gpusense.backends import _vulkan  # noqa: E402
from gpusense.backends import wgpu as backend  # noqa: E402
from gpusense.integrations import wgpu_py  # noqa: E402


def claim(holds: object, what: str) -> None:
    print(("  ok      " if holds else "FAILED    ") + what)


def facts() -> None:
    start = time.perf_counter()
    opened = backend.open(60)
    print(f"backend: {(opened and opened.version) or opened}, first contact {time.perf_counter() - start:.2f} s")
    for device in opened.devices.devices() if opened else ():
        print(f"  {device.index} {device.name} {device.vendor} {device.kind} {device.pci_bus_id} {device.uuid}")
        for name, value in device.details:
            print(f"      {name}: {value}")
    print(f"  self-test: {backend.self_test(60)}")


def clock(card: _vulkan.Card) -> None:
    start = time.perf_counter()
    calibrator = _vulkan.calibrator(card.vendor_id, card.device_id, card.name)
    print(f"calibrated clock, opened in {(time.perf_counter() - start) * 1e3:.0f} ms")
    if not isinstance(calibrator, _vulkan.Calibrator):
        print(f"  {calibrator}")
        return
    samples = [sample for sample in (calibrator.sample() for _ in range(500)) if sample]
    period = card.timestamp_period_ns
    numerator, denominator = period.as_integer_ratio()
    offsets = [sample.wall_ns - sample.ticks * numerator // denominator for sample in samples]
    start = time.perf_counter()
    for _ in range(500):
        calibrator.sample()
    cost = (time.perf_counter() - start) * 2e3
    deviations = [sample.deviation_ns for sample in samples]
    print(f"  period {period:g} ns, {card.timestamp_valid_bits} bits, {cost:.1f} µs a reading")
    print(f"  deviation {statistics.median(deviations)} ns, offset spread {max(offsets) - min(offsets)} ns")
    time.sleep(3)
    late = calibrator.sample()
    if late:
        drift = late.wall_ns - late.ticks * numerator // denominator - statistics.median(offsets)
        print(f"  drift {drift / 3:.0f} ns a second")
    calibrator.close()


def traced(action, **options):
    """(result, kernels, statistics) of ``action`` under instrumentation."""
    records: list = []
    wgpu_py.instrument(emit=records.extend, **options)
    try:
        result = action()
        claim(wgpu_py.flush(10), "everything was read in time")
        return result, [record for record in records if type(record) is GpuKernel], wgpu_py.statistics()
    finally:
        wgpu_py.uninstrument()


def results() -> None:
    print("results, bare and instrumented")
    for name in ("compute", "render"):
        bare = getattr(programs, name)()
        same, kernels, found = traced(getattr(programs, name), copies=True)
        claim(same == bare and any(bare), f"{name}: {len(bare)} bytes are the same")
        claim(found.errors == 0 and not found.untimed, f"{name}: {len(kernels)} passes, {found.untimed}")
    printed, kernels, _ = traced(programs.self_timed)
    ours = [kernel.duration_ns / 1e6 for kernel in kernels]
    worst = max(abs(mine / theirs - 1) for mine, theirs in zip(ours, printed, strict=True))
    claim(len(ours) == 3 and worst < 0.02, f"own timing: worst difference {worst:.2%} of {printed} ms")


def order() -> None:
    """Every pass lies between its submit and the return of the wait that followed."""
    print("clock against the order of events")
    work = None
    brackets: list[tuple[int, int]] = []

    def run() -> None:
        nonlocal work
        work = programs.Compute(programs.device(), count=1 << 16)
        work.run()
        work.read()
        for _ in range(200):
            before = time.time_ns()
            work.run(label="bracketed")
            work.gpu._poll_wait()
            brackets.append((before, time.time_ns()))

    _, kernels, found = traced(run)
    kernels = [kernel for kernel in kernels if kernel.name == "bracketed"]
    slack = max(kernel.attributes["clock_uncertainty_ns"] for kernel in kernels)
    outside = sum(
        not (before - slack <= kernel.start_ns and kernel.end_ns <= after + slack)
        for kernel, (before, after) in zip(kernels, brackets, strict=True)
    )
    lead = [kernel.start_ns - before for kernel, (before, _) in zip(kernels, brackets, strict=True)]
    tail = [after - kernel.end_ns for kernel, (_, after) in zip(kernels, brackets, strict=True)]
    print(f"  clock: {found.clocks}")
    print(f"  submit → begin {statistics.median(lead) / 1e3:.1f} µs, end → seen {statistics.median(tail) / 1e3:.1f} µs")
    claim(outside == 0, f"{outside} of {len(kernels)} passes outside ±{slack} ns")
    passive = GpuClock(1.0)
    for kernel, (before, after) in zip(kernels, brackets, strict=True):
        passive.observe(kernel.start_ns, kernel.end_ns, before, after)
    print(f"  by causality alone: {passive.quality(brackets[-1][1])}")


def threads() -> None:
    print("threads")

    def run() -> None:
        work = programs.Compute(programs.device())

        def loop() -> None:
            for _ in range(200):
                work.run()

        workers = [threading.Thread(target=loop) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    _, kernels, found = traced(run)
    claim(len(kernels) == 800 and found.errors == 0, f"4 threads × 200 submits: {len(kernels)} passes, {found.untimed}")


def overhead() -> None:
    program = bench_wgpu.Program()
    print(f"overhead on {program.name}")
    bench_wgpu.show("one pass a submit", bench_wgpu.passes(program, 1, 400, 7), "+ 20 µs")
    bench_wgpu.show("16 passes a submit", bench_wgpu.passes(program, 16, 50, 7), "+ 8 µs")
    bench_wgpu.show("write_buffer, 256 bytes", bench_wgpu.writes(program, 1024, 7), "+ 3 µs")


def main() -> None:
    start = time.perf_counter()
    print(f"wgpu {wgpu.__version__}, Python {sys.version.split()[0]}")
    facts()
    cards = _vulkan.cards()
    for card in cards or ():
        print(f"vulkan: {card}")
    if cards:
        clock(cards[0])
    results()
    order()
    threads()
    overhead()
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
