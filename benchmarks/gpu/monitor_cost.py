"""What monitoring an NVIDIA device really costs, call by call. Needs a GPU; torch for the copies.

    python benchmarks/gpu/monitor_cost.py [--json PATH]

Ends within 60 seconds. Prints: every NVML call that every lane makes, with the arguments it is made with, in wall and
CPU time, both at a monitor's pace and back to back (a call after a pause costs more than the second of two); ways to
one value; every lane; the CPU share of a running monitor by thread; pynvml, nvitop and nvidia-smi beside it in the same
run; and PCIe rates against copies of known size. Whether values are true is tested in ``tests/gpu/test_nvml.py``.
"""

import argparse
import ctypes
import itertools
import json
import os
import pathlib
import resource
import statistics
import struct
import subprocess
import sys
import threading
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from gpusense import monitor
from gpusense._capi import nvml as c
from gpusense.backends.nvml import source as nvml
from gpusense.backends.nvml.library import Nvml

ROWS: dict[str, object] = {}
ROUNDS = 20
VERSIONS = {"temperature": c.VERSION_TEMPERATURE, "memory": c.VERSION_MEMORY_V2}
FIELDS = ((186,), (185,), (82,), (82, 185, 186), (83,), (197,), (198,), (197, 198), (138,), (138, 139))


def say(name, value, unit=""):
    ROWS[name] = value
    shown = f"{value:,.1f}" if isinstance(value, float) else value
    print(f"  {name:<52} {shown} {unit}", flush=True)


def cost(action, repeat=20):
    """(median wall, mean CPU of this thread) in microseconds."""
    action()
    walls, cpu = [], time.thread_time_ns()
    for _ in range(repeat):
        start = time.perf_counter_ns()
        action()
        walls.append(time.perf_counter_ns() - start)
    return statistics.median(walls) / 1e3, (time.thread_time_ns() - cpu) / repeat / 1e3


class Timed:
    """One NVML function that notes what each call cost, by name, number arguments and field ids."""

    def __init__(self, function, book):
        self._function = function
        self._book = book
        self.__name__ = function.__name__
        self.argtypes = function.argtypes

    def __call__(self, *arguments):
        label = self._label(arguments)
        start, cpu = time.perf_counter_ns(), time.thread_time_ns()
        code = self._function(*arguments)
        spent = time.thread_time_ns() - cpu
        self._book.setdefault(label, []).append((time.perf_counter_ns() - start, spent, code))
        return code

    def _label(self, arguments):
        name = self.__name__.removeprefix("nvmlDeviceGet").removeprefix("nvml")
        if name == "FieldValues":
            size = struct.calcsize(c.FIELD_VALUE)
            ids = (struct.unpack_from("<I", arguments[2], place * size)[0] for place in range(arguments[1]))
            return f"fields {'+'.join(map(str, ids))}"
        numbers = [str(value) for value in arguments[1:] if isinstance(value, int) and value < 64]
        return f"{name}({', '.join(numbers)})" if numbers and name != "ProcessUtilization" else name


def calls(source, device):
    """A second source over the same library, whose every device call is timed."""
    print("NVML calls of each lane: wall / CPU µs at a monitor's pace | back to back  (medians; how often; last code)")
    book = {}
    functions = vars(source._nvml.api)
    api = types.SimpleNamespace(
        **{
            name: Timed(function, book) if function and name.startswith(("nvmlDevice", "nvmlGpm")) else function
            for name, function in functions.items()
        }
    )
    timed = nvml.NvmlSource(Nvml(api, source._nvml.path))
    try:
        for lanes in (("fast",), ("fast", "gpm"), ("medium",), ("slow",)):
            for _ in range(3):  # what is permanently refused is asked here for the last time
                timed.sample(device, lanes)
                time.sleep(0.1)
            print(f"  -- {'+'.join(lanes)}")
            paced, hot = (run(timed, device, lanes, book, pause) for pause in (0.1 if "fast" in lanes else 0.05, 0))
            for label, rows in sorted(paced.items(), key=lambda item: -sum(row[1] for row in item[1])):
                told = f"  {c.code_name(rows[-1][2])}" if rows[-1][2] else ""
                say(
                    f"{'+'.join(lanes)} {label}",
                    f"{both(rows)} | {both(hot.get(label, rows))}   x{len(rows) / ROUNDS:g}{told}",
                )
    finally:
        timed.close()


def run(timed, device, lanes, book, pause):
    book.clear()
    for _ in range(ROUNDS):
        timed.sample(device, lanes)
        time.sleep(pause)
    return dict(book)


def both(rows):
    wall, cpu = (statistics.median(row[place] for row in rows) / 1e3 for place in (0, 1))
    return f"{wall:8.1f} / {cpu:8.1f}"


