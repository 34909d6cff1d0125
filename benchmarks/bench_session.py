"""Session files of raw records: processor seconds and peak memory of loading one, and of the answer to a run.

``python benchmarks/bench_session.py [RECORDS] [--shape SHAPE] [--rounds N] [--package FOLDER …]``. Files are made
first, one a shape, and kept in ``--files`` (a folder of the system for such, unless given) for the next time. Each
round is a process of its own, and rounds of several packages come in turn; the best of each is shown, beside a loop of
plain Python on the same core, which says how fast that was. Memory is the peak of the process, a bare interpreter of
9 MiB with it. ``--package`` is a folder with a gpusense: without one this one, with two a comparison.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEP, BUFFER = 600, 1200  # launches of a step, records of a buffer
STEP_PAUSE_NS, GAP_NS = 5_000_000, 2_000
THREAD = 5

#: What a file is like: "plain" is one loop of 40 kernels with a copy in each step on one stream.
SHAPES = {
    "plain": {},
    "names": {"names": 2_000},
    "blocks": {"blocks": 20},  # launches of the innermost of three
    "streams": {"streams": 4},
    "threads": {"threads": 4},
    "copies": {"copy_every": 3},
    "graphs": {"nodes": 30},  # records of one launch
    "irregular": {"irregular": True},  # no loop
}

ONE = """
import sys, time, resource
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
clock = time.process_time
at, x = clock(), 0
for i in range(5_000_000): x += i
speed = clock() - at
at = clock()
import gpusense
from gpusense.session import load
session = load(sys.argv[1])
loaded, memory = clock() - at, peak()
from gpusense.report import text
lines = text.summary(session)
print(speed, loaded, memory, clock() - at, peak(), len(session.work))
"""


def make(path: str, records: int, shape: str) -> None:
    """Writes a file as a run leaves it."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from random import Random

    from support.cupti import STRIDES, T0, kernel, memcpy

    from gpusense._attribution.boundaries import ENDED, OPEN, PLACED
    from gpusense.session import _format as file
    from gpusense.session._block_chunks import Packer
    from gpusense.session._writer import Writer

    of = SHAPES[shape]
    random = Random(0)
    number = of.get("names", 40)
    streams, threads, nodes, blocks = (of.get(name, 1) for name in ("streams", "threads", "nodes", "blocks"))
    names = {0x1000 + 64 * i: b"_ZN2at6native29vectorized_elementwise_kernelILi4EEEvi_%d" % i for i in range(number)}
    writer = Writer(path, max_bytes=None)
    writer.json(file.META, {"mode": "file", "start_ns": T0, "threshold_ns": 100_000, "version": "x", "pid": 1})
    writer.layout(1, STRIDES, marker=[], kinds=[], others_markers=[], epoch=0)
    writer.names(names)
    packer = Packer()
    open_blocks: list[tuple[int, int, int]] = []  # number, depth, start
    made = 0

    def turn(depth: int, time_ns: int, newest: int) -> None:
        """Closes what is open from a depth on, and opens as much again."""
        nonlocal made
        paths = [("step",), ("step", "layer"), ("step", "layer", "attention")]
        while open_blocks and open_blocks[-1][1] >= depth:
            block, at, start = open_blocks.pop()
            outer = open_blocks[-1][0] if open_blocks else None
            record = (paths[at][-1], block, outer, paths[at], start, time_ns, THREAD, None, None)
            packer.add([(ENDED, None, THREAD, newest, *record)])
        for at in range(depth, len(paths)):
            made += 1
            outer = open_blocks[-1][0] if open_blocks else None
            packer.add([(PLACED, OPEN, made, outer, THREAD, time_ns, paths[at][-1], newest)])
            open_blocks.append((made, at, time_ns))

    time_ns, out, launch = T0 + 1000, [[] for _ in range(threads)], 0
    busy = [0] * streams
    for i in range(records):
        if i % STEP == 0:
            time_ns += STEP_PAUSE_NS
        if i % nodes == 0:
            launch += 1
        if "blocks" in of and i % blocks == 0:
            turn(0 if i % STEP == 0 else 1 if i % (5 * blocks) == 0 else 2, time_ns - 500, launch - 1)
        which = random.randrange(number) if "irregular" in of else i % number
        stream = i % streams
        length = 3000 if i % of.get("copy_every", STEP) == 5 % of.get("copy_every", STEP) else 4000 + which % 40 * 50
        start = max(time_ns, busy[stream])
        busy[stream] = end = start + length * streams
        corr = launch & 0xFFFFFFFF
        if length == 3000:
            record = memcpy(start, end, corr, stream=7 + stream)
        else:
            record = kernel(start, end, corr, name=0x1000 + 64 * which, stream=7 + stream)
        mine = out[i // 50 % threads]
        mine.append(record)
        time_ns += length + GAP_NS + (random.randrange(100_000) if "irregular" in of and i % 100 == 0 else 0)
        if len(mine) == BUFFER:
            writer.buffer(b"".join(mine), thread=THREAD + i // 50 % threads, layout=1)
            mine.clear()
            if packer:
                writer.append(file.BLOCKS, *packer.take())
    for at, mine in enumerate(out):
        writer.buffer(b"".join(mine), thread=THREAD + at, layout=1)
    if packer:
        writer.append(file.BLOCKS, *packer.take())
    writer.close(end_ns=time_ns + 1000)


def measured(path: str, packages: list[str], rounds: int) -> list[list[float]]:
    """Of each package the best of some rounds: seconds of a loop, of loading, of all; MiB after loading, at the end."""
    found: list[list[list[float]]] = [[] for _ in packages]
    for _ in range(rounds):
        for package, mine in zip(packages, found, strict=True):
            # The folder in which it runs is the first that Python looks into.
            done = subprocess.run(
                [sys.executable, "-c", ONE, path], cwd=package, capture_output=True, check=True, text=True
            )
            mine.append([float(number) for number in done.stdout.split()])
    return [[min(column) for column in zip(*mine, strict=True)] for mine in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--shape", action="append", choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--package", action="append")
    parser.add_argument("--files", default=tempfile.gettempdir())
    args = parser.parse_args()
    packages = args.package or [str(ROOT)]
    print(f"{'shape':<12}{'loop s':>8}{'load s':>8}{'all s':>8}{'MiB':>8}{'all MiB':>9}{'rows':>11}")
    for shape in args.shape or SHAPES:
        path = os.path.abspath(os.path.join(args.files, f"{shape}-{args.records}.gpusense"))
        if not os.path.exists(path):
            make(path, args.records, shape)
        for speed, loaded, loaded_mib, whole, whole_mib, rows in measured(path, packages, args.rounds):
            print(
                f"{shape:<12}{speed:>8.3f}{loaded:>8.2f}{whole:>8.2f}{loaded_mib:>8.0f}{whole_mib:>9.0f}{rows:>11,.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
