"""A long run with everything on: launches are counted, memory and descriptors must stay flat. Needs a GPU, no torch.

    python benchmarks/gpu/soak.py [--seconds 600] [--mode live|file]

Three threads launch kernels inside nested blocks, one of them copies as well, a monitor samples ten times a second,
and once a second somebody asks for a block's summary. Prints a row every 30 seconds and, last, a line that begins with
OK or WRONG: every launch was seen, nothing was dropped, no marker was lost, and neither memory, descriptors nor threads
grew.
"""

import argparse
import os
import pathlib
import resource
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import gpusense
from gpusense import cuda
from gpusense._tracing import select
from gpusense.cuda import _workload

INNER, PAUSE_S = 100, 0.006
WARM_S = 300  # until the history of blocks and the kept records are as many as they get


def resident_mb():
    with open("/proc/self/statm", encoding="ascii") as pages:
        return int(pages.read().split()[1]) * resource.getpagesize() / 1e6


class Launcher(threading.Thread):
    def __init__(self, number, module, copies, until):
        super().__init__(daemon=True)
        self.number, self.copies, self.until = number, copies, until
        self.spin = module.function("spin")
        self.launched = self.copied = self.summaries = 0
        self.error = None

    def run(self):
        try:
            asked = time.monotonic()
            while time.monotonic() < self.until:
                with gpusense.trace(f"thread {self.number}"):
                    with gpusense.trace("short"):
                        for _ in range(INNER):
                            self.spin.launch((1,), (32,), (1000,))
                    with gpusense.trace("long") as long:
                        self.spin.launch((1,), (32,), (150_000,))
                        self.copy()
                self.launched += INNER + 1
                if time.monotonic() - asked > 1:
                    asked = time.monotonic()
                    summary = long.summary()
                    self.summaries += 1
                    assert summary.kernel_count == 1, summary
                time.sleep(PAUSE_S)
        except BaseException as error:
            self.error = error

    def copy(self):
        if self.copies is not None:
            self.copies.copy_from(bytes(4096))
            self.copied += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--mode", default="live", choices=("live", "file"))
    given = parser.parse_args()
    card = cuda.Device(0)
    module = cuda.Module.from_ptx(_workload.PTX, card)
    path = os.path.join(tempfile.mkdtemp(), "soak.gpusense")
    run = select.control.start_session(mode=given.mode, path=path)
    recorder = run.tracer.recorder
    while not recorder.capture.running:
        with gpusense.trace("waiting"):
            time.sleep(0.01)
    kept = []
    run.tracer.add_sink(lambda records: kept.append(len(records)))
    monitor = gpusense.monitor.start_background(lambda metrics: None, interval=0.1)
    began = time.monotonic()
    buffer = cuda.Buffer(4096, card)
    threads = [Launcher(i, module, buffer if i == 0 else None, began + given.seconds) for i in range(3)]
    for thread in threads:
        thread.start()
    print(
        f"{card.name}, {given.mode} mode\n{'s':>5}{'launched M':>12}{'MB':>9}{'fds':>6}{'threads':>9}{'CPU %':>7}",
        flush=True,
    )
    first = None
    while any(thread.is_alive() for thread in threads):
        time.sleep(min(30.0, max(0.2, began + given.seconds - time.monotonic())))
        elapsed = time.monotonic() - began
        row = resident_mb(), len(os.listdir("/proc/self/fd")), threading.active_count()
        if elapsed < WARM_S or first is None:
            first = row
        share = time.process_time() / elapsed * 100
        total = sum(thread.launched for thread in threads)
        print(f"{elapsed:5.0f}{total / 1e6:12.3f}{row[0]:9.1f}{row[1]:6d}{row[2]:9d}{share:7.1f}", flush=True)
    card.synchronize()
    ticks = monitor.stats()
    monitor.stop()
    session = run.finish()
    counters, launched = session.counters, sum(thread.launched for thread in threads)
    seen = len(session.kernels) + sum(row.count for row in session.aggregates if row.kind == "kernel")
    copied = sum(thread.copied for thread in threads)
    copies = len(session.transfers) + sum(row.count for row in session.aggregates if row.kind == "transfer")
    errors = [repr(thread.error) for thread in threads if thread.error is not None]
    grown = row[0] - first[0]
    overhead = session.meta["overhead"]
    print(f"{counters}\n{overhead}\nmonitor: {ticks}\nsink: {sum(kept)} records in {len(kept)} calls")
    good = (
        seen == launched and copies == copied and not errors and not counters.dropped and not counters.lost_markers
        and not counters.ambiguous and grown < 20 and row[1] <= first[1] and row[2] <= first[2]
    )  # fmt: skip
    print(
        f"{'OK' if good else 'WRONG'}: {seen} of {launched} kernels, {copies} of {copied} copies, "
        f"{sum(thread.summaries for thread in threads)} summaries, grown {grown:.1f} MB, errors {errors}"
    )
    return not good


if __name__ == "__main__":
    sys.exit(main())
