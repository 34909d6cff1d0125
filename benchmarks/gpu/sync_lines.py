"""Lines of synchronising calls: whether each wait names its line, what that costs, and who else can profile.

    python benchmarks/gpu/sync_lines.py [--part lines|profiler|gil|exit|cost] [--json]

Needs a GPU and torch. Ends within 60 seconds: what does not answer in time is said to hang. Each case runs in a process
of its own; all but the costs beside each other. With ``--json`` the facts of one part are the last line.

- lines: two threads wait in known lines, each inside a block of the line's name, so that the block that launch order
  gives a record and the line that the callback gave it can be compared. Live, and from a session file.
- profiler: kernels that torch.profiler saw of those launched, started while lines are on, and after they were stopped.
- gil: threads that hold the GIL in the driver beside threads that give it up, and one of pure Python.
- exit: a program ends with status 3 while daemon threads wait, in the driver itself, and in torch, which may abort
  then without gpusense, too.
- cost: microseconds of a call without extra kinds, with "sync", and with "sync_lines", in turn within one process.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S, COST_LIMIT_S = 25, 33

HEAD = r"""
import ctypes, json, os, statistics, sys, threading, time
import torch
x = torch.ones(1 << 16, device="cuda"); x.sum().item(); torch.cuda.synchronize()
import gpusense
from gpusense._tracing import select

def until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        with gpusense.trace("waiting"): time.sleep(0.005)
    return condition()

def begin(kinds, path=""):
    "A tracer that captures and marks blocks, and what ends a session in a file."
    run = None
    if path:
        run = select.control.start_session("file", path, kinds=kinds, trace_all=True)
    else:
        gpusense.configure(kinds=kinds, trace_all=True)
        gpusense.enable()
    tracer = gpusense.get_tracer()
    if not until(lambda: tracer.recorder.marker is not None):
        sys.exit(f"capture did not begin: {tracer.status()}")
    return tracer, run

def answer(**facts):
    print(json.dumps(facts), flush=True)
"""

LINES = r"""
CALLS = 50
def mark(name):
    return gpusense.trace(name)

def items(x):
    for _ in range(CALLS):
        with mark("item"):
            x.add_(1.0).sum().item()  # item

def devices(x):
    for _ in range(CALLS):
        with mark("synchronize"):
            x.add_(1.0)
            torch.cuda.synchronize()  # synchronize

def copies(x):
    for _ in range(CALLS):
        with mark("cpu"):
            x.cpu()  # cpu

def events(x):
    event = torch.cuda.Event()
    for _ in range(CALLS):
        with mark("event"):
            x.add_(1.0)
            event.record()
            event.synchronize()  # event

def batches(host):
    for _ in range(CALLS):
        with mark("upload"):
            batch = host.to("cuda")  # upload
        yield batch

def loader(x):
    host = torch.ones(1 << 14)
    for batch in batches(host):
        with mark("float"):
            float(batch.sum())  # float

def work():
    mine = torch.ones(1 << 16, device="cuda")
    for function in (items, devices, copies, events, loader): function(mine)

tracer, run = begin(("sync_lines",), sys.argv[1])
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
tracer.flush()
status = tracer.status().get("sync_lines")
found = run.finish() if run is not None else tracer.session()

places, functions = {}, {"item": "items", "synchronize": "devices", "cpu": "copies", "event": "events",
                         "upload": "batches", "float": "loader"}
for number, text in enumerate(open(__file__), 1):
    name = text.rpartition("  # ")[2].strip()
    if name in functions and "  # " in text:
        places[name] = f"{os.path.basename(__file__)}:{number} {functions[name]}"
rows = {name: [line, 2 * CALLS, 0] for name, line in places.items()}
wrong, unnamed, outside = {}, 0, {}
for sync in found.syncs:
    if sync.name == "stream_wait_event": continue
    block = sync.path[-1] if sync.path else ""
    if sync.source_line is None:
        unnamed += 1
    elif block in rows and sync.source_line == rows[block][0]:
        rows[block][2] += 1
    elif block in rows:
        wrong[f"{block}: {sync.source_line}"] = wrong.get(f"{block}: {sync.source_line}", 0) + 1
    else:
        outside[sync.source_line] = outside.get(sync.source_line, 0) + 1
answer(rows=[[name, *row] for name, row in rows.items()], wrong=wrong, unnamed=unnamed, outside=outside,
       status=status, ambiguous=found.counters.ambiguous, missed=found.counters.missed,
       copies={line: n for line, n in __import__("collections").Counter(
           (copy.attributes or {}).get("source_line") for copy in found.transfers).items() if line})
