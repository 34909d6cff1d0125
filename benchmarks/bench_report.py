"""Reports: processor seconds, peak memory and bytes of every format for a session of a million kept records.

``python benchmarks/bench_report.py [RECORDS] [FORMAT …]``. Every format runs in a process of its own; memory is what
it needed above the session itself, at its peak. "load" is reading the session from its file, whose memory is the
session's; "diff" compares it with a second one as large. With viztracer installed its writer gets the same records as
trace events. Seconds are of the processor, and beside them those that passed.
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

FORMATS = (
    "load",
    "save",
    "findings",
    "text",
    "json",
    "json, indented",
    "html",
    "perfetto",
    "chrome",
    "collapsed",
    "speedscope",
    "diff",
    "viztracer",
)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write(form: str, session, path: str) -> None:
    if form == "findings":
        from gpusense.analysis.findings import findings

        findings(session)
    elif form == "save":
        from gpusense.session import save

        save(session, path)
    elif form == "text":
        from gpusense.report import text
        from gpusense.report.style import PLAIN

        text.write(session, path, PLAIN)
    elif form.startswith("json"):
        from gpusense.report import json

        json.write(session, path, indent=2 if "indented" in form else None)
    elif form in ("html", "perfetto", "chrome"):
        import importlib

        module = "html.page" if form == "html" else form
        importlib.import_module(f"gpusense.report.{module}").write(session, path)
    elif form == "collapsed":
        from gpusense.report import flamegraph

        flamegraph.write(session, path)
    elif form == "speedscope":
        from gpusense.report import flamegraph

        flamegraph.write_speedscope(session, path)


def diff(session, records: int):
    """The comparison with another run, which is there already."""
    from support import sessions

    from gpusense.report import compare

    other = sessions.crowd(records, seed=4)
    return lambda path: compare.command([session], [other], fail_over=None, form="text", target=path)


def viztracer(session):
    """viztracer's own writer, and the same kernels as the trace events it gets."""
    from viztracer.report_builder import ReportBuilder

    events = [
        {"ph": "X", "name": r.name, "pid": 1, "tid": r.stream, "ts": r.start_ns / 1000, "dur": r.duration_ns / 1000}
        for r in session.records
    ]
    return ReportBuilder({"traceEvents": events, "viztracer_metadata": {}}, verbose=0).save


def child(form: str, records: int, folder: str) -> None:
    path = os.path.join(folder, "report.json" if form == "viztracer" else "report")
    saved = os.path.join(folder, "run.gpusense")
    before = peak_mib()
    if form == "load":
        from gpusense.session import load

        begin, began = time.process_time(), time.monotonic()
        load(saved)
        path = saved
    else:
        from support import sessions

        session = sessions.crowd(records)
        prepared = {"viztracer": lambda: viztracer(session), "diff": lambda: diff(session, records)}.get(form)
        run = prepared() if prepared is not None else lambda path: write(form, session, path)
        before = peak_mib()
        begin, began = time.process_time(), time.monotonic()
        run(path)
    seconds, passed = time.process_time() - begin, time.monotonic() - began
    size = os.path.getsize(path) if os.path.exists(path) else 0
    above = peak_mib() - before
    print(f"{form:14} {seconds:8.1f} {passed:8.1f} {above:12.0f} {size / 1e6:9.1f} {size / records:12.1f}")
    if form == "save":
        os.replace(path, saved)


def main(records: int, forms: "tuple[str, ...]") -> None:
    print(f"{records:,} kernels on 4 streams, Python {sys.version.split()[0]}")
    print(f"{'format':14} {'CPU s':>8} {'wall s':>8} {'MiB above it':>12} {'MB':>9} {'bytes/record':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for form in forms:
            command = [sys.executable, __file__, "--child", form, str(records), folder]
            done = subprocess.run(command, capture_output=True, text=True)
            why = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
            print(done.stdout.rstrip() or f"{form:14} not run: {why[0]}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        numbers = [int(word.replace(",", "")) for word in sys.argv[1:] if word.replace(",", "").isdigit()]
        wanted = tuple(word for word in sys.argv[1:] if not word.replace(",", "").isdigit())
        main(numbers[0] if numbers else 1_000_000, wanted or ("save", *(form for form in FORMATS if form != "save")))
