"""One session file a process, merged into one report: as the ranks of a distributed job.

python examples/multiprocess.py
"""

import multiprocessing
import os
import pathlib
import tempfile

import gpusense
from gpusense import session


def work(rank, folder):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    gpusense.enable()
    with gpusense.trace("rank work", {"rank": rank}):
        gpusense.record_kernel("train", duration_ns=(rank + 1) * 1_000_000)
    session.save(gpusense.get_tracer().session(), folder / f"rank{rank}.gpusense")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        context = multiprocessing.get_context("spawn")  # a forked child of a program that used CUDA cannot use it
        processes = [context.Process(target=work, args=(rank, folder)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        whole = session.merge([gpusense.load(path) for path in sorted(folder.iterdir())])
        for kernel in whole.kernels:
            print(f"{kernel.name}: {kernel.duration_ns / 1e6:.0f} ms in {kernel.path}")
        print(f"{len(whole.meta['processes'])} processes in one session")


if __name__ == "__main__":
    main()