def ways(source, device):
    """Calls that give the same value, and fields one by one, so that the cheaper can be chosen."""
    print("ways to one value: wall / CPU µs at a monitor's pace  (median; last code)")
    api, handle = source._nvml.api, source._known()[device.uuid].watchable()
    u32, u64, room = (
        ctypes.byref(ctypes.c_uint()),
        ctypes.byref(ctypes.c_ulonglong()),
        ctypes.create_string_buffer(4096),
    )
    versioned = {
        name: ctypes.create_string_buffer(struct.pack("<I", version), 256) for name, version in VERSIONS.items()
    }
    table = {
        "TemperatureV": lambda: api.nvmlDeviceGetTemperatureV(handle, versioned["temperature"]),
        "Temperature": lambda: api.nvmlDeviceGetTemperature(handle, 0, u32),
        "MemoryInfo_v2": lambda: api.nvmlDeviceGetMemoryInfo_v2(handle, versioned["memory"]),
        "MemoryInfo": lambda: api.nvmlDeviceGetMemoryInfo(handle, room),
        "CurrentClocksEventReasons": lambda: api.nvmlDeviceGetCurrentClocksEventReasons(handle, u64),
        "CurrentClocksThrottleReasons": lambda: api.nvmlDeviceGetCurrentClocksThrottleReasons(handle, u64),
        "PowerUsage": lambda: api.nvmlDeviceGetPowerUsage(handle, u32),
        **{f"fields {ids}": field_call(api, handle, ids) for ids in FIELDS},
    }
    rows = {name: [] for name in table}
    for turn in range(ROUNDS + 1):
        for name, call in table.items():
            start, cpu = time.perf_counter_ns(), time.thread_time_ns()
            code = call()
            spent = time.thread_time_ns() - cpu
            if turn:
                rows[name].append((time.perf_counter_ns() - start, spent, code))
        time.sleep(0.1)
    for name, found in rows.items():
        say(name, both(found) + (f"  {c.code_name(found[-1][2])}" if found[-1][2] else ""))


def field_call(api, handle, ids):
    entries = b"".join(
        struct.pack(c.FIELD_VALUE, i, c.ALL_LINKS if i in (138, 139) else 0, 0, 0, 0, 0, b"") for i in ids
    )
    room, count = ctypes.create_string_buffer(entries), len(ids)

    def call():
        code = api.nvmlDeviceGetFieldValues(handle, count, room)
        return code or struct.unpack_from(c.FIELD_VALUE, room)[5]

    return call


def lanes(source, device):
    print("lanes, wall / CPU µs a sample")
    for wanted in (("fast", "lean"), ("fast",), ("counters",), ("medium", "lean"), ("medium",), ("slow",)):
        wall, cpu = cost(lambda w=wanted: source.sample(device, w), 30 if wanted != ("slow",) else 10)
        say("+".join(wanted), f"{wall:.1f} / {cpu:.1f}")


def shares():
    print("a running monitor after its first second: CPU share of one core, period, cost a sample")
    ways = ((0.1, 8.0, {}), (0.1, 4.0, {"pcie": "continuous"}), (0.1, 4.0, {"gpm": True}), (0.01, 2.0, {}))
    for interval, seconds, settings in ways:
        label = " ".join((f"{interval * 1000:.0f} ms", *map(str, settings)))
        with monitor.start_background(interval=interval, history=100_000, **settings) as running:
            time.sleep(1.5)
            ticks, before, each, start = running.stats().ticks, used(), by_thread(), time.monotonic()
            time.sleep(seconds)
            cpu, after, elapsed = used() - before, by_thread(), time.monotonic() - start
            stats, samples = running.stats(), running.history(device=0)
            ticks = stats.ticks - ticks
        say(
            f"{label}: CPU share",
            f"{100 * cpu / elapsed:.3f} %  ({cpu / max(1, ticks) * 1e6:.0f} µs a tick, all lanes)",
        )
        for name, (spent, waits) in after.items():
            spent, waits = spent - each.get(name, (0, 0))[0], waits - each.get(name, (0, 0))[1]
            say(f"{label}: thread {name}", f"{spent / elapsed / 1e7:.3f} %, {waits / elapsed:.1f} wake-ups a second")
        say(f"{label}: jitter; late, skipped", f"{jitter(samples, interval)}; {stats.late}, {stats.skipped}")
        say(f"{label}: sample wall mean / max µs", f"{stats.mean_cost_ns / 1e3:.0f} / {stats.max_cost_ns / 1e3:.0f}")


def by_thread():
    """Thread name → (CPU nanoseconds, voluntary waits) so far, as the kernel counts them."""
    names = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    found = {}
    for folder in pathlib.Path("/proc/self/task").iterdir():
        ns = cpu_ns(folder)
        waits = next(line.split()[1] for line in (folder / "status").read_text().splitlines() if "voluntary" in line)
        found[names.get(folder.name, f"{(folder / 'comm').read_text().strip()} {folder.name}")] = ns, int(waits)
    return found


