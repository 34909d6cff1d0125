"""Hardware counters over time on a real GPU: what they say of known work, what reading them costs, and who gets in.

    python benchmarks/gpu/counters.py [--seconds 120] [--details FOLDER] [--parts known,blocks]
    python benchmarks/gpu/counters.py --part soak 420

Each part is a process of its own, so that one that dies costs the others nothing. The table comes last.
"""

import argparse
import bisect
import contextlib
import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time

import gpusense

HERE = pathlib.Path(__file__).resolve()
MS = 1_000_000


def estimate(values):
    """The median of the means of all pairs, with a 95 % interval from signed ranks."""
    values = sorted(values)
    count = len(values)
    if count < 3:
        return "too few"
    means = sorted((a + b) / 2 for i, a in enumerate(values) for b in values[i:])
    half = 1.96 * math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    low = max(0, int(count * (count + 1) / 4 - half))
    return f"{statistics.median(means):.4f} [{means[low]:.4f}, {means[-1 - low]:.4f}] n={count}"


def say(**facts):
    """A line for the table, and for the details."""
    print(json.dumps(facts), flush=True)


def told(tracer):
    return tracer.status()["counters"]


def sampling(tracer, seconds=30):
    """Waits until the sampler runs; whether it does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and told(tracer)["state"] in ("waiting", "trying"):
        with gpusense.trace("waiting"):
            time.sleep(0.02)
    return told(tracer)["state"] == "sampling"


def begin(rate, **settings):
    import torch

    torch.zeros(1, device="cuda")
    gpusense.configure(mode="on", counters=rate, **settings)
    tracer = gpusense.get_tracer()
    began = time.monotonic()
    going = sampling(tracer)
    say(what="start", sampling=going, seconds=round(time.monotonic() - began, 2), status=told(tracer))
    return torch, tracer, going


# --- parts ------------------------------------------------------------------------------------------------------------


def known():
    """Products, additions and copies of known size, small kernels of known number; each in a block of its own."""
    torch, tracer, going = begin("1kHz")
    if not going:
        return
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    big = torch.randn(1 << 28, device="cuda")  # 1 GiB
    host = torch.empty(1 << 27, dtype=torch.uint8, pin_memory=True)  # 128 MiB
    there = torch.empty(1 << 27, dtype=torch.uint8, device="cuda")
    small = torch.zeros(1, device="cuda")
    work = {
        "products": (100, lambda: a @ a),
        "adds": (200, lambda: big.add_(1)),
        "to device": (40, lambda: there.copy_(host, non_blocking=True)),
        "to host": (40, lambda: host.copy_(there, non_blocking=True)),
        "launches": (20_000, lambda: small.add_(1)),
    }
    for _, run in work.values():  # what is done once is done before
        run()
    torch.cuda.synchronize()
    time.sleep(0.2)
    for name, (times, run) in work.items():
        with gpusense.trace(name):
            for _ in range(times):
                run()
            torch.cuda.synchronize()
        time.sleep(0.1)
    time.sleep(0.5)
    session = tracer.session()
    from gpusense.analysis.counters import block_shares

    rows = {row.path[-1]: row for row in block_shares(session) if row.path}
    stretches = {"adds": ("dram_read_bytes", 200 << 30), "to device": ("pcie_rx_bytes", 40 << 27),
                 "to host": ("pcie_tx_bytes", 40 << 27), "launches": ("dispatches", 20_000)}  # fmt: skip
    for name, row in rows.items():
        if name not in work:
            continue
        share = row.sampled_ns / row.device_ns if row.device_ns else 0
        facts = {
            "what": f"known {name}", "device_ms": round(row.device_ns / 1e6, 2), "sampled": round(share, 4),
            "sm": row.sm_active_percent, "tensor": row.tensor_percent, "busy": row.graphics_engine_percent,
            "dram_GB_s": round((row.dram_bytes_per_s or 0) / 1e9, 1), "dram_percent": row.dram_percent,
            "copy_engine": row.copy_engine_percent, "clock": row.sm_clock_mhz, "shared": row.shared,
            "pcie_rx": row.pcie_rx_bytes, "pcie_tx": row.pcie_tx_bytes, "dispatches": row.dispatches,
            "l2": row.l2_bytes, "moved_us": (row.moved_ns or 0) / 1e3,
        }  # fmt: skip
        if name in stretches:
            field, amount = stretches[name]
            facts["ratio"] = round(getattr(row, field) / amount, 4)
            facts["of"] = field
        say(**facts)
    edges(torch, tracer, a)
    say(what="status", status=tracer.status().get("state"), counters=session.meta["sources"]["counters"])


def blocks():
    """By block, how much of its time kernels ran: by CUPTI's records, and by samples. The same work in passes of many
    samples and of few: what is shown of the short ones must be what the long ones say.

    A launch on the device is work to the hardware, and between the records of two kernels: ``joined`` has these pauses
    of 3 µs and less as work."""
    torch, tracer, going = begin("1kHz", trace_all=True)
    if not going:
        return
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    big = torch.randn(1 << 26, device="cuda")  # 256 MiB
    host = torch.empty(1 << 24, dtype=torch.uint8, pin_memory=True)  # 16 MiB
    there = torch.empty(1 << 24, dtype=torch.uint8, device="cuda")

    def idle():
        big[:1].add_(1)
        torch.cuda.synchronize()
        time.sleep(0.004)
        big[:1].add_(1)

    work = {  # about 0.2 ms each, but for the last
        "product": lambda: a @ a,
        "add": lambda: big.add_(1),
        "copy": lambda: there.copy_(host, non_blocking=True),
        "idle": idle,
    }
    for run in work.values():
        run()
    torch.cuda.synchronize()
    time.sleep(0.2)
    for name, steps, times in (("long", 1, 400), ("some ms", 12, 30), ("few samples", 30, 12), ("a sample", 60, 5),
                               ("short", 150, 2)):  # fmt: skip
        with gpusense.trace(name):
            for _ in range(steps):
                for part, run in work.items():
                    with gpusense.trace(part):
                        for _ in range(max(1, times // 20) if run is idle else times):
                            run()
            torch.cuda.synchronize()
        with gpusense.trace("between"):
            big[:1].add_(1)
            torch.cuda.synchronize()
        time.sleep(0.1)
    time.sleep(0.6)
    session = tracer.session()
    from gpusense.analysis.counters import block_shares, device_stretches

    rows = {row.path: row for row in block_shares(session)}
    kernels = union((kernel.start_ns, kernel.end_ns) for kernel in session.kernels)
    joined = union((kernel.start_ns, kernel.end_ns + 3_000) for kernel in session.kernels)
    for path, (spans, _) in device_stretches(session, 0)[0].items():
        if len(path) < 2:
            continue
        row, spent = rows.get(path), sum(end - start for start, end in spans)
        shares = {name: getattr(row, f"{name}_percent", None) for name in SHARES}
        records, with_launches = (100 * inside(spans, found) / max(1, spent) for found in (kernels, joined))
        busy = shares["graphics_engine"]
        say(what="block " + "/".join(path), passes=len(spans), pass_ms=round(spent / len(spans) / 1e6, 3),
            samples=row and round(row.samples, 1), records=round(records, 2), joined=round(with_launches, 2),
            points=None if busy is None else round(busy - with_launches, 2), **shares,
            why=row and row.reason)  # fmt: skip
    (part,) = session.counter_samples.parts()
    lost = [after - end for end, after in zip(part.end, part.start[1:], strict=False) if after > end]
    say(what="clocks and gaps", told_us=(told(tracer)["devices"]["0"]["clock_error_ns"] or 0) / 1e3, gaps=len(lost),
        moved_us=next((row.moved_ns / 1e3 for row in rows.values() if row.moved_ns is not None), None),
        gaps_ms=[round(one / 1e6, 2) for one in lost[:8]], counters=told(tracer))  # fmt: skip


#: Of a block, as samples have them.
SHARES = ("graphics_engine", "sm_active", "tensor", "copy_engine")


def union(spans):
    """In order, without overlaps."""
    joined = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return joined


def inside(spans, joined):
    """How much of the time of ``spans`` lies in ``joined``, which has no overlaps."""
    ends, found = [end for _, end in joined], 0
    for first, last in spans:
        for start, end in joined[bisect.bisect_right(ends, first) :]:
            if start >= last:
                break
            found += min(end, last) - max(start, first)
    return found


def decoding():
    """What CUPTI's own decoding of a sample costs: by how many metrics, how often it is asked, how large its image."""
    for fields, images, waits in ((2, 384, (0.1, 0.23)), (4, 384, (0.23,)), (8, 128, (0.07,)),
                                  (8, 384, (0.05, 0.1, 0.23)), (8, 512, (0.3,)), (14, 384, (0.23,))):  # fmt: skip
        given = [sys.executable, str(HERE), "--part", "decoding_of", str(fields), str(images), *map(str, waits)]
        try:
            done = subprocess.run(given, capture_output=True, text=True, timeout=16)
            print(done.stdout or json.dumps({"what": "decoding", "fields": fields, "error": done.stderr[-200:]}))
        except subprocess.TimeoutExpired:
            say(what="decoding", fields=fields, image=images, ended="took too long")


