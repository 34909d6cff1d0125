"""Exact counters of blocks on a real GPU: known work against what was counted, their cost, and who refuses whom.

    python benchmarks/gpu/exact_counters.py [--seconds 95] [--details FILE] [--part known …]

Each part runs in a process of its own, which may crash or hang without the others. Parts, in this order:
*known*: products of two 4096 × 4096 matrices and copies of 1 GiB, each with all sets of counters; *exits*: every kind
of end in the middle of a counted block; *cost*: a step of launch-bound training before, without and with a counted
pass; *profiler*: torch.profiler beside it; *graph*: stream capture, replays and a second thread.
"""

import argparse
import json
import os
import subprocess
import sys
import time

SIZE, GIB = 4096, 1 << 30
PRODUCT = 2 * SIZE**3
PASSES = 12  # so that each set has its turn
#: What a user of every known operation expects: type, tensor cores, operations, bytes read and written.
EXPECTED = {
    "bf16": ("bf16", True, PRODUCT, None, None),
    "fp16": ("fp16", True, PRODUCT, None, None),
    "tf32": ("tf32", True, PRODUCT, None, None),
    "fp32": ("fp32", False, PRODUCT, None, None),
    "add_ 1 GiB": ("fp32", False, None, GIB, GIB),
    "copy_ 1 GiB": ("fp32", False, None, GIB, GIB),
}


