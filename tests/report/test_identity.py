"""Which run a session is of, on every output."""

import io
import json

from support.sessions import training

from gpusense._capture import identity as facts
from gpusense.report import chrome, identity, perfetto, text
from gpusense.report import json as report_json
from gpusense.report.html import page

META = {
    "run": {"label": "night", "command": "train.py --epochs 3"},
    "program_start_ns": 1_764_280_000_000_000_000,
    "host": "node7",
    "rank": 1,
    "world_size": 2,
    "python": "3.12.3",
    "frameworks": {"torch": "2.11.0"},
    "driver": "580.159.04",
    "cuda": "13.0",
}
WORDS = ("night", "train.py --epochs 3", "2025-11-2", "node7", "rank 1 of 2", "Python 3.12.3", "torch 2.11.0")
WORDS = (*WORDS, "driver 580.159.04", "CUDA 13.0")


def test_a_line_has_all_of_it_and_nothing_that_is_not_known():
    line = identity.line(META)
    assert all(word in line for word in WORDS), line
    assert identity.line({}) == ""
    assert identity.line({"rank": None, "run": "damaged", "frameworks": 3, "host": None}) == ""


def test_every_output_says_it():
    session = training(2)
    session.meta |= META
    lines = list(text.full(session))
    head = "\n".join(lines[: lines.index("")])
    assert all(word in head for word in WORDS), head
    html, told, trace = io.StringIO(), io.StringIO(), io.BytesIO()
    page.write(session, html)
    assert all(word in html.getvalue() for word in WORDS)
    report_json.write(session, told)
    meta = json.loads(told.getvalue())["meta"]
    assert {name: meta[name] for name in META} == META
    events = io.StringIO()
    chrome.write(session, events)
    assert all(word in json.loads(events.getvalue())["otherData"]["run"] for word in WORDS)
    perfetto.write(session, trace)
    assert b"night" in trace.getvalue()


def test_the_driver_is_read_from_the_kernel(tmp_path):
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@host)\n"
    )
    assert facts.driver(str(tmp_path / "version")) == "580.159.04"
    (tmp_path / "version").write_text("nothing\n")
    assert facts.driver(str(tmp_path / "version")) is None
    assert facts.driver(str(tmp_path / "absent")) is None


def test_what_is_known_of_this_process():
    import sys

    found = facts.facts((13, 0))
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["cuda"] == "13.0"
    assert found["host"]
    assert facts.facts(None)["cuda"] is None