def decoding_of(fields, image, *waits):
    from gpusense.cuda import Buffer, Device

    _keep = Buffer(64, Device(0))
    from gpusense.backends import cuda
    from gpusense.backends.cupti.counters import host, sampler
    from gpusense.backends.cupti.counters.metrics import FIELDS

    sampler.SAMPLES, sampler.HARDWARE_BYTES = int(image), sampler.MANY_HARDWARE_BYTES
    for name in list(FIELDS)[int(fields) :]:
        del FIELDS[name]
    one = sampler.opened(host.open_api(), cuda.SOURCE.api(), 0, MS)
    one.start()
    for wait in map(float, waits):
        one.read()
        decode = clear = 0.0
        samples = calls = full = 0
        until = time.monotonic() + max(1.5, wait)
        while time.monotonic() < until:
            time.sleep(wait)
            marks = [time.thread_time()]
            one._call("cuptiPmSamplingDecodeData", one._decode)
            marks.append(time.thread_time())
            one._call("cuptiPmSamplingGetCounterDataInfo", one._info)
            samples, calls = samples + int(one._info.numCompletedSamples), calls + 1
            full += one._decode.decodeStopReason == 1  # DATA_FULL: the rest is lost
            marks.append(time.thread_time())
            one._call("cuptiPmSamplingCounterDataImageInitialize", one._clear)
            decode, clear = decode + marks[1] - marks[0], clear + time.thread_time() - marks[2]
        say(what="decoding", fields=len(one.fields), image=sampler.SAMPLES, image_MB=round(one.image_bytes / 1e6, 2),
            every_s=wait, calls=calls, samples=samples, decode_us=round(decode / max(1, samples) * 1e6, 1),
            clear_us=round(clear / max(1, samples) * 1e6, 1), full=full)  # fmt: skip
    one.end()


