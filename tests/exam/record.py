"""Runs the programs of the exam and keeps what gpusense recorded beside what each program measured itself.

    python tests/exam/record.py --out exam-results [--only NAME,NAME] [--archive exam.tar.gz]

Needs an NVIDIA GPU, for some programs two, and the frameworks that a program imports; a program that fails is a row of
the table, and the next one runs. Each run leaves, under ``--out``:

- ``NAME.gpusense`` the session, ``NAME.truth.json`` the program's own figures, ``NAME.log`` what it printed;
- with ``--plain`` or ``--fixed``: ``NAME.plain.json`` or ``NAME.fixed.json``, measured without gpusense;
- with ``--peers``: ``NAME.torch.txt`` from torch.profiler and ``NAME.nsys.txt`` from Nsight Systems, if there is one.

A program of two ranks is two processes, with ``.rank0`` and ``.rank1`` in the names of their files.
"""

import argparse
import json
import os
import pathlib
import queue
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = HERE / "programs"
ANSWERS = json.loads((HERE / "answers.json").read_text("utf-8"))
WAYS = ("session", "plain", "fixed", "peers")
LARGEST_BYTES = 350_000


class Run(NamedTuple):
    """One program to run in one way."""

    name: str
    way: str

    @property
    def gpus(self) -> int:
        return int(ANSWERS[self.name].get("gpus", 1))

    @property
    def ranks(self) -> int:
        return int(ANSWERS[self.name].get("ranks", 1))


class Row(NamedTuple):
    """What became of a process."""

    name: str
    way: str
    exit_code: int | None  # None: it took too long
    seconds: float
    step_ms: float | None = None
    kernels: int | None = None
    file_bytes: int | None = None

    def text(self) -> str:
        ended = "timeout" if self.exit_code is None else str(self.exit_code)
        step = "-" if self.step_ms is None else f"{self.step_ms:.2f}"
        kernels = "-" if self.kernels is None else f"{self.kernels:,}"
        size = "-" if self.file_bytes is None else f"{self.file_bytes:,}"
        large = "  too large" if (self.file_bytes or 0) > LARGEST_BYTES else ""
        return f"{self.name:36} {self.way:8} {ended:>7} {self.seconds:7.1f} {step:>9} {kernels:>9} {size:>11}{large}"


HEAD = f"{'program':36} {'way':8} {'exit':>7} {'seconds':>7} {'step ms':>9} {'kernels':>9} {'file bytes':>11}"


