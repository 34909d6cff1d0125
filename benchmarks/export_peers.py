"""How long writing a trace takes, what it needs and how large it gets, beside others, on the same events.

``python benchmarks/export_peers.py [OPERATIONS]`` (200,000). Where torch is importable, torch.profiler records so many
small operations (launches on a GPU, else operators on the CPU) and writes them with ``export_chrome_trace``; the events
of its file are then the records that viztracer's writer and ours get. Without torch the records are made up. Every
writer runs in a process of its own. Memory is how far its peak lies above the one before it began, when the events were
in memory; what a writer needs below an earlier peak does not show.
"""

import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

OURS = ("perfetto", "chrome", "json", "html")


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Cost(NamedTuple):
    spent_s: float  # of the processor
    passed_s: float
    above_mib: float


def cost(write) -> Cost:
    before, begin, began = peak_mib(), time.process_time(), time.monotonic()
    write()
    return Cost(time.process_time() - begin, time.monotonic() - began, peak_mib() - before)


def show(name: str, events: int, of: Cost, size: int | None) -> None:
    columns = f"{events:>10,} {of.spent_s:>8.1f} {of.passed_s:>8.1f} {of.spent_s * 1e6 / events:>9.1f}"
    print(f"{name:38} {columns} {of.above_mib:>8.0f} {'–' if size is None else round(size / events):>12}", flush=True)


def profile(operations: int, folder: str) -> None:
    """torch.profiler over ``operations`` small operations: what ending it and writing its trace cost."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = torch.cuda.is_available()
    tensor = torch.zeros(16, device="cuda" if on_gpu else "cpu")
    tensor.neg_()
    recording = profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU])
    recording.start()
    for _ in range(operations):
        tensor.neg_()
    if on_gpu:
        torch.cuda.synchronize()
    path = os.path.join(folder, "torch.json")
    stop = cost(recording.stop)
    export = cost(lambda: recording.export_chrome_trace(path))
    events = convert(path, os.path.join(folder, "events.gpusense"))
    show(f"torch.profiler {torch.__version__}: stop", events, stop, None)
    show("  its export_chrome_trace", events, export, os.path.getsize(path))


def convert(path: str, target: str) -> int:
    """The complete events of a Chrome trace as a session file; how many there are."""
    import json

    from gpusense._records.records import ComputeBlock, GpuKernel, GpuMemoryTransfer
    from gpusense.session import Session, save

    with open(path, encoding="utf-8", errors="replace") as file:
        found = json.load(file)
    base = int(found.get("baseTimeNanoseconds") or 0)
    records = []
    for event in found["traceEvents"]:
        if event.get("ph") != "X" or not isinstance(event.get("tid"), int):
            continue
        start = base + round(float(event["ts"]) * 1000)
        end = start + round(float(event.get("dur", 0)) * 1000)
        name, facts = event["name"], event.get("args", {})
        if event.get("cat", "").lower() == "kernel":
            place = {"device": facts.get("device", 0), "stream": facts.get("stream", 0)}
            grid, block = (tuple(facts[key]) if key in facts else None for key in ("grid", "block"))
            records.append(GpuKernel(name, start, end, **place, grid=grid, block=block))
        elif event.get("cat", "").lower() == "gpu_memcpy":
            place = {"device": facts.get("device", 0), "stream": facts.get("stream", 0)}
            records.append(GpuMemoryTransfer(name, "cpu_to_gpu", int(facts.get("bytes", 0)), start, end, **place))
        else:
            records.append(ComputeBlock(name, start, end, thread=event["tid"]))
    records.sort(key=lambda record: record.start_ns)
    start, end = records[0].start_ns, max(record.end_ns for record in records)
    save(Session(meta={"start_ns": start, "end_ns": end, "trace_all": True}, records=records), target)
    return len(records)


def make(events: int, folder: str) -> None:
    """Records where there is no torch."""
    from support import sessions

    from gpusense.session import save

    save(sessions.crowd(events), os.path.join(folder, "events.gpusense"))


def write(form: str, folder: str) -> None:
    """One writer over the events of the file."""
    from gpusense.session import load

    session = load(os.path.join(folder, "events.gpusense"))
    path = os.path.join(folder, "report.json")
    if form == "viztracer":
        from viztracer import __version__
        from viztracer.report_builder import ReportBuilder

        rows = [
            {
                "ph": "X",
                "name": record.name,
                "pid": 1,
                "tid": getattr(record, "stream", None) or getattr(record, "thread", 0),
                "ts": record.start_ns / 1000,
                "dur": record.duration_ns / 1000,
            }
            for record in session.records
        ]
        builder = ReportBuilder({"traceEvents": rows, "viztracer_metadata": {}}, verbose=0)
        spent = cost(lambda: builder.save(path))
        show(f"viztracer {__version__}: its writer", len(rows), spent, os.path.getsize(path))
        return
    import importlib

    module = "html.page" if form == "html" else form
    writer = importlib.import_module(f"gpusense.report.{module}").write
    spent = cost(lambda: writer(session, path))
    show(f"gpusense: {form}", len(session.records), spent, os.path.getsize(path))


def run(*arguments: str) -> None:
    command = [sys.executable, __file__, "--child", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    why = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
    print("\n".join(lines) or f"{arguments[0]:38} not run: {why[0][-200:]}", flush=True)


def main(operations: int) -> None:
    heads = f"{'events':>10} {'CPU s':>8} {'wall s':>8} {'µs/event':>9} {'MiB':>8} {'bytes/event':>12}"
    print(f"{'writer':38} {heads}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        run("profile", str(operations), folder)
        if not os.path.exists(os.path.join(folder, "events.gpusense")):
            run("make", str(operations), folder)
        for form in ("viztracer", *OURS):
            run(form, folder)


if __name__ == "__main__":
    if sys.argv[1:2] != ["--child"]:
        main(int(sys.argv[1].replace(",", "")) if len(sys.argv) > 1 else 200_000)
    elif sys.argv[2] in ("profile", "make"):
        (profile if sys.argv[2] == "profile" else make)(int(sys.argv[3]), sys.argv[4])
    else:
        write(sys.argv[2], sys.argv[3])