def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cpu_ns(folder):
    try:
        return int((folder / "schedstat").read_text().split()[0])
    except OSError:  # a kernel without it counts in ticks
        user, system = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def jitter(samples, interval):
    steps = itertools.pairwise(sample.monotonic_ns for sample in samples)
    away = sorted(abs((b - a) / 1e9 - interval) for a, b in steps)
    return f"p50 {away[len(away) // 2] * 1e6:.0f} µs, p99 {away[int(len(away) * 0.99)] * 1e6:.0f} µs" if away else "-"


def peers():
    print("peers in the same run, wall / CPU µs for their own full sample")
    try:
        import pynvml
    except ImportError:
        say("pynvml", "not installed")
    else:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)

        def plain():
            pynvml.nvmlDeviceGetUtilizationRates(handle)
            pynvml.nvmlDeviceGetMemoryInfo(handle)
            pynvml.nvmlDeviceGetTemperature(handle, 0)
            pynvml.nvmlDeviceGetPowerUsage(handle)
            for clock in range(4):
                pynvml.nvmlDeviceGetClockInfo(handle, clock)
            pynvml.nvmlDeviceGetPerformanceState(handle)

        say("pynvml: 9 calls, no PCIe", "{:.1f} / {:.1f}".format(*cost(plain)))

        def as_peers_do():
            plain()
            pynvml.nvmlDeviceGetPcieThroughput(handle, 0)
            pynvml.nvmlDeviceGetPcieThroughput(handle, 1)

        say("pynvml: with PcieThroughput both ways", "{:.1f} / {:.1f}".format(*cost(as_peers_do, 5)))
    try:
        from nvitop import Device, ResourceMetricCollector
    except ImportError:
        say("nvitop", "not installed")
    else:
        collector = ResourceMetricCollector(Device.all())
        with collector(tag="x"):
            say("nvitop: ResourceMetricCollector.collect()", "{:.1f} / {:.1f}".format(*cost(collector.collect, 5)))
    start = time.perf_counter()
    subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, timeout=30)
    say("nvidia-smi -q -x", f"{(time.perf_counter() - start) * 1e6:.0f} wall")


def pcie():
    torch = _torch()
    if torch is None:
        return
    print("PCIe rates against copies of known size: true GB/s; seen; the window of a rate")
    host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    card = torch.empty_like(host, device="cuda")
    ways = (
        ("host to device, sampled", card, host, "rx", 4.6, {}),
        ("host to device, continuous", card, host, "rx", 1.5, {"pcie": "continuous"}),
        ("host to device, GPM", card, host, "rx", 1.5, {"gpm": True}),
        ("device to host, continuous", host, card, "tx", 1.5, {"pcie": "continuous"}),
        ("device to host, GPM", host, card, "tx", 1.5, {"gpm": True}),
    )
    for name, target, origin, direction, seconds, settings in ways:
        with monitor.start_background(interval=0.1, **settings) as running:
            moved, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                for _ in range(4):
                    target.copy_(origin, non_blocking=True)
                torch.cuda.synchronize()
                moved += 4 * host.numel()
            true = moved / (time.perf_counter() - start)
            sample = running.latest()[0]
            kept = [one.pcie for one in running.history(seconds=seconds - 0.5)]
        rates = {one.rate_monotonic_ns: one for one in kept if one.rate_monotonic_ns}
        found = [getattr(one, f"{direction}_bytes_per_s") or 0 for one in rates.values()][1:]
        seen = f"{statistics.median(found) / 1e9:.2f} of {len(found)} readings" if found else "nothing"
        why = sample.reason(f"pcie.{direction}_bytes_per_s") or f"{sample.pcie.rate_window_s:.4f} s"
        say(name, f"{true / 1e9:.2f}; {seen}; {why}")


def _torch():
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    path = parser.parse_args().json
    began = time.monotonic()
    backend = nvml.open()
    if not backend:
        sys.exit(str(backend))
    source = backend.metrics
    (device, *_) = source.devices()
    print(f"{device.name}, driver {device.driver}, Python {sys.version.split()[0]}, Linux {os.uname().release}")
    source.sample(device)
    for step in (
        lambda: calls(source, device),
        lambda: ways(source, device),
        lambda: lanes(source, device),
        shares,
        peers,
        pcie,
    ):
        try:
            step()
        except Exception as error:  # noqa: PERF203  one part that fails must not hide the others
            say(f"FAILED {getattr(step, '__name__', 'step')}", f"{type(error).__name__}: {error}")
    say("total seconds", f"{time.monotonic() - began:.0f}")
    if path:
        pathlib.Path(path).write_text(json.dumps(ROWS, indent=1))


if __name__ == "__main__":
    main()