class Recorder:
    """Runs programs on lanes: one lane a GPU, or all GPUs for a program that needs two."""

    def __init__(self, settings: argparse.Namespace) -> None:
        self.settings = settings
        self.out = pathlib.Path(settings.out).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.deadline = time.monotonic() + settings.budget
        self.machine = machine()
        (self.out / "machine.json").write_text(json.dumps(self.machine, indent=1), "utf-8")
        self.rows: list[Row] = []
        self.left: list[Run] = []

    def record(self, runs: list[Run]) -> None:
        """All runs, those on one GPU side by side as far as there are lanes, then the others."""
        print(HEAD, flush=True)
        waiting: queue.SimpleQueue[Run] = queue.SimpleQueue()
        for run in runs:
            if run.gpus == 1:
                waiting.put(run)
        lanes = [
            threading.Thread(target=self._lane, args=(waiting, lane if self.settings.lanes > 1 else None))
            for lane in range(self.settings.lanes)
        ]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        for run in runs:
            if run.gpus > 1:
                self._run(run, None)

    def _lane(self, waiting: "queue.SimpleQueue[Run]", gpu: int | None) -> None:
        while True:
            try:
                run = waiting.get_nowait()
            except queue.Empty:
                return
            self._run(run, gpu)

    def _run(self, run: Run, gpu: int | None) -> None:
        if time.monotonic() > self.deadline:
            self.left.append(run)
            return
        for rows in self._processes(run, gpu):
            for row in rows:
                self.rows.append(row)
                print(row.text(), flush=True)

    def _processes(self, run: Run, gpu: int | None) -> Iterator[list[Row]]:
        script = str(PROGRAMS / f"{run.name}.py")
        if run.way != "peers":
            yield self._ranks(run, gpu, run.way, lambda base: self._command(run, base, script))
            return
        profiled = [sys.executable, str(HERE / "under_torch_profiler.py")]
        yield self._ranks(run, gpu, "torch", lambda base: [*profiled, f"{base}.torch.txt", script])
        nsys = shutil.which("nsys")
        if nsys:
            profile = [nsys, "profile", "--force-overwrite=true", "--trace=cuda,nvtx,osrt"]
            yield self._ranks(run, gpu, "nsys", lambda base: [*profile, "-o", str(base), sys.executable, script])
            for base in self._bases(run):
                nsys_text(nsys, base)

    def _command(self, run: Run, base: pathlib.Path, script: str) -> list[str]:
        if run.way != "session":
            return [sys.executable, script]
        options = shlex.split(f"{ANSWERS[run.name].get('options', '')} {self.settings.options}")
        return [sys.executable, "-m", "gpusense", "run", "-o", f"{base}.gpusense", *options, script]

    def _bases(self, run: Run) -> list[pathlib.Path]:
        """The files of each rank, without what tells them apart."""
        if run.ranks == 1:
            return [self.out / run.name]
        return [self.out / f"{run.name}.rank{rank}" for rank in range(run.ranks)]

    def _ranks(self, run: Run, gpu: int | None, way: str, command: Any) -> list[Row]:
        """Starts a process a rank and waits for all of them, or ends them when the time is over."""
        began, port = time.monotonic(), free_port()
        processes = []
        for rank, base in enumerate(self._bases(run)):
            environment = self._environment(run, base, way)
            if gpu is not None:
                environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
            if run.ranks > 1:
                environment.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(run.ranks))
                environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            with open(f"{base}.{way}.log", "wb") as log:
                started = subprocess.Popen(
                    command(base),
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            processes.append((base, started))
        return [self._finished(base, way, process, began) for base, process in processes]

    def _environment(self, run: Run, base: pathlib.Path, way: str) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUSENSE")}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
        environment["EXAM_TRUTH"] = str(truth_path(base, way))
        truth_path(base, way).unlink(missing_ok=True)
        if way == "session":
            environment["GPUSENSE_KINDS"] = self.settings.kinds
        else:
            environment["GPUSENSE"] = "off"
        if way == "fixed":
            environment["EXAM_FIXED"] = "1"
        return environment

    def _finished(self, base: pathlib.Path, way: str, process: "subprocess.Popen[bytes]", began: float) -> Row:
        try:
            code: int | None = process.wait(max(1.0, began + self.settings.timeout - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
            end(process)
        seconds = time.monotonic() - began
        step_ms = self._completed(truth_path(base, way))
        if way != "session":
            return Row(base.name, way, code, seconds, step_ms)
        session = pathlib.Path(f"{base}.gpusense")
        size = session.stat().st_size if session.exists() else None
        return Row(base.name, way, code, seconds, step_ms, kernels_in(session) if size else None, size)

    def _completed(self, path: pathlib.Path) -> float | None:
        """Adds the card and its driver to what the program wrote; the time of a step, if it wrote anything."""
        try:
            truth = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        truth["versions"].update(self.machine)
        path.write_text(json.dumps(truth, indent=1), "utf-8")
        return float(truth["step_ms"])


def truth_path(base: pathlib.Path, way: str) -> pathlib.Path:
    """Where a program writes its own figures."""
    return pathlib.Path(f"{base}.truth.json" if way == "session" else f"{base}.{way}.json")


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process and those that it started: asked first, so that a session can still be closed, then forced."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def kernels_in(path: pathlib.Path) -> int | None:
    """How many kernels the session has seen, kept or counted."""
    try:
        import gpusense

        session = gpusense.load(path)
    except Exception as error:
        print(f"{path.name}: {error!r}", file=sys.stderr)
        return None
    return len(session.kernels) + sum(row.count for row in session.aggregates if row.kind == "kernel")


def nsys_text(nsys: str, base: pathlib.Path) -> None:
    """What Nsight Systems says of the run it recorded: its tables, and its own advice. The recording is deleted."""
    recorded = pathlib.Path(f"{base}.nsys-rep")
    reports = "cuda_gpu_kern_sum,cuda_gpu_mem_time_sum,cuda_gpu_mem_size_sum,cuda_api_sum"
    parts = []
    for command in ("stats", "--force-export=true", "--report", reports), ("analyze", "--force-export=true"):
        done = subprocess.run([nsys, *command, str(recorded)], capture_output=True, text=True, check=False)
        parts.append(f"nsys {shlex.join(command)}\n{done.stdout}\n{done.stderr}")
    pathlib.Path(f"{base}.nsys.txt").write_text("\n".join(parts), "utf-8")
    recorded.unlink(missing_ok=True)
    recorded.with_suffix(".sqlite").unlink(missing_ok=True)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def machine() -> dict[str, str]:
    """The card and its driver, as nvidia-smi names them; nothing without it."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return {}
    card, _, driver = lines[0].partition(", ")
    return {"card": card, "driver": driver, "cards": str(len(lines))}


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record the exam.", allow_abbrev=False)
    parser.add_argument("--out", default="exam-results", metavar="FOLDER", help="where results go (exam-results)")
    parser.add_argument("--only", default="", metavar="NAME,NAME", help="these programs alone")
    parser.add_argument("--list", action="store_true", help="name the programs and run nothing")
    parser.add_argument("--plain", action="store_true", help="run without gpusense, for the program's own figures")
    parser.add_argument("--fixed", action="store_true", help="run without gpusense and without the fault")
    parser.add_argument("--peers", action="store_true", help="run under torch.profiler, and under nsys if it is there")
    parser.add_argument("--session", action="store_true", help="record sessions too, beside the three above")
    parser.add_argument("--timeout", type=float, default=90, metavar="S", help="end a program after so long (90)")
    parser.add_argument("--budget", type=float, default=1e9, metavar="S", help="begin no program after so long")
    parser.add_argument("--lanes", type=int, default=1, metavar="N", help="run N programs at a time, a GPU each (1)")
    parser.add_argument("--kinds", default="sync", metavar="A,B", help="more kinds of records to ask for (sync)")
    parser.add_argument("--options", default="", metavar="TEXT", help='more options of "gpusense run"')
    parser.add_argument("--archive", metavar="FILE", help="pack all results into this .tar.gz")
    settings = parser.parse_args(arguments)
    settings.names = [name for name in settings.only.split(",") if name] or sorted(ANSWERS)
    unknown = sorted(set(settings.names) - set(ANSWERS))
    if unknown:
        parser.error(f"no such program: {', '.join(unknown)}")
    settings.ways = [way for way in WAYS if getattr(settings, way)] or ["session"]
    return settings


def main() -> int:
    settings = parsed()
    if settings.list:
        for name in settings.names:
            print(f"{name:36} {ANSWERS[name]['title']}")
        return 0
    sys.path.insert(0, str(ROOT))
    recorder = Recorder(settings)
    recorder.record([Run(name, way) for way in settings.ways for name in settings.names])
    if recorder.left:
        names = ",".join(dict.fromkeys(run.name for run in recorder.left))
        print(f"\nnot begun, as the time was over: --only {names}")
    failed = [row for row in recorder.rows if row.exit_code != 0]
    total = sum(row.file_bytes or 0 for row in recorder.rows)
    print(f"\n{len(recorder.rows)} processes, {len(failed)} failed, {total:,} bytes of sessions, in {recorder.out}")
    for row in failed:
        log = recorder.out / f"{row.name}.{row.way}.log"
        print(f"\n{row.name}, {row.way}: the end of {log.name}\n{log.read_text('utf-8', 'replace')[-800:]}")
    if settings.archive:
        with tarfile.open(settings.archive, "w:gz") as archive:
            archive.add(recorder.out, recorder.out.name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
