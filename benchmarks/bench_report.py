"""Reports: seconds, peak memory and bytes of every format for a session of a million kept records.

``python benchmarks/bench_report.py [records]``. Every format runs in a process of its own; memory is what the process
needed above the session itself. With viztracer installed its writer gets the same records as trace events.
"""

import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

FORMATS = ("nothing", "findings", "json", "html", "perfetto", "chrome", "collapsed", "speedscope", "viztracer")


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write(form: str, session, path: str) -> None:
    if form == "findings":
        from gpusense.analysis import findings

        findings(session)
    elif form == "json":
        from gpusense.report import json

        json.write(session, path)
    elif form in ("html", "perfetto", "chrome"):
        import importlib

        importlib.import_module(f"gpusense.report.{form}").write(session, path)
    elif form == "collapsed":
        from gpusense.report import flamegraph

        flamegraph.write(session, path)
    elif form == "speedscope":
        from gpusense.report import flamegraph

        flamegraph.write_speedscope(session, path)


def viztracer(session, path: str) -> float:
    """Seconds of viztracer's own writer for the same kernels, which it gets as ready-made trace events."""
    from viztracer.report_builder import ReportBuilder

    events = [
        {"ph": "X", "name": r.name, "pid": 1, "tid": r.stream, "ts": r.start_ns / 1000, "dur": r.duration_ns / 1000}
        for r in session.records
    ]
    begin = time.perf_counter()
    ReportBuilder({"traceEvents": events, "viztracer_metadata": {}}, verbose=0).save(path)
    return time.perf_counter() - begin


def child(form: str, records: int) -> None:
    import sessions

    session = sessions.crowd(records)
    before = peak_mib()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.json" if form == "viztracer" else "report")
        begin = time.perf_counter()
        seconds = viztracer(session, path) if form == "viztracer" else write(form, session, path)
        seconds = seconds or time.perf_counter() - begin
        size = os.path.getsize(path) if os.path.exists(path) else 0
    print(f"{form:11} {seconds:8.2f} {peak_mib() - before:12.0f} {size / 1e6:10.1f} {size / records:12.1f}")


def main() -> None:
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{records:,} kernels on 4 streams")
    print(f"{'format':11} {'seconds':>8} {'MiB above it':>12} {'MB written':>10} {'bytes/record':>12}")
    for form in FORMATS[1:]:
        done = subprocess.run([sys.executable, __file__, str(records), form], capture_output=True, text=True)
        print(done.stdout.rstrip() or f"{form:11} not run: {done.stderr.strip().splitlines()[-1]}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        child(sys.argv[2], int(sys.argv[1]))
    else:
        main()
