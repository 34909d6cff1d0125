"""What a hang leaves behind: a kernel that spins for seconds, ``hang_after`` shorter than that. Needs a GPU.

    python benchmarks/gpu/hang.py

Ends within 60 seconds. One row a mode: when the hang was noticed after the last completion, what was said to run, how
long a launch took meanwhile (nothing of ours may block it), whether the evidence was in the file while the kernel still
ran, and whether everything launched was seen afterwards. A forced flush returns the running kernel's record without an
end, and perhaps those of kernels queued behind it: they count as invalid.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
AFTER_S, SPIN_S = 3, 9

PROGRAM = """
import json, os, sys, time
mode, path = sys.argv[1:]
import gpusense
from gpusense._tracing import select
from gpusense.cuda import _workload
from gpusense import cuda
card = cuda.Device(0)
run = select.control.start_session(mode=mode, path=path, hang_after=float(os.environ["AFTER_S"]))
recorder = run.tracer.recorder
module = cuda.Module.from_ptx(_workload.PTX, card)
spin = module.function("spin")
while not recorder.capture.running:
    with gpusense.trace("waiting"): time.sleep(0.01)
with gpusense.trace("before"):
    for _ in range(100): spin.launch((1,), (32,), (1000,))
card.synchronize()
with gpusense.trace("stuck"):
    spin.launch((1,), (32,), (int(float(os.environ["SPIN_S"]) * 1e9),))
began, slowest, in_file, noticed = time.monotonic(), 0.0, None, None
launched = 0
while time.monotonic() - began < float(os.environ["SPIN_S"]) - 1:
    time.sleep(0.05)
    if launched < 200:
        at = time.perf_counter()
        spin.launch((1,), (32,), (1000,))
        slowest, launched = max(slowest, time.perf_counter() - at), launched + 1
    if recorder._hang.found and noticed is None:
        noticed = time.monotonic() - began
        time.sleep(0.5)
        if mode == "file": in_file = bool(gpusense.load(path).meta.get("hang"))
card.synchronize()
watch = recorder._hang
state = [round(time.monotonic() - watch._progress, 2), watch._ended is None, len(watch.found)]
session = run.finish()
if noticed is None:
    print(json.dumps([mode, "NOTHING NOTICED", state, session.meta["capture"], session.counters]))
    os._exit(1)
(found, *more) = session.meta["hang"]
running = sorted({row["running"]["name"] for row in found["streams"] if row["running"]})
kernels = len(session.kernels) + sum(row.count for row in session.aggregates if row.kind == "kernel")
print(json.dumps([
    mode, round(noticed, 2), running,
    [row["last_completed"] and row["last_completed"]["name"] for row in found["streams"]],
    round(slowest * 1e3, 2), in_file, 101 + launched, kernels, session.counters.invalid, bool(found["ended_ns"]),
    next(stack["frames"][0] for stack in found["stacks"] if stack["name"] == "MainThread"),
]))
"""


def main() -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "AFTER_S": str(AFTER_S), "SPIN_S": str(SPIN_S)}
    print(
        "mode  noticed_s  running  last_completed  slowest_launch_ms  in_file  launched  seen  invalid  went_on  main"
    )
    for mode in ("live", "file"):
        path = os.path.join(tempfile.mkdtemp(), "s.gpusense")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, mode, path], env=environ, capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            print(mode, "FAILED", done.returncode, done.stdout[-1500:], done.stderr[-1500:])
            continue
        print("  ".join(str(value) for value in json.loads(done.stdout.splitlines()[-1])))


if __name__ == "__main__":
    main()