def known():
    import torch

    import gpusense
    from gpusense.analysis.roofline import measured

    gpusense.configure(mode="on")
    a, b = (torch.randn(SIZE, SIZE, device="cuda") for _ in range(2))
    halves = {kind: (a.to(kind), b.to(kind)) for kind in (torch.bfloat16, torch.float16)}
    big, other = (torch.randn(GIB // 4, device="cuda") for _ in range(2))
    work = {
        "bf16": lambda: torch.mm(*halves[torch.bfloat16]),
        "fp16": lambda: torch.mm(*halves[torch.float16]),
        "tf32": lambda: torch.mm(a, b),
        "fp32": lambda: torch.mm(a, b),
        "add_ 1 GiB": lambda: big.add_(1),
        "copy_ 1 GiB": lambda: other.copy_(big),
    }
    edges = []
    for name, run in work.items():
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        run()
        torch.cuda.synchronize()
        for _ in range(PASSES):
            began = time.perf_counter()
            with gpusense.measure(name):
                inside = time.perf_counter()
                run()
                torch.cuda.synchronize()
                after = time.perf_counter()
            edges.append((inside - began + time.perf_counter() - after) * 1e3)
    session = gpusense.get_tracer().session()
    told = {"status": gpusense.get_tracer().status().get("measured"), "first_edges_ms": edges[:20]}
    told["edges_ms"] = sorted(edges)[len(edges) // 2]
    told["clock_mhz"] = [row.sm_clock_mhz for row in session.block_counters][:8]
    told["sets"] = {name: [row.metric_set for row in session.block_counters if row.name == name] for name in work}
    told["passes"] = [row._asdict() for row in session.block_counters]
    told["lines"] = [str(row) for row in measured(session)]
    for name, (kind, tensor, operations, read, written) in EXPECTED.items():
        rows = [row for row in session.block_counters if row.name == name]
        if operations is not None:
            parts = [of for row in rows for of in (row.tensor_ops if tensor else row.flops)]
            counted = {part: value for part, value in parts if part.partition(" ")[0] == kind}
            told.setdefault("table", []).append((f"{name} product, operations", operations, sum(counted.values())))
        for what, size in (("dram_read_bytes", read), ("dram_write_bytes", written)):
            values = [getattr(row, what) for row in rows if getattr(row, what) is not None]
            if size is not None:
                told["table"].append((f"{name}, {what}", size, sum(values) / len(values) if values else None))
    told["sass"] = sass(lambda: torch.mm(a, b), lambda: big.add_(1))
    return told


def sass(product, add):
    """What instructions say of the same product: a set of its own, which the profiler may have to patch kernels for."""
    import torch

    import gpusense
    from gpusense._capi import cupti_profiler as capi
    from gpusense.backends.cupti.counters import host, ranges

    names = [f"sm__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("ffma", "fadd", "fmul")]
    meter = gpusense.get_tracer()._meter
    profiler = meter._find._profiler if meter is not None else None
    if profiler is None:
        return "no profiler"
    try:
        metrics = host.MetricSet(profiler._api, capi.RANGE_PROFILER, "GH100", names)
        profiler._sets["sass"] = ranges._Set("sass", metrics, dict(zip(("ffma", "fadd", "fmul"), names, strict=True)))
        torch.backends.cuda.matmul.allow_tf32 = False
        found = {}
        for name, run in (("product", product), ("again", product), ("add_", add)):
            began = time.perf_counter()
            profiler.begin("sass")
            run()
            counted = profiler.end()
            found[name] = (counted and counted.amounts, round((time.perf_counter() - began) * 1e3, 2))
        began = time.perf_counter()
        for _ in range(20):
            product()
        torch.cuda.synchronize()
        found["a product afterwards, ms"] = (time.perf_counter() - began) / 20 * 1e3
        return found
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def cost():
    import statistics

    import torch
    from workloads import small

    import gpusense

    gpusense.configure(mode="on")
    run = small()

    def steps(number):
        times = []
        for _ in range(number):
            began = time.perf_counter()
            with gpusense.trace("step"):
                run()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - began) * 1e3)
        return times

    steps(40)
    before = steps(80)
    gpusense.configure(counters="exact")
    deadline = time.monotonic() + 8
    enabling, warm = [], 0
    while time.monotonic() < deadline and warm < 40:
        enabling += steps(1)
        status = gpusense.get_tracer().status()["measured"]
        warm = warm + 1 if status["passes"] >= 10 or status["state"] != "counting" else 0
    counted = gpusense.get_tracer().status()["measured"]
    after = steps(220)
    status = gpusense.get_tracer().status()["measured"]
    gpusense.configure(counters=None)
    off = steps(60)
    session = gpusense.get_tracer().session()
    middle = statistics.median
    return {
        "before_ms": middle(before),
        "on_ms": middle(after),
        "on_mean_ms": statistics.mean(after),
        "off_again_ms": middle(off),
        "slowest_on_ms": sorted(after)[-5:],
        "first_ms": [round(one, 1) for one in sorted(enabling)[-14:]],
        "measured_at_first": counted,
        "measured": status,
        "sets": [(row.metric_set, row.device_ns, row.tensor_percent) for row in session.block_counters],
        "table": [
            ("a step before, ms", None, middle(before)),
            ("enabled, none counted, median ms", None, middle(after)),
            ("enabled, one in 100 counted, mean ms", None, statistics.mean(after)),
            ("switched off again, median ms", None, middle(off)),
        ],
    }


def profiler():
    import torch

    import gpusense

    gpusense.configure(mode="on")
    a = torch.randn(1024, 1024, device="cuda")
    told, table = {}, []

    def passes(name, number=3):
        before = (gpusense.get_tracer().status().get("measured") or {}).get("passes", 0)
        for _ in range(number):
            with gpusense.measure(name):
                a @ a
        torch.cuda.synchronize()
        status = gpusense.get_tracer().status()
        told[name] = {"measured": status.get("measured"), "state": status.get("state"), "reason": status.get("reason")}
        expected = 0 if name.startswith("inside") else number  # another profiler wins
        table.append((f"passes counted {name}", expected, status["measured"]["passes"] - before))

    def profiled(name, inside):
        try:
            with torch.profiler.profile() as found:
                inside()
                for _ in range(5):
                    a @ a
                torch.cuda.synchronize()
            events = [event for event in found.events() if event.device_type.name == "CUDA"]
            told[f"torch.profiler {name}"] = len(events)
            table.append((f"device events of torch.profiler {name}", 5, len(events)))
        except Exception as error:
            told[f"torch.profiler {name}"] = f"{type(error).__name__}: {error}"
            table.append((f"device events of torch.profiler {name}", 5, None))

    passes("before")
    profiled("with nothing else", lambda: None)
    profiled("around", lambda: passes("inside torch.profiler"))
    passes("after torch.profiler")
    passes("later")
    session = gpusense.get_tracer().session()
    told["kernels of gpusense"] = session.counters.seen
    told["errors"] = [row._asdict() for row in session.block_counters if not row.device_ns]
    return {**told, "table": table}


def graph():
    import threading

    import torch

    import gpusense

    gpusense.configure(mode="on")
    model = torch.nn.Linear(1024, 1024).cuda()
    data, table, told = torch.randn(256, 1024, device="cuda"), [], {}
    with torch.no_grad():
        for _ in range(3):
            model(data)
        with gpusense.measure("warm"):
            model(data)
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(captured), gpusense.measure("captured"):
                out = model(data)
            for _ in range(3):
                with gpusense.measure("replayed"):
                    captured.replay()
            torch.cuda.synchronize()
            same = bool(torch.allclose(out, model(data), atol=1e-2))
        except Exception as error:
            same = f"{type(error).__name__}: {error}"
        table.append(("capture with a measured block inside is whole", True, same))
        stop = threading.Event()

        def other():
            while not stop.is_set():
                with gpusense.trace("other"):
                    model(data)

        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(0.2)
        for _ in range(4):
            with gpusense.measure("beside"):
                model(data)
        stop.set()
        thread.join()
    torch.cuda.synchronize()
    rows = gpusense.get_tracer().session().block_counters
    told["status"] = gpusense.get_tracer().status().get("measured")
    told["rows"] = [(row.name, row.metric_set, row.device_ns, row.shared) for row in rows]
    table.append(("passes counted while capturing", 0, sum(row.name == "captured" for row in rows)))
    table.append(("passes counted of replays", 3, sum(row.name == "replayed" for row in rows)))
    table.append(
        ("passes beside another thread, all shared", 4, sum(row.shared for row in rows if row.name == "beside"))
    )
    return {**told, "table": table}


_EXIT = """
import ctypes, os, signal, sys, threading, gpusense
gpusense.configure(mode="on")
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxPushCurrent_v2(context)]
for _ in range(3):
    with gpusense.measure("first"):
        pass
print(codes, gpusense.get_tracer().status().get("measured"), flush=True)
with gpusense.measure("last"):
    {how}
"""
_ENDS = {
    "at the end of the program": ("pass", 0),
    "sys.exit(3) inside": ("sys.exit(3)", 3),
    "an exception inside": ("raise SystemError('meant')", 1),
    "os._exit(4) inside": ("os._exit(4)", 4),
    "SIGTERM inside": ("os.kill(os.getpid(), signal.SIGTERM)", -15),
    "a daemon thread inside": (
        (
            "block = gpusense.measure('t'); "
            "threading.Thread(target=lambda: [block.__enter__(), threading.Event().wait()], daemon=True).start()"
        ),
        0,
    ),
    "a fork inside, child ends": ("os.waitpid(os.fork() or os._exit(0), 0)", 0),
}


def exits():
    told, table = {}, []
    for name, (how, code) in _ENDS.items():
        began = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-c", _EXIT.format(how=how)], capture_output=True, text=True, timeout=25, check=False
            )
            found = done.returncode
            told[name] = [found, round(time.monotonic() - began, 2), done.stdout[-300:], done.stderr[-300:]]
        except subprocess.TimeoutExpired as late:
            found = "hangs"
            told[name] = [found, str(late.stdout)[-300:], str(late.stderr)[-300:]]
        table.append((f"exit code: {name}", code, found))
    counted = sum("'passes': 3" in row[2] or "'passes': 3" in row[1] for row in map(list_of_text, told.values()))
    table.append(("of these programs with three passes counted before", len(_ENDS), counted))
    return {**told, "table": table}


def list_of_text(row):
    return [str(one) for one in row]


PARTS = {"known": known, "exits": exits, "cost": cost, "profiler": profiler, "graph": graph}


def shown(value):
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) or (isinstance(value, int) and value > 1e6) else str(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=95)
    parser.add_argument("--details")
    parser.add_argument("--part", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--child", choices=PARTS)
    given = parser.parse_args()
    if given.child:
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        print(json.dumps(PARTS[given.child](), default=str))
        return
    began, details, lines = time.monotonic(), {}, []
    for part in given.part:
        left = given.seconds - (time.monotonic() - began)
        if left < 5:
            lines.append(f"{part}: no time left")
            continue
        at = time.monotonic()
        command = [sys.executable, os.path.abspath(__file__), "--child", part]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=min(left, 60), check=False)
            out, err, code = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired as late:
            out, err, code = str(late.stdout or ""), str(late.stderr or ""), "timeout"
        took = time.monotonic() - at
        try:
            found = json.loads(out.strip().splitlines()[-1])
        except (ValueError, IndexError):
            found = {"stdout": out[-3000:]}
        details[part] = {"code": code, "seconds": took, **found, "stderr": err[-3000:]}
        lines.append(f"== {part}: {took:.1f} s, exit {code}" + ("" if code == 0 else f"; {err.strip()[-400:]}"))
        for what, expected, counted in found.get("table", ()):
            ratio = ""
            if isinstance(expected, int | float) and isinstance(counted, int | float) and expected > 1e6:
                ratio = f"  {counted / expected - 1:+.2%}"
            lines.append(f"{what:52} {shown(expected):>12} {shown(counted):>12}{ratio}")
        lines += [f"   {line}" for line in found.get("lines", ())]
        told = {name: found[name] for name in ("edges_ms", "sass", "status", "measured") if name in found}
        lines += [f"   {name}: {json.dumps(of, default=str)[:700]}" for name, of in told.items()]
    if given.details:
        with open(given.details, "w") as file:
            json.dump(details, file, indent=1, default=str)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