"""

PROFILER = r"""
from torch.profiler import ProfilerActivity, profile
LAUNCHED = 200
def seen():
    with profile(activities=[ProfilerActivity.CUDA]) as one:
        for _ in range(LAUNCHED): x.add_(1.0)
        torch.cuda.synchronize()
    return sum("CUDA" in str(event.device_type()) and "elementwise" in event.name()
               for event in one.profiler.kineto_results.events())
tracer, _ = begin(("sync_lines",))
before = tracer.status()["sync_lines"]
if sys.argv[1] == "after":
    gpusense.configure(kinds=("sync",))
    until(lambda: tracer.recorder.marker is not None)
    first = seen()
else:
    first = seen()
    gpusense.configure(kinds=("sync",))
second = seen()
time.sleep(1.5)
until(lambda: tracer.status()["state"] == "running", 5)  # a look whether the profiler has gone comes once a second
x.sum().item()
answer(launched=LAUNCHED, first=first, second=second, lines=before["running"], reason=before["reason"],
       state=tracer.status()["state"], lines_after=tracer.status().get("sync_lines"))
"""

GIL = r"""
tracer, _ = begin(("sync_lines",))
driver = ctypes.PyDLL("libcuda.so.1")  # calls keep the GIL
stop = time.monotonic() + 5
counts = [0] * 5
def holding(place):
    mine = torch.ones(1024, device="cuda")
    pointer = ctypes.c_uint64(mine.data_ptr())
    while time.monotonic() < stop:
        driver.cuMemsetD8Async(pointer, 0, ctypes.c_size_t(1024), None)
        driver.cuStreamSynchronize(None)
        driver.cuCtxSynchronize()
        counts[place] += 1
def releasing(place):
    mine = torch.ones(1024, device="cuda")
    while time.monotonic() < stop:
        mine.add_(1.0).sum().item()
        torch.cuda.synchronize()
        counts[place] += 1
def busy(place):
    while time.monotonic() < stop: counts[place] += sum(range(100)) > 0
threads = [threading.Thread(target=work, args=(place,))
           for place, work in enumerate((holding, holding, releasing, releasing, busy))]
for thread in threads: thread.start()
for thread in threads: thread.join()
tracer.flush()
answer(holding=counts[:2], releasing=counts[2:4], status=tracer.status()["sync_lines"])
"""

EXIT = r"""
who, lines = sys.argv[1:]
if lines == "on": tracer, _ = begin(("sync_lines",))
driver = ctypes.CDLL("libcuda.so.1")
def forever():
    mine = torch.ones(1024, device="cuda")
    while True: mine.add_(1.0).sum().item() if who == "torch" else driver.cuCtxSynchronize()
for _ in range(4): threading.Thread(target=forever, daemon=True).start()
time.sleep(1)
answer(noted=tracer.status()["sync_lines"]["noted"] if lines == "on" else None)
sys.exit(3)
"""

COST = r"""
BUDGET_S = 18.0
x.requires_grad_(False)
def synchronize(): torch.cuda.synchronize()
def item(): return x[0].item()
def deep(n): return deep(n - 1) if n else item()
def launch(): x.add_(1.0)
def timed(function, count, *arguments):
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count): function(*arguments)
    spent = time.perf_counter() - began
    torch.cuda.synchronize()
    return spent / count * 1e6
def busy(stop):
    while not stop: sum(range(200))
def beside_python(count):
    stop = []
    thread = threading.Thread(target=busy, args=(stop,)); thread.start()
    try: return timed(item, count)
    finally: stop.append(1); thread.join()
MEASURES = {
    "synchronize": lambda: timed(synchronize, 1000),
    "item": lambda: timed(item, 500),
    "item 20 deep": lambda: timed(deep, 500, 20),
    "launch": lambda: timed(launch, 2000),
    "item, busy thread": lambda: beside_python(30),
}
KINDS = {"none": (), "sync": ("sync",), "sync_lines": ("sync_lines",)}
times = {kind: {name: [] for name in MEASURES} for kind in KINDS}
tracer, _ = begin(())
gpusense.configure(trace_all=False)
end, rounds = time.monotonic() + BUDGET_S, 0
for measure in MEASURES.values(): measure()
while time.monotonic() < end:
    for kind in (list(KINDS), list(KINDS)[::-1])[rounds % 2]:
        gpusense.configure(kinds=KINDS[kind])
        if not until(lambda: tracer.recorder.marker is not None): sys.exit(f"capture did not begin: {tracer.status()}")
        for name, measure in MEASURES.items(): times[kind][name].append(measure())
    rounds += 1