def soak(seconds):
    """Sampling at 1 kHz beside a training that goes on: memory, samples that are missing, the file, what it costs."""
    import resource
    import tempfile

    import torch

    sys.path.insert(0, str(HERE.parent))
    import workloads

    from gpusense._tracing.select import control

    step = workloads.small()
    step()
    path = pathlib.Path(tempfile.mkdtemp(), "soak.gpusense")
    run = control.start_session(mode="file", path=str(path), counters="1kHz", kernels="blocks")
    going = sampling(run.tracer)
    say(what="soak begins", sampling=going)

    def resident_mb():
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6

    def own():
        """Processor time of gpusense's threads by name, seconds."""
        found = {}
        for thread in threading.enumerate():
            if thread.name.startswith("gpusense"):
                stat = pathlib.Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
                found[thread.name] = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        return found

    began = time.monotonic()
    cpu, next_row, steps, first = own(), 0.0, 0, told(run.tracer)["devices"]["0"]["samples"] if going else 0
    while (elapsed := time.monotonic() - began) < seconds:
        with gpusense.trace("step"):
            step()
        steps += 1
        if elapsed >= next_row:
            next_row = 60 * (elapsed // 60 + 1)
            say(what="soak", s=round(elapsed), resident_MB=round(resident_mb(), 1), steps=steps,
                file_kB=round(path.stat().st_size / 1e3, 1))  # fmt: skip
    torch.cuda.synchronize()
    elapsed, status = time.monotonic() - began, told(run.tracer)
    spent = {name: round(100 * (now - cpu.get(name, 0)) / elapsed, 2) for name, now in own().items()}
    device = status.get("devices", {}).get("0", {})
    say(what="soak ends", s=round(elapsed), resident_MB=round(resident_mb(), 1), steps=steps,
        samples=device.get("samples", 0) - first, expected=round(elapsed * 1e3), gaps=device.get("gaps"),
        failed=device.get("failed"), own_cpu_percent=spent, status=status)  # fmt: skip
    session = run.finish()
    (part,) = session.counter_samples.parts() or [()]
    lost = [after - end for end, after in zip(part.end, part.start[1:], strict=False) if after > end] if part else []
    say(what="soak's session", file_kB=round(path.stat().st_size / 1e3, 1), samples=len(part), gaps=len(lost),
        missing_ms=round(sum(lost) / 1e6, 2), longest_ms=round(max(lost, default=0) / 1e6, 2),
        damage=session.meta.get("damage"), overhead=session.meta.get("overhead"))  # fmt: skip


def edges(torch, tracer, a):
    """Products begin and end at known times, by the records: where do the samples have their edges?"""
    for _ in range(40):
        with gpusense.trace("edge"):
            for _ in range(20):
                a @ a
            torch.cuda.synchronize()
        time.sleep(0.02 + 0.0137 * (_ % 3))
    time.sleep(0.4)
    session = tracer.session()
    from gpusense.analysis.counters import device_stretches

    spans = next((spans for path, (spans, _) in device_stretches(session, 0)[0].items() if path == ("edge",)), [])
    starts, ends = [], []
    (columns,) = session.counter_samples.parts()
    values = columns.column("sm_active_percent")
    from bisect import bisect_right

    # A run may hold several passes, with nothing of others in between: they are parted where nothing ran.
    kernels = sorted((kernel.start_ns, kernel.end_ns) for kernel in session.kernels if kernel.path == ("edge",))
    groups = []
    for start, end in kernels:
        if groups and start - groups[-1][1] < 5 * MS:
            groups[-1][1] = max(end, groups[-1][1])
        else:
            groups.append([start, end])
    for start, end in groups:
        row = bisect_right(columns.start, start) - 1
        level = statistics.median(values[row + 2 : row + 6] or [0])
        if 2 < row < len(values) - 8 and level > 20:
            first = next((at for at in range(row - 3, row + 4) if values[at] > 0.02 * level), row)
            part = min(1.0, values[first] / level)
            starts.append(columns.end[first] - part * (columns.end[first] - columns.start[first]) - start)
        row = bisect_right(columns.start, end) - 1
        if 2 < row < len(values) - 5 and level > 20:
            last = next((at for at in range(row + 3, row - 4, -1) if values[at] > 0.02 * level), row)
            part = min(1.0, values[last] / level)
            ends.append(columns.start[last] + part * (columns.end[last] - columns.start[last]) - end)
    if starts and ends:
        say(what="edges", passes=len(groups), spans=len(spans),
            start_us=[round(x / 1e3, 1) for x in (min(starts), statistics.median(starts), max(starts))],
            end_us=[round(x / 1e3, 1) for x in (min(ends), statistics.median(ends), max(ends))],
            told_us=(told(tracer)["devices"]["0"]["clock_error_ns"] or 0) / 1e3)  # fmt: skip


def cost():
    """What a sample costs, by part: decoding, reading in one call or by ctypes, clearing; of many fields and of few."""
    from gpusense.cuda import Buffer, Device

    _keep = Buffer(64, Device(0))
    from gpusense.backends import cuda
    from gpusense.backends.cupti.counters import host, sampler
    from gpusense.backends.cupti.counters.metrics import FIELDS

    api = host.open_api()
    every, address = dict(FIELDS), sampler._address
    ways = ((14, "code", "nvperf"), (14, "code", "CUPTI"), (14, "ctypes", "nvperf"), (8, "code", "nvperf"),
            (8, "code", "CUPTI"), (4, "code", "nvperf"))  # fmt: skip
    for count, by, values in ways:
        FIELDS.clear()
        FIELDS.update(list(every.items())[:count])
        sampler._address = address if by == "code" else lambda: None
        one = sampler.opened(api, cuda.SOURCE.api(), 0, MS)
        one._compared = values == "CUPTI"
        one.start()
        time.sleep(0.1)
        one.read()  # from here on by libnvperf_host, where that agrees
        spent = dict.fromkeys(("decode", "rows", "clear"), 0.0)
        wall, samples, until = 0.0, 0, time.monotonic() + 1.5
        while time.monotonic() < until:
            time.sleep(0.2)
            marks, began = [time.thread_time()], time.monotonic()
            one._call("cuptiPmSamplingDecodeData", one._decode)
            one._call("cuptiPmSamplingGetCounterDataInfo", one._info)
            marks.append(time.thread_time())
            number = int(one._info.numCompletedSamples)
            one._rows.read(number)
            marks.append(time.thread_time())
            one._call("cuptiPmSamplingCounterDataImageInitialize", one._clear)
            marks.append(time.thread_time())
            wall += time.monotonic() - began
            for name, before, after in zip(spent, marks, marks[1:], strict=False):
                spent[name] += after - before
            samples += number
        one.end()
        say(what="cost", fields=len(one.fields), by=by, values=one.evaluated_by, samples=samples,
            image_MB=round(one.image_bytes / 1e6, 2), wall_us=round(wall / max(1, samples) * 1e6, 2),
            **{f"{name}_us": round(value / max(1, samples) * 1e6, 2) for name, value in spent.items()})  # fmt: skip


def clocks():
    """The SM clock under load, without and with sampling, in turn: by NVML, and what a product takes."""
    import ctypes

    import torch

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    nvml, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))

    def clock(kind=1):
        value = ctypes.c_uint32()
        return value.value if nvml.nvmlDeviceGetClockInfo(device, kind, ctypes.byref(value)) == 0 else None

    def idle():
        time.sleep(0.4)
        return clock()

    def products(seconds=0.4):
        end = time.perf_counter() + 0.1
        while time.perf_counter() < end:
            a @ a
            torch.cuda.synchronize()
        count, seen, began = 0, [], time.perf_counter()
        while time.perf_counter() - began < seconds:
            for _ in range(4):
                a @ a
            torch.cuda.synchronize()
            count += 4
            seen.append(clock())
        return (time.perf_counter() - began) / count * 1e3, statistics.median(seen)

    from gpusense.backends import cuda
    from gpusense.backends.cupti.counters import host, sampler

    api = host.open_api()
    before = idle(), products()
    ratios, without, during = [], [], []
    resting = []
    for _ in range(5):
        away = products()
        one = sampler.opened(api, cuda.SOURCE.api(), 0, MS)
        one.start()
        on = products()
        one.read()
        resting.append(idle())
        one.end()
        ratios.append(on[0] / away[0])
        without.append(away[1])
        during.append(on[1])
    after = idle(), products()
    say(what="clocks", idle_before=before[0], idle_sampling=resting, idle_after=after[0], before=before[1],
        after=after[1], without_mhz=without, sampling_mhz=during, product_time=estimate(ratios))  # fmt: skip


