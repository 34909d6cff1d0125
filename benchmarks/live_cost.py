"""What recording costs a busy Python loop in the same process, live and to a file, on the scripted libraries.

``python benchmarks/live_cost.py [pairs]``. A C thread launches 28,000 or 100,000 kernels a second throughout; the loop
runs in windows with the kinds on and off in turn, so that only reading and decoding differ. Prints the median slowdown
of paired windows with its quartiles, and the longest gap between two rounds of the loop in the median window,
and the CPU time of gpusense's threads, which other programs on the machine disturb least.
"""

import ctypes
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WINDOW_S = 0.4


def loop(seconds):
    """Rounds of a busy loop, and the longest gap between two of them in milliseconds."""
    clock, rounds, worst = time.perf_counter, 0, 0.0
    last = clock()
    end = last + seconds
    while last < end:
        for _ in range(50):
            rounds += 1
        now = clock()
        worst = max(worst, now - last)
        last = now
    return rounds, worst * 1e3


def child(mode, rate, pairs):
    sys.path.insert(0, str(ROOT))
    import gpusense
    from gpusense._tracing import select

    driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
    if mode == "file":
        handle, path = tempfile.mkstemp(suffix=".gpusense")
        os.close(handle)
        select.control.start_session("file", path)
    else:
        gpusense.enable()
    tracer = gpusense.get_tracer()
    recorder = tracer.recorder
    capture = recorder.capture
    while recorder.marker is None:
        with gpusense.trace("waiting"):
            time.sleep(0.01)
    driver.fake_cuda_pace(rate)
    ratios, gaps_on, gaps_off, shares = [], [], [], []
    with gpusense.trace("busy"):
        loop(1.0)
        for pair in range(pairs):
            found = {}
            for on in (True, False) if pair % 2 else (False, True):
                capture.sharing.pause_kinds(not on)
                time.sleep(0.25)  # what is on its way arrives
                before = capture.status()["drain_cpu_ns"] + recorder._tick_cpu_ns
                found[on] = loop(WINDOW_S)
                if on:
                    shares.append((capture.status()["drain_cpu_ns"] + recorder._tick_cpu_ns - before) / WINDOW_S / 1e7)
            ratios.append(found[False][0] / found[True][0] - 1)
            gaps_on.append(found[True][1])
            gaps_off.append(found[False][1])
    driver.fake_cuda_pace(0)
    low, middle, high = statistics.quantiles([100 * ratio for ratio in ratios], n=4)
    counters = tracer.recorder.counters() if mode == "live" else None
    seen = f"{counters.seen} seen, {counters.missed} buffers missed" if counters else ""
    print(
        f"{mode:5} {rate:7}/s  slowdown {middle:5.1f} % [{low:5.1f}, {high:5.1f}]  "
        f"longest gap {statistics.median(gaps_on):5.2f} ms on, {statistics.median(gaps_off):5.2f} ms off  "
        f"own CPU {statistics.median(shares):.1f} %  {seen}",
        flush=True,
    )
    tracer.close()
    if mode == "file":
        os.unlink(path)


def build(folder, source, name):
    target = pathlib.Path(folder) / name
    command = ["cc", "-shared", "-fPIC", "-O1", "-pthread", "-o", str(target), str(ROOT / "tests" / "fakes" / source)]
    subprocess.run(command, check=True)
    return str(target)


def main():
    pairs = sys.argv[1] if len(sys.argv) > 1 else "20"
    with tempfile.TemporaryDirectory() as folder:
        libraries = {
            "GPUSENSE": "on",
            "GPUSENSE_LIBCUDA": build(folder, "libcuda.c", "libcuda.so.1"),
            "GPUSENSE_LIBCUPTI": build(folder, "libcupti.c", "libcupti.so.13"),
        }
        for rate in ("28000", "100000"):
            for mode in ("live", "file"):
                command = [sys.executable, __file__, "child", mode, rate, pairs]
                subprocess.run(command, check=True, env={**os.environ, **libraries})


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
