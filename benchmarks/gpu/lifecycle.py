"""Forks and exits of a process with live capture on a real GPU, each against the same process without gpusense.

    python benchmarks/gpu/lifecycle.py [--parts exits,forks,latency,detach] [--rounds 5]

Needs a GPU; torch for the DataLoader rows. Ends within four minutes. *Exits*: every way a process may end while
threads launch; exit status and stderr must be those of a process without gpusense. *Forks*: children made in every way
while the parent launches; the child must end in time and the parent must have seen every launch. *Latency*: launches of
the parent while it forks, in microseconds. *Detach*: what a launch costs before, with, after stopping and after
detaching.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODES = ("off", "live", "file")
LIMIT_S = 40

HEAD = """
import json, os, sys, tempfile, threading, time
import gpusense
from gpusense._tracing import select
from gpusense.cuda import _workload
from gpusense import cuda
mode = os.environ["MODE"]
card = cuda.Device(0)
spin = cuda.Module.from_ptx(_workload.PTX, card).function("spin")
if mode != "off":
    run = select.control.start_session(mode=mode, path=os.path.join(tempfile.mkdtemp(), "s.gpusense"))
    while not run.tracer.recorder.capture.running:
        with gpusense.trace("waiting"): time.sleep(0.01)
def launch(count, name="work"):
    with gpusense.trace(name):
        for _ in range(count): spin.launch((1,), (32,), (1000,))
def storm():
    while True: launch(50)
"""

THREADS = """
for _ in range(2): threading.Thread(target=storm, daemon=True).start()
time.sleep(0.3)
"""

EXITS = {
    "return": "",
    "sys.exit(3)": "sys.exit(3)",
    "exception": "raise ValueError('on purpose')",
    "os._exit(4)": "os._exit(4)",
    "SIGTERM": "os.kill(os.getpid(), 15); time.sleep(5)",
    "SIGINT": "os.kill(os.getpid(), 2); time.sleep(5)",
    "SIGKILL": "os.kill(os.getpid(), 9); time.sleep(5)",
    "abort": "os.abort()",
    "in a handler": "import atexit; atexit.register(launch, 1000)",
}

WORKERS = """
def square(x): return x * x
"""

FORKS = {
    "os.fork, os._exit": """
for _ in range(5):
    launch(200)
    child = os.fork()
    if child == 0: os._exit(7)
    codes.append(os.waitpid(child, 0)[1] >> 8)
""",
    "os.fork, gpusense in the child": """
for _ in range(5):
    launch(200)
    child = os.fork()
    if child == 0:
        with gpusense.trace("child"): pass
        gpusense.get_tracer().summary(); gpusense.get_tracer().flush(); gpusense.disable()
        os._exit(7)
    codes.append(os.waitpid(child, 0)[1] >> 8)
""",
    "subprocess": """
import subprocess
for _ in range(5):
    launch(200)
    codes.append(subprocess.run([sys.executable, "-c", "raise SystemExit(7)"]).returncode)
""",
    "multiprocessing fork": "METHOD = 'fork'",
    "multiprocessing spawn": "METHOD = 'spawn'",
    "multiprocessing forkserver": "METHOD = 'forkserver'",
    "DataLoader, 4 workers": """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(64.0))
for _ in range(2):
    for (batch,) in DataLoader(data, batch_size=8, num_workers=4):
        launch(50)
        codes.append(7 if batch.numel() == 8 else 0)
""",
}

POOL = """
import multiprocessing
with multiprocessing.get_context(METHOD).Pool(3) as pool:
    for _ in range(5):
        launch(200)
        codes.append(7 if pool.map(square, range(50)) == [x * x for x in range(50)] else 0)
"""

COUNT = """
card.synchronize()
facts = {"codes": codes}
if mode != "off":
    session = run.finish()
    facts["seen"] = sum(1 for kernel in session.kernels if kernel.path == ("work",)) + sum(
        row.count for row in session.aggregates if row.kind == "kernel" and row.path == ("work",))
    facts["lost"] = session.counters.lost_markers + session.counters.dropped + session.counters.missed
print(json.dumps(facts), flush=True)
"""

LATENCY = """
times, forking = [], []
def loop():
    while not done:
        began = time.perf_counter_ns(); spin.launch((1,), (32,), (1000,)); ended = time.perf_counter_ns()
        (forking if busy else times).append(ended - began)
done = busy = False
ballast = bytearray(os.urandom(1 << 20)) * 256
thread = threading.Thread(target=loop); thread.start()
time.sleep(1)
for _ in range(60):
    busy = True
    child = os.fork()
    if child == 0:
        time.sleep(0.02); os._exit(0)
    os.waitpid(child, 0)
    busy = False
    time.sleep(0.02)
done = True; thread.join(); card.synchronize()
def spread(values):
    values = sorted(values)
    return [round(values[int(len(values) * q)] / 1e3, 1) for q in (0.5, 0.9, 0.99, 0.999)]