def overhead(seconds=18.0):
    """Launch-bound training, without and with sampling at 1 kHz and all that reads it, in turn; no CUPTI records."""
    import torch

    sys.path.insert(0, str(HERE.parent))
    import workloads

    from gpusense.backends.cupti.counters import source

    step = workloads.small()
    for _ in range(10):
        step()
    torch.cuda.synchronize()

    def stretch(length):
        step()
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < length:
            step()
            count += 1
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    wanted = False
    one = source.CounterSource("1kHz", lambda columns: None, lambda: wanted)
    wanted = True
    until = time.monotonic() + 15
    while one.state != "sampling" and time.monotonic() < until and one.state != "unavailable":
        time.sleep(0.05)
    ratios, until = [], time.monotonic() + seconds
    while time.monotonic() < until and one.state in ("sampling", "paused"):
        wanted = False
        while one.state == "sampling":
            time.sleep(0.01)
        away = stretch(0.4)
        wanted = True
        while one.state == "paused":
            time.sleep(0.01)
        ratios.append(stretch(0.4) / away)
    wanted = False
    while one.state == "sampling":
        time.sleep(0.01)
    still = [stretch(0.3) / stretch(0.3) for _ in range(8)]
    say(what="overhead", training=estimate(ratios), same_against_same=estimate(still), status=one.status())
    one.end(2.0)


