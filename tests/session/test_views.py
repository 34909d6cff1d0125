"""What a session answers when it is asked: figures, pages, tables."""

import copy
import io
import json
import pickle
import threading
from itertools import pairwise

import pytest
from support.sessions import MS, T0, eventful, session, training

import gpusense
from gpusense.analysis.facts import Facts
from gpusense.report.html import page
from gpusense.session import load
from gpusense.session._format import MAGIC


@pytest.fixture(scope="module")
def run():
    return training(8)


def test_answers_are_those_of_the_report(run):
    told = run.to_dict()
    assert [finding.title for finding in run.findings()] == [finding["title"] for finding in told["findings"]]
    assert run.verdict is run.findings()[0]
    assert str(run.verdict).startswith(run.verdict.title)
    assert [phase._asdict() for phase in run.phases] == [
        {name: phase[name] for name in gpusense.Phase._fields} for phase in told["phases"]
    ]
    assert run.steps.number == told["steps"][0]["number"]
    assert [(row.name, row.total_ns) for row in run.operations()] == [
        (row["name"], row["total_ns"]) for row in told["operations"]
    ]
    json.dumps(told)


def test_phases_cover_the_window_without_gaps(run):
    phases = run.phases
    assert (phases[0].start_ns, phases[-1].end_ns) == (T0, run.meta["end_ns"])
    assert all(one.end_ns == after.start_ns for one, after in pairwise(phases))


def test_a_merged_session_says_whose_a_phase_is():
    assert {phase.process for phase in eventful().phases} == {"rank 0", "rank 1"}


def test_the_table_of_blocks_has_the_order_of_the_report_and_the_rows_of_the_summary(run):
    rows = run.block_table()
    assert sorted(rows, key=lambda row: -row.total_ns) == list(run.summary().operations)
    paths = [row.path for row in rows]
    assert all(path[:-1] in paths[:at] for at, path in enumerate(paths) if len(path) > 1)
    assert len(run.blocks) == sum(row.count for row in rows)


def test_the_timeline_has_everything_in_order_and_the_empty_times_between(run):
    spans = run.timeline()
    assert [span.start_ns for span in spans] == sorted(span.start_ns for span in spans)
    counts = {kind: sum(span.kind == kind for span in spans) for kind in ("kernel", "block", "compute", "sync")}
    assert counts == {"kernel": len(run.kernels), "block": len(run.blocks), "compute": 8, "sync": 8}
    (device,) = (time for time in run.once(Facts).times)
    empty = [span for span in spans if span.kind == "empty"]
    assert sum(span.duration_ns for span in empty) == device.last_ns - device.first_ns - device.busy_ns
    assert {span.name for span in empty} <= {"launch", "synchronising", "host", "new", "allocation", "graph", "none"}


def test_a_session_is_analysed_once(run):
    assert run.once(Facts) is run.once(Facts)
    assert run.findings() == run.findings()
    assert run.summary() is run.summary()


def test_a_copy_is_analysed_anew_and_threads_get_one_answer(run):
    for again in (copy.copy(run), copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        assert again.once(Facts) is not run.once(Facts)
        assert again.verdict == run.verdict
    new = training(3)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(new.findings()[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in found}) == 1


def test_of_nothing_the_answers_are_empty_and_the_verdict_says_so():
    empty = session()
    assert empty.verdict.kind == "nothing_seen"
    assert session(reason="gpusense is off").verdict.title == "Nothing was recorded: gpusense is off."
    assert empty.steps is None
    assert empty.operations() == empty.block_table() == empty.timeline() == ()
    assert "nothing" in empty.operations()._repr_html_()
    assert empty.verdict.as_html() in empty._repr_html_()


def test_pages_are_text_or_go_to_a_path(run, tmp_path):
    target = io.StringIO()
    page.write(run, target)
    assert run.to_html() == target.getvalue()
    assert run.to_html(tmp_path / "page.html") is None
    assert (tmp_path / "page.html").read_text("utf-8") == target.getvalue()
    trace = run.to_perfetto()
    assert run.to_perfetto(tmp_path / "trace.pftrace") is None
    assert (tmp_path / "trace.pftrace").read_bytes() == trace
    with pytest.raises(OSError, match="there is no folder"):
        run.to_html(tmp_path / "nowhere" / "page.html")


def test_saving_goes_by_the_suffix(run, tmp_path):
    for name, begins in (
        *(("a.gpusense", MAGIC), ("a.json", b'{"schema":"gpusense.report/1"'), ("A.HTML", b"<!doctype html>")),
        *(("a.trace.json", b'{"displayTimeUnit"'), ("a.speedscope.json", b'{"$schema"'), ("a.txt", b"gpusense: ")),
    ):
        run.save(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begins), name
    assert load(tmp_path / "a.gpusense").verdict == load(tmp_path / "a.json").verdict == run.verdict
    with pytest.raises(ValueError, match=r"there are \.gpusense, \.json, \.html"):
        run.save(tmp_path / "a.csv")


class Printer:
    def text(self, text):
        self.said = text


def pretty(value):
    value._repr_pretty_(printer := Printer(), False)
    return printer.said


def test_what_a_notebook_shows(run):
    assert run.verdict.as_html() in run._repr_html_()
    assert pretty(run).startswith("gpusense: ")
    assert "verdict: " in pretty(run)
    assert "next: " not in pretty(run)
    assert run.findings()._repr_html_().count("<b>Try:</b>") >= 1
    assert pretty(run.findings()).startswith(run.verdict.title)
    assert pretty(run.operations()).split()[:3] == ["share", "total", "calls"]
    assert "train › step › backward" in pretty(run.block_table())
    assert 'srcdoc="' in run.timeline()._repr_html_()
    assert "steady" in pretty(run.phases)
    assert pretty(run.steps).startswith(f"{run.steps.number} × {run.steps.name} of ")
    assert "Counters by block" not in run._repr_html_()
    counted = eventful()._repr_html_()
    assert "<h4>Counters by block</h4>" in counted
    assert "(all work)" in counted
    assert "3.00 TB/s" in counted


def test_a_frame_begins_with_the_timeline(run):
    shown = run.timeline()._repr_html_()
    assert "class=&quot;embedded&quot;" in shown
    assert shown.count("<iframe") == 1
    assert '<body class="embedded">' not in run.to_html()


def test_unfinished_and_short_runs_are_answered_too():
    open_still = session(end=None, start_ns=T0)
    assert open_still.phases == ()
    assert len(session(end=MS).phases) == 1
