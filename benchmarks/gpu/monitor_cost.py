"""What monitoring an NVIDIA device really costs, and whether its numbers are true. Needs a GPU; torch for the loads.

    python benchmarks/gpu/monitor_cost.py [--json PATH]

Ends within 90 seconds. Prints: every NVML call and every lane in wall and CPU time; the CPU share of a monitor at
100 ms and at 10 ms; nvitop, pynvml and nvidia-smi beside it in the same run; how well the period holds under a program
that never lets go of the GIL; what polling does to a kernel benchmark; GPM under load; PCIe rates against copies of
known size; and every value against ``nvidia-smi`` at the same moment.
"""

import argparse
import ctypes
import itertools
import json
import pathlib
import resource
import statistics
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from gpusense import monitor
from gpusense._capi import nvml as c
from gpusense.backends import nvml

ROWS: dict[str, object] = {}


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


def calls(source, device):
    print("NVML calls, wall / CPU µs")
    known = source._known()[device.uuid]
    api, handle, u32, u64 = known._nvml.api, known.handle, ctypes.c_uint(), ctypes.c_ulonglong()
    room = ctypes.create_string_buffer(65536)
    one, two, wide = ctypes.byref(u32), ctypes.byref(ctypes.c_uint()), ctypes.byref(u64)
    u = {
        "UtilizationRates": (api.nvmlDeviceGetUtilizationRates, room),
        "EncoderUtilization": (api.nvmlDeviceGetEncoderUtilization, one, two),
        "MemoryInfo": (api.nvmlDeviceGetMemoryInfo, room),
        "Temperature": (api.nvmlDeviceGetTemperature, 0, one),
        "PowerUsage": (api.nvmlDeviceGetPowerUsage, one),
        "EnforcedPowerLimit": (api.nvmlDeviceGetEnforcedPowerLimit, one),
        "ClockInfo": (api.nvmlDeviceGetClockInfo, 1, one),
        "PerformanceState": (api.nvmlDeviceGetPerformanceState, one),
        "CurrentClocksEventReasons": (api.nvmlDeviceGetCurrentClocksEventReasons, wide),
        "CurrPcieLinkWidth": (api.nvmlDeviceGetCurrPcieLinkWidth, one),
        "NvLinkState": (api.nvmlDeviceGetNvLinkState, 0, one),
        "TotalEccErrors": (api.nvmlDeviceGetTotalEccErrors, 0, 0, wide),
        "TotalEnergyConsumption": (api.nvmlDeviceGetTotalEnergyConsumption, wide),
        "MigMode": (api.nvmlDeviceGetMigMode, one, two),
    }
    for name, (function, *arguments) in u.items():
        code = function(handle, *arguments)
        wall, cpu = cost(lambda f=function, a=arguments: f(handle, *a))
        say(name + ("" if not code else f"  {c.code_name(code)}"), f"{wall:.1f} / {cpu:.1f}")
    for name, ids in {
        "fields 185+186 (power)": (185, 186),
        "fields 197+198 (PCIe bytes)": (197, 198),
        "fields 82+185+186+197+198": (82, 185, 186, 197, 198),
        "fields 138+139 (NVLink)": (138, 139),
    }.items():
        say(name, "{:.1f} / {:.1f}".format(*fields(api, handle, ids)))


def fields(api, handle, ids):
    entries = b"".join(
        struct.pack(c.FIELD_VALUE, i, c.ALL_LINKS if i in (138, 139) else 0, 0, 0, 0, 0, b"") for i in ids
    )
    room, count = ctypes.create_string_buffer(entries), len(ids)
    return cost(lambda: api.nvmlDeviceGetFieldValues(handle, count, room))


def lanes(source, device):
    print("lanes, wall / CPU µs a sample")
    for wanted in (("fast",), ("fast", "gpm"), ("counters",), ("medium",), ("slow",)):
        wall, cpu = cost(lambda w=wanted: source.sample(device, w), 30 if wanted != ("slow",) else 10)
        say("+".join(wanted), f"{wall:.1f} / {cpu:.1f}")


def shares():
    print("a running monitor after its first second: CPU share of one core, period, cost a sample")
    for interval, seconds in ((0.1, 8.0), (0.01, 4.0)):
        label = f"{interval * 1000:.0f} ms"
        with monitor.start_background(interval=interval, history=100_000) as running:
            time.sleep(1.5)
            ticks, before, start = running.stats().ticks, used(), time.monotonic()
            time.sleep(seconds)
            cpu, elapsed, stats = used() - before, time.monotonic() - start, running.stats()
            ticks, samples = stats.ticks - ticks, running.history(device=0)
        say(
            f"{label}: CPU share",
            f"{100 * cpu / elapsed:.3f} %  ({cpu / max(1, ticks) * 1e6:.0f} µs a tick, all lanes)",
        )
        say(f"{label}: jitter; late, skipped", f"{jitter(samples, interval)}; {stats.late}, {stats.skipped}")
        say(f"{label}: sample wall mean / max µs", f"{stats.mean_cost_ns / 1e3:.0f} / {stats.max_cost_ns / 1e3:.0f}")


def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def jitter(samples, interval):
    steps = itertools.pairwise(sample.monotonic_ns for sample in samples)
    away = sorted(abs((b - a) / 1e9 - interval) for a, b in steps)
    return f"p50 {away[len(away) // 2] * 1e6:.0f} µs, p99 {away[int(len(away) * 0.99)] * 1e6:.0f} µs" if away else "-"


