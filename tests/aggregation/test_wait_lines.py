"""Lines of synchronising calls: whose file it is, how it is written, and how they meet their records."""

import os
import sys

import pytest
from support.cupti import STRIDES, T0, memcpy, sync, view
from support.sessions import watch

from gpusense._aggregation import sums as _tally
from gpusense._aggregation import wait_lines as lines
from gpusense._aggregation.pipeline import Limits, Pipeline
from gpusense._aggregation.wait_lines import Files, Lines, line_text
from gpusense._runtime import config
from gpusense.session import _format as file
from gpusense.session import load
from gpusense.session._writer import Writer

SITE = f"{os.sep}usr{os.sep}lib{os.sep}python3{os.sep}site-packages{os.sep}"
posix = pytest.mark.skipif(os.name != "posix", reason="paths as on POSIX")


@pytest.mark.parametrize(
    ("path", "programs"),
    [
        ("/home/ann/job/train.py", True),
        ("train.py", True),
        ("<stdin>", True),
        ("<string>", True),
        ("/tmp/ipykernel_7/123.py", True),
        ("/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("/home/ann/site-packages-of-mine/train.py", True),
        (os.path.join(os.path.dirname(os.__file__), "threading.py"), False),
        (os.path.join(os.path.dirname(os.__file__) + "-mine", "train.py"), True),
        ("<frozen importlib._bootstrap>", False),
        ("<ipython-input-3-abc>", True),
        ("<eval_with_key>.12", False),
        ("/tmp/torchinductor_ann/ab/cdef.py", False),
        ("/home/ann/.triton/cache/ab/kernel.py", False),
        (lines.__file__, False),
    ],
)
@posix
def test_whose_file_it_is(path, programs):
    files = Files()
    assert [files.is_programs(path), files.is_programs(path)] == [programs, programs]


@posix
def test_installed_packages_may_count_as_the_programs():
    files = Files(("vllm", "single"))
    assert files.is_programs(f"{SITE}vllm/worker.py")
    assert files.is_programs(f"{SITE}single.py")
    assert not files.is_programs(f"{SITE}vllm_plugin/worker.py")
    assert not files.is_programs(f"{SITE}torch/vllm/worker.py")
    nested = f"/opt/site-packages/env{SITE}vllm/a.py"  # an environment inside an installed package
    assert files.is_programs(nested)


@posix
def test_paths_are_written_from_the_folder_they_were_imported_from(monkeypatch):
    monkeypatch.setattr(sys, "path", ["", "/home/ann/job", "/home/ann", "/home/ann/job/deep/", 7])
    files = Files()
    assert files.text("/home/ann/job/train.py") == "train.py"
    assert files.text("/home/ann/job/deep/er/model.py") == "er/model.py"
    assert files.text("/home/ann/jobs/other.py") == "jobs/other.py"
    assert files.text("/home/bob/secret/run.py") == "run.py"
    assert files.text(f"{SITE}torch/cuda/streams.py") == "torch/cuda/streams.py"
    assert files.text("<stdin>") == "<stdin>"
    assert files.text("rel/train.py") == "rel/train.py"


def test_many_files_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(lines, "MAX_FILES", 10)
    files = Files()
    for number in range(95):
        assert files.is_programs(f"/tmp/cell_{number}.py")
        assert files.text(f"/tmp/cell_{number}.py") == f"cell_{number}.py"
    assert len(files._programs) <= 10
    assert len(files._texts) <= 10


def test_a_line_has_file_number_and_function():
    class Model:
        def step(self):
            return sys._getframe()

    frame = Model().step()
    text = line_text(frame.f_code, 31, Files())
    name = "test_a_line_has_file_number_and_function.<locals>.Model.step" if sys.version_info >= (3, 11) else "step"
    assert text == f"{Files().text(__file__)}:31 {name}"
    first = frame.f_code.co_firstlineno
    assert line_text(frame.f_code, (1 << 64) - 1, Files()) == f"{Files().text(__file__)}:{first} {name}"


def test_lines_of_the_newest_calls_are_held_and_the_oldest_forgotten(monkeypatch):
    monkeypatch.setattr(lines, "MAX_CALLS", 96)
    held = Lines()
    assert not held
    held.add([(number, f"a.py:{number} f") for number in range(90)])
    assert held.of([3, 200, 3]) == ["a.py:3 f", None, "a.py:3 f"]
    held.add([(number, "b.py:1 g") for number in range(1000, 1020)])
    # Fourteen too many, and an eighth of the room.
    assert held.of([0, 25, 26, 89, 1019]) == [None, None, "a.py:26 f", "a.py:89 f", "b.py:1 g"]
    held.add([(89, "c.py:1 h")])  # ids begin again after 2**32 calls
    assert held.of([89]) == ["c.py:1 h"]


def fed(*records, rows, threshold_ns=100_000, **limits):
    made = Pipeline(Limits(threshold_ns, **limits), start_ns=T0)
    made.lines.add(rows)
    made.feed(view(*records), 7, STRIDES, lambda pointer: ("?", None, None))
    made.cycle(T0)
    return made


def test_a_kept_wait_has_its_line_and_others_have_none():
    made = fed(
        sync(T0, T0 + 200_000, 11),
        sync(T0, T0 + 300_000, 12),
        memcpy(T0, T0 + 400_000, 13, copy=2),
        memcpy(T0, T0 + 400_000, 14, copy=2),
        sync(T0, T0 + 500_000, 13),
        rows=[(11, "train.py:31 step"), (13, "train.py:40 read")],
    )
    found = {record.correlation_id: record for record in made.kept if record.duration_ns != 500_000}
    assert [found[11].source_line, found[12].source_line] == ["train.py:31 step", None]
    assert [found[11].name, found[12].name] == ["stream_synchronize", "stream_synchronize"]
    assert found[13].attributes == {"source_line": "train.py:40 read"}
    assert found[14].attributes is None
    (wait,) = [record for record in made.kept if record.duration_ns == 500_000]
    assert wait.source_line == "train.py:40 read"  # a copy's call that left both


def test_waits_that_are_only_counted_are_summed_by_line():
    records = [sync(T0, T0 + 1_000 + number, number, kind=1 + number % 2 * 2) for number in range(1, 61)]
    rows = [(number, f"train.py:{number % 3} f") for number in range(1, 61) if number % 5]
    made = fed(*records, rows=rows)
    sums = {(row.name, row.source_line): (row.count, row.total_ns) for row in made.ledger.aggregates()}
    expected = {}
    for number in range(1, 61):
        name = "event_synchronize" if number % 2 == 0 else "stream_synchronize"
        key = (name, f"train.py:{number % 3} f" if number % 5 else None)
        count, total = expected.get(key, (0, 0))
        expected[key] = (count + 1, total + 1_000 + number)
    assert sums == expected
    assert {row.kind for row in made.ledger.aggregates()} == {"sync"}


def test_a_record_that_is_evicted_keeps_its_line():
    made = fed(
        *(sync(T0, T0 + 200_000, number) for number in (1, 2, 3)),
        rows=[(1, "a.py:1 f"), (2, "a.py:1 f")],
        max_records=1,
    )
    assert [(row.source_line, row.count) for row in made.ledger.aggregates()] == [("a.py:1 f", 2)]


def test_more_lines_than_are_told_apart_are_summed_without_line(monkeypatch):
    monkeypatch.setattr(_tally, "MAX_LINES", 2)
    records = [sync(T0, T0 + 1_000, number) for number in range(1, 7)]
    made = fed(*records, rows=[(number, f"a.py:{number // 2} f") for number in range(1, 7)])
    rows = made.ledger.aggregates()
    assert sum(row.count for row in rows) == 6
    assert len({row.source_line for row in rows if row.source_line}) == 2
    assert None in {row.source_line for row in rows}


def test_blocks_and_totals_know_nothing_of_lines():
    from gpusense._attribution.boundaries import OPEN, Boundary

    made = Pipeline(Limits(100_000), start_ns=T0)
    watch(made, 1)
    made.attribution.boundary(Boundary(OPEN, 1, None, 7, T0, T0, "step"), 0)
    made.lines.add([(1, "a.py:1 f"), (2, "a.py:2 f")])
    made.feed(view(sync(T0, T0 + 10, 1), sync(T0, T0 + 20, 2)), 7, STRIDES, lambda pointer: ("?", None, None))
    made.cycle(T0)
    assert made.totals(1).rows == {("sync", "stream_synchronize"): [2, 30, 10, 20, 500, 0]}


def write(path, *steps):
    writer = Writer(path)
    writer.json(file.META, {"mode": "file", "start_ns": T0, "threshold_ns": 100_000})
    writer.layout(1, STRIDES)
    for step in steps:
        step(writer)
    writer.close()


def test_lines_in_a_session_file_meet_their_records(tmp_path):
    path = tmp_path / "run.gpusense"
    write(
        path,
        lambda writer: writer.rows(file.LINES, [(1, "a.py:1 f"), (2, "a.py:2 g")]),
        lambda writer: writer.buffer(bytes(view(sync(T0, T0 + 200_000, 1), sync(T0, T0 + 5_000, 2))), layout=1),
    )
    found = load(path)
    assert [record.source_line for record in found.syncs] == ["a.py:1 f"]
    assert [(row.source_line, row.count) for row in found.aggregates] == [("a.py:2 g", 1)]
    assert found.meta["damage"] == []


def test_damaged_lines_cost_themselves_alone(tmp_path):
    path = tmp_path / "run.gpusense"
    write(
        path,
        lambda writer: writer.json(file.LINES, [[1, "a.py:1 f"], [2]]),
        lambda writer: writer.json(file.LINES, {"no": "rows"}),
        lambda writer: writer.json(file.LINES, 7),
        lambda writer: writer.json(file.LINES, [[{}, "x"]]),
        lambda writer: writer.buffer(bytes(view(sync(T0, T0 + 200_000, 1))), layout=1),
    )
    found = load(path)
    assert [record.source_line for record in found.syncs] == [None]
    assert len(found.meta["damage"]) == 4
    assert all("was left out" in sentence for sentence in found.meta["damage"])


def test_a_reader_that_does_not_know_lines_skips_and_names_them(tmp_path, monkeypatch):
    path = tmp_path / "run.gpusense"
    write(
        path,
        lambda writer: writer.rows(file.LINES, [(1, "a.py:1 f")]),
        lambda writer: writer.buffer(bytes(view(sync(T0, T0 + 200_000, 1))), layout=1),
    )
    monkeypatch.delitem(file.TYPES, file.LINES)
    found = load(path)
    assert [record.source_line for record in found.syncs] == [None]
    (sentence,) = found.meta["damage"]
    assert "type 14" in sentence
    assert "skipped" in sentence


def test_lines_of_waits_ask_for_waits():
    assert config.check("kinds", ["sync_lines"]) == ("sync_lines", "sync")
    assert config.check("kinds", ("sync", "sync_lines")) == ("sync", "sync_lines")
    found, problems = config.from_environment(
        {"GPUSENSE_KINDS": "allocation,sync_lines", "GPUSENSE_LINE_PACKAGES": "vllm, transformers"}
    )
    assert found == {"kinds": ("allocation", "sync_lines", "sync"), "line_packages": ("vllm", "transformers")}
    assert problems == []