def torch_profiler():
    """torch.profiler begins and ends while counters are sampled."""
    torch, tracer, going = begin("1kHz")
    if not going:
        return
    a = torch.randn(2048, 2048, device="cuda")
    counts = []
    for number in range(3):
        before = len(tracer.session().counter_samples)
        if number == 1:
            from torch.profiler import ProfilerActivity, profile

            with profile(activities=[ProfilerActivity.CUDA]) as found:
                for _ in range(50):
                    a @ a
                torch.cuda.synchronize()
                time.sleep(0.5)
            kernels = sum(event.count for event in found.key_averages())
        else:
            time.sleep(0.6)
        counts.append(len(tracer.session().counter_samples) - before)
    say(what="torch.profiler", samples_before_during_after=counts, its_events=kernels, state=told(tracer)["state"],
        reason=told(tracer).get("reason"))  # fmt: skip


def second():
    """Another process asks while this one samples."""
    _, tracer, going = begin("1kHz")
    if not going:
        return
    began = time.monotonic()
    done = subprocess.run([sys.executable, str(HERE), "--part", "one_more"], capture_output=True, text=True, timeout=40)
    before = len(tracer.session().counter_samples)
    time.sleep(0.5)
    goes_on = len(tracer.session().counter_samples) - before
    say(what="second process", said=done.stdout.strip()[-400:] or done.stderr[-300:], rc=done.returncode,
        seconds=round(time.monotonic() - began, 1), first_goes_on=goes_on)  # fmt: skip