def hogged():
    print("under a program that holds the GIL")
    stop = threading.Event()

    def hog():
        while not stop.is_set():
            sum(range(20_000))

    threads = [threading.Thread(target=hog, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    with monitor.start_background(interval=0.1) as running:
        time.sleep(4)
        stats, samples = running.stats(), running.history(device=0)
    stop.set()
    late = f"late {stats.late} of {stats.ticks}, skipped {stats.skipped}"
    say("100 ms with two busy threads", f"{jitter(samples, 0.1)}; {late}")


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


def kernels():
    """Median time of a kernel loop with and without a monitor at 100 ms, in alternation."""
    torch = _torch()
    if torch is None:
        return
    print("effect of polling on a kernel benchmark (ratio of medians; > 1 is slower)")
    a = torch.randn(2048, 2048, device="cuda")

    def loop():
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(150):
            a @ a
        torch.cuda.synchronize()
        return time.perf_counter() - start

    loop()
    plain, watched = [], []
    for _ in range(8):
        plain.append(loop())
        with monitor.start_background(interval=0.1):
            time.sleep(0.05)
            watched.append(loop())
    say(
        "kernel loop watched / plain",
        f"{statistics.median(watched) / statistics.median(plain):.4f}  spread ±{spread(plain):.4f}",
    )


def spread(values):
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values) / middle


def gpm_and_pcie():
    torch = _torch()
    if torch is None:
        return
    print("under load")
    stop = threading.Event()
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def work():
        while not stop.is_set():
            for _ in range(20):
                a @ a
            torch.cuda.synchronize()

    thread = threading.Thread(target=work)
    thread.start()
    with monitor.start_background(interval=0.2, gpm=True) as running:
        time.sleep(3)
        (sample, *_) = running.latest()
        window = running.window(seconds=2)[0]
    stop.set()
    thread.join()
    use = sample.utilization
    say(
        "matmul bf16: gpu / SM active / SM occupancy %",
        f"{use.gpu_percent} / {use.sm_active_percent} / {use.sm_occupancy_percent}",
    )
    say("matmul bf16: tensor / DRAM %", f"{use.tensor_percent} / {use.dram_bandwidth_percent}")
    say("GPM reason, if none", sample.reason("utilization.sm_active_percent") or "-")
    say("power W, energy of 2 s J, method", f"{sample.power.draw_watts} {window.energy_joules} {window.energy_method}")
    host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    card = torch.empty_like(host, device="cuda")
    for name, target, origin in (("host to device", card, host), ("device to host", host, card)):
        moved = 0
        with monitor.start_background(interval=0.1) as running:
            time.sleep(0.3)
            start = time.perf_counter()
            while time.perf_counter() - start < 2.5:
                for _ in range(4):
                    target.copy_(origin, non_blocking=True)
                torch.cuda.synchronize()
                moved += 4 * host.numel()
            true = moved / (time.perf_counter() - start)
            found = running.window(seconds=2)[0].statistics
            why = running.latest()[0].reason("pcie.rx_bytes_per_s")
            extra = running._samplers[0][1]._counters
        seen = {key: found[f"pcie.{key}_bytes_per_s"].p50 for key in ("rx", "tx") if f"pcie.{key}_bytes_per_s" in found}
        say(
            f"{name}: true GB/s; seen rx, tx",
            f"{true / 1e9:.2f}; {', '.join(f'{k} {v / 1e9:.2f}' for k, v in seen.items()) or why}",
        )
    say("extra reads of the byte counters", f"every {extra.period_ns / 1e6:.0f} ms" if extra else "none needed")


def against_smi(source, device):
    print("against nvidia-smi at the same moment (ours | theirs)")
    fields = {
        "temperature.gpu": lambda m: m.thermal.gpu_celsius,
        "temperature.memory": lambda m: m.thermal.memory_celsius,
        "power.draw.instant": lambda m: m.power.draw_watts,
        "power.draw.average": lambda m: m.power.average_watts,
        "enforced.power.limit": lambda m: m.power.limit_watts,
        "utilization.gpu": lambda m: m.utilization.gpu_percent,
        "utilization.memory": lambda m: m.utilization.memory_controller_percent,
        "memory.total": lambda m: m.memory.total_bytes / 2**20,
        "memory.used": lambda m: m.memory.used_bytes / 2**20,
        "memory.free": lambda m: m.memory.free_bytes / 2**20,
        "memory.reserved": lambda m: m.memory.reserved_bytes and m.memory.reserved_bytes / 2**20,
        "clocks.gr": lambda m: m.clocks.graphics_mhz,
        "clocks.mem": lambda m: m.clocks.memory_mhz,
        "pstate": lambda m: f"P{m.clocks.performance_state}",
        "pcie.link.gen.current": lambda m: m.pcie.generation,
        "pcie.link.width.current": lambda m: m.pcie.width,
        "ecc.errors.corrected.volatile.total": lambda m: m.health.ecc_corrected,
        "ecc.errors.uncorrected.aggregate.total": lambda m: m.health.ecc_uncorrected_lifetime,
        "fan.speed": lambda m: m.thermal.fan_percent,
        "clocks_event_reasons.active": lambda m: m.clocks.throttle_reasons,
    }
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "-i", device.uuid]
    text = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.strip()
    ours = source.sample(device, ("fast", "medium", "slow"))
    for (name, get), theirs in zip(fields.items(), text.split(", "), strict=False):
        say(name, f"{get(ours)} | {theirs}")
    for group in ("thermal", "links", "pcie", "health", "power"):
        for field, value in zip(getattr(ours, group)._fields, getattr(ours, group), strict=True):
            if value is None:
                say(f"None: {group}.{field}", ours.reason(f"{group}.{field}"))


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
    print(f"{device.name}, driver {device.driver}, Python {sys.version.split()[0]}")
    source.sample(device)
    for step in (
        lambda: calls(source, device),
        lambda: lanes(source, device),
        shares,
        hogged,
        peers,
        kernels,
        gpm_and_pcie,
        lambda: against_smi(source, device),
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