print(json.dumps([spread(times), spread(forking), len(times), len(forking)]), flush=True)
os._exit(0)
"""

DETACH = """
def cost():
    card.synchronize()
    values = []
    for _ in range(30):
        began = time.perf_counter_ns()
        for _ in range(300): spin.launch((1,), (32,), (1,))
        values.append((time.perf_counter_ns() - began) / 300)
        card.synchronize()
    return sorted(values)[len(values) // 2]
"""

DETACH_RUN = """
rows = {"never": cost()}
gpusense.configure(mode="on")
tracer = gpusense.get_tracer()
recorder = tracer.recorder
deadline = time.monotonic() + 3
while not recorder.capture.running and time.monotonic() < deadline:
    with gpusense.trace("waiting"): time.sleep(0.01)
rows["capturing"] = cost()
gpusense.disable()
rows["stopped"] = cost()
answer = gpusense.detach()
rows["detached"] = cost()
rows["answer"] = answer
gpusense.enable()
deadline = time.monotonic() + 3
while not recorder.capture.running and time.monotonic() < deadline:
    with gpusense.trace("waiting"): time.sleep(0.01)
launch(500); card.synchronize()
tracer.flush()
session = tracer.session()
rows["seen again"] = sum(1 for k in session.kernels if k.path == ("work",)) + sum(
    r.count for r in session.aggregates if r.kind == "kernel" and r.path == ("work",))
print(json.dumps(rows), flush=True)
"""


def python(program, mode):
    """(exit status, stdout, stderr); None as status where it hung."""
    path = pathlib.Path(tempfile.mkdtemp()) / "program.py"  # a file: spawned workers import it
    path.write_text(program)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "MODE": mode}
    with subprocess.Popen(
        [sys.executable, str(path)], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, errors = process.communicate()
            return None, out, errors
    return process.returncode, out, errors


def exits(rounds):
    print(
        f"{'exit':16}{'off':>8}{'live':>16}{'file':>16}"
        f"   status, and in how many of {rounds} it and stderr are the same"
    )
    jobs = {}
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for name, code in EXITS.items():
            for mode in MODES:
                jobs[name, mode] = [pool.submit(python, HEAD + THREADS + code, mode) for _ in range(rounds)]
        for name in EXITS:
            cells, wanted = [], None
            for mode in MODES:
                answers = [job.result() for job in jobs[name, mode]]
                statuses = {answer[0] for answer in answers}
                said = {last_lines(answer[2]) for answer in answers}
                if mode == "off":
                    wanted = statuses, said
                same = sum({a[0]} <= wanted[0] and last_lines(a[2]) in wanted[1] for a in answers)
                cells.append(f"{'/'.join(sorted(map(str, statuses)))} {same}/{rounds}")
                odd = [a[2][-300:] for a in answers if last_lines(a[2]) not in wanted[1]]
                if odd:
                    print(f"    {name} {mode}: stderr {odd[0]!r}")
            print(f"{name:16}{cells[0]:>8}{cells[1]:>16}{cells[2]:>16}", flush=True)


def last_lines(errors):
    """What was said, without what differs from run to run (file names, addresses)."""
    return "\n".join(
        line for line in errors.splitlines() if not line.lstrip().startswith(("File ", "Thread 0x", "Current thread"))
    )[-300:]


def forks():
    print(f"{'fork':32}{'off':>8}{'live':>22}{'file':>22}   children as they should; launches seen, losses")
    jobs = {}
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for name, code in FORKS.items():
            body = code + POOL if code.startswith("METHOD") else code
            program = WORKERS + "if __name__ == '__main__':\n    codes = []\n"
            program += "".join(f"    {line}\n" for line in (HEAD + body + COUNT).splitlines())
            for mode in MODES:
                jobs[name, mode] = pool.submit(python, program, mode)
        for name in FORKS:
            cells = []
            for mode in MODES:
                status, out, errors = jobs[name, mode].result()
                lines = [line for line in out.splitlines() if line.startswith("{")]
                if not lines:
                    cells.append("HUNG" if status is None else f"exit {status}")
                    print(f"    {name} {mode}: {errors[-300:]!r}")
                    continue
                facts = json.loads(lines[-1])
                good = sum(code == 7 for code in facts["codes"])
                cells.append(
                    f"{good}/{len(facts['codes'])}" + (f" {facts['seen']}, {facts['lost']}" if "seen" in facts else "")
                )
            print(f"{name:32}{cells[0]:>8}{cells[1]:>22}{cells[2]:>22}", flush=True)


def latency():
    print("launches of a parent of 256 MB, µs at 50, 90, 99, 99.9 %: between forks | while a child lives")
    for mode in MODES:
        status, out, errors = python(HEAD + LATENCY, mode)
        lines = [line for line in out.splitlines() if line.startswith("[")]
        print(f"  {mode:6}{lines[-1] if lines else (status, errors[-300:])}", flush=True)


def detach():
    for _ in range(3):
        _, out, errors = python(HEAD + DETACH + DETACH_RUN, "off")
        lines = [line for line in out.splitlines() if line.startswith("{")]
        print(f"  launch, ns: {lines[-1] if lines else errors[-300:]}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default="exits,forks,latency,detach")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    for part in given.parts.split(","):
        print(f"-- {part}", flush=True)
        exits(given.rounds) if part == "exits" else {"forks": forks, "latency": latency, "detach": detach}[part]()


if __name__ == "__main__":
    main()