def one_more():
    from gpusense import cuda

    buffer = cuda.Buffer(64, cuda.Device(0))
    gpusense.configure(mode="on", counters="1kHz")
    tracer = gpusense.get_tracer()
    sampling(tracer)
    print(tracer.status()["counters"]["state"], tracer.status()["counters"].get("reason", ""), flush=True)
    tracer.close()
    del buffer


END = """
import os, signal, sys, threading, time
import gpusense
from gpusense import cuda
buffer = cuda.Buffer(64, cuda.Device(0))
gpusense.configure(mode="on", counters="1kHz")
tracer = gpusense.get_tracer()
told = lambda tracer: tracer.status()["counters"]
until = time.monotonic() + 25
while time.monotonic() < until and told(tracer)["state"] in ("waiting", "trying"):
    time.sleep(0.02)
time.sleep(0.4)
print(tracer.status()["counters"]["state"], tracer.status()["counters"].get("reason", ""), flush=True)
how = sys.argv[1]
if how == "exit 3": sys.exit(3)
if how == "_exit": os._exit(4)
if how == "kill": os.kill(os.getpid(), signal.SIGKILL)
if how == "term": os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)
if how == "raise": raise ValueError("the program's own")
if how == "abort": os.abort()
if how == "fork":
    pid = os.fork()
    if pid == 0:
        gpusense.get_tracer().session(); os._exit(7)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    before = len(tracer.session().counter_samples); time.sleep(0.5)
    print("child", code, "samples after", len(tracer.session().counter_samples) - before, flush=True)
if how == "twice":
    gpusense.configure(counters=False); gpusense.configure(counters="100Hz"); time.sleep(1.0)
    print(tracer.status()["counters"]["state"], len(tracer.session().counter_samples), flush=True)
if how == "thread": threading.Thread(target=lambda: time.sleep(0.3)).start()
"""