gpusense.configure(kinds=("sync_lines",))
until(lambda: tracer.recorder.marker is not None)
answer(rounds=rounds, status=tracer.status().get("sync_lines"),
       times={name: {kind: [statistics.median(times[kind][name]), min(times[kind][name])] for kind in KINDS}
              for name in MEASURES})
"""


class Case:
    """A program in a process of its own, begun at once."""

    def __init__(self, name: str, code: str, *arguments: str, limit_s: float = LIMIT_S) -> None:
        self.name = name
        self.limit_s = limit_s
        self.end = time.monotonic() + limit_s
        self.folder = pathlib.Path(tempfile.mkdtemp())
        program = self.folder / "train.py"
        program.write_text(HEAD + code)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"},
            stdout=pipe,
            stderr=pipe,
            text=True,
        )

    def facts(self, status: "int | None" = 0) -> dict[str, Any]:
        """What it answered; ``failed`` says why it did not, or that it ended with another status than that one."""
        try:
            out, errors = self.process.communicate(timeout=max(1.0, self.end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return {"failed": f"HUNG: no answer in {self.limit_s} s"}
        lines = out.strip().splitlines()
        try:
            facts: dict[str, Any] = json.loads(lines[-1])
        except (IndexError, ValueError):
            facts = {"failed": f"exit {self.process.returncode}: {' | '.join(errors.strip().splitlines()[-3:])}"}
        facts["exit"] = self.process.returncode
        if status is not None and self.process.returncode != status:
            facts.setdefault(
                "failed", f"exit {self.process.returncode}: {' | '.join(errors.strip().splitlines()[-3:])}"
            )
        facts["stderr"] = errors.strip().splitlines()[-3:]
        return facts


def begin_lines() -> list[Case]:
    path = pathlib.Path(tempfile.mkdtemp()) / "run.gpusense"
    return [Case("live", LINES, ""), Case("file", LINES, str(path))]


BEGIN = {
    "lines": begin_lines,
    "profiler": lambda: [Case("while lines are on", PROFILER, "while"), Case("after lines", PROFILER, "after")],
    "gil": lambda: [Case("gil", GIL)],
    "exit": lambda: [
        Case(f"{who}, lines {lines}", EXIT, who, lines) for who in ("driver", "torch") for lines in ("on", "off")
    ],
    "cost": lambda: [Case("cost", COST, limit_s=COST_LIMIT_S)],
}


def show(part: str, name: str, facts: dict[str, Any]) -> None:
    if "failed" in facts:
        print(f"{part:9}{name}: FAILED {facts['failed']}")
        return
    if part == "lines":
        good = all(named == calls for _, _, calls, named in facts["rows"])
        good = good and not facts["wrong"] and not facts["unnamed"]
        print(f"{part:9}{name}: {'every wait names its line' if good else 'NOT AS EXPECTED'}")
        for mark, line, calls, named in facts["rows"]:
            print(f"         {mark:12}{calls:5} calls {named:5} named  {line}")
        rest = ("wrong", "unnamed", "outside", "copies", "ambiguous", "missed", "status")
        print("        ", {key: facts[key] for key in rest})
    elif part == "profiler":
        print(
            f"{part:9}{name}: torch.profiler saw {facts['first']}, then {facts['second']} of {facts['launched']} "
            f"kernels; capture {facts['state']}; {facts['lines_after']} {facts['stderr'][-1:]}"
        )
    elif part == "gil":
        print(f"{part:9}no hang; holding {facts['holding']}, releasing {facts['releasing']}; {facts['status']}")
    elif part == "exit":
        print(f"{part:9}{name}: status {facts['exit']} (3 was asked), noted {facts['noted']}, stderr {facts['stderr']}")
    else:
        print(f"{part:9}µs a call, median (least) of {facts['rounds']} rounds; {facts['status']}")
        for measure, row in facts["times"].items():
            cells = "".join(f"{kind:>12} {median:7.2f} ({least:.2f})" for kind, (median, least) in row.items())
            print(f"         {measure:20}{cells}  lines cost {row['sync_lines'][0] - row['sync'][0]:+.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=BEGIN)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    beside = [options.part] if options.part else [part for part in BEGIN if part != "cost"]
    cases = [(part, case) for part in beside for case in BEGIN[part]()]
    found = [(part, case.name, case.facts(None if part == "exit" else 0)) for part, case in cases]
    for row in found:
        show(*row)
    if options.part is None:  # alone, when nothing else runs
        for case in BEGIN["cost"]():
            found.append(("cost", case.name, case.facts()))
            show(*found[-1])
    if options.json:
        print(json.dumps({name: facts for _, name, facts in found}))


if __name__ == "__main__":
    main()