def ends():
    """However the program ends: its code, how long after, and whether the next one can sample."""
    for how in ("usual", "exit 3", "_exit", "term", "kill", "abort", "fork", "twice"):
        began = time.monotonic()
        try:
            done = subprocess.run([sys.executable, "-c", END, how], capture_output=True, text=True, timeout=40)
            said, code = done.stdout.strip().replace("\n", "; "), done.returncode
            error = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        except subprocess.TimeoutExpired:
            said, code, error = "hung", None, []
        say(what=f"end: {how}", code=code, said=said[-160:], seconds=round(time.monotonic() - began, 1), error=error)


PARTS = {
    "known": (known, 45),
    "blocks": (blocks, 40),
    "cost": (cost, 35),
    "clocks": (clocks, 30),
    "overhead": (overhead, 60),
    "ends": (ends, 60),
    "second": (second, 45),
    "torch_profiler": (torch_profiler, 40),
    "decoding": (decoding, 70),
}
#: Asked for by name alone, with what they are given.
MORE = {"one_more": one_more, "decoding_of": decoding_of, "soak": lambda seconds: soak(float(seconds))}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--details", default=os.environ.get("OUT", "."))
    parser.add_argument("--part", nargs="+")
    parser.add_argument("--parts", default=",".join(PARTS))
    given = parser.parse_args()
    if given.part:
        name, *more = given.part
        {**{name: part for name, (part, _) in PARTS.items()}, **MORE}[name](*more)
        return
    began = time.monotonic()
    lines = []
    for name in given.parts.split(","):
        left = given.seconds - (time.monotonic() - began)
        if left < 8:
            lines.append({"what": name, "left out": "no time"})
            continue
        path = pathlib.Path(given.details, f"{name}.txt")
        with path.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, str(HERE), "--part", name], stdout=subprocess.PIPE, stderr=out, text=True
            )
            try:
                said, _ = process.communicate(timeout=min(left, PARTS[name][1]))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                said, _ = process.communicate()
                lines.append({"what": name, "ended": "took too long"})
            out.write(said)
        if process.returncode:
            lines.append({"what": name, "code": process.returncode, "error": path.read_text()[-300:]})
        for line in said.splitlines():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(line))
        print(f"-- {name}: {time.monotonic() - began:.0f} s", flush=True)
    pathlib.Path(given.details, "counters.json").write_text(json.dumps(lines, indent=1))
    for line in lines:
        status = line.pop("status", None)
        if line.get("what") == "overhead" and status:
            line["cost_%"] = status.get("cost_percent_of_a_processor")
        print(" ".join(f"{name}={_short(value)}" for name, value in line.items()))
        if line.get("what") == "start" and status and not line.get("sampling"):
            print("   ", json.dumps(status)[:400])


def _short(value):
    if isinstance(value, float):
        return f"{value:.4g}"
    return "None" if value is None else str(value)[:300]


if __name__ == "__main__":
    main()
