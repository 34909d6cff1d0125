"""Where a report cannot be written, and what is said then."""

import errno
import io
import os

import pytest
from support.sessions import MS, kernel, session

import gpusense
from gpusense._runtime.errors import NotWritten
from gpusense.analysis.diff import compare as diff
from gpusense.cli import main
from gpusense.report import chrome, compare, flamegraph, perfetto, text
from gpusense.report import json as json_report
from gpusense.report.html import page

WRITERS = {
    "text": text.write,
    "json": json_report.write,
    "chrome": chrome.write,
    "flamegraph": flamegraph.write,
    "speedscope": flamegraph.write_speedscope,
    "perfetto": perfetto.write,
    "page": page.write,
    "comparison": lambda run, target: compare.write(diff([run], [run]), target),
}


@pytest.mark.parametrize("name", WRITERS)
def test_each_export_says_in_a_sentence_why_nothing_was_written(tmp_path, name):
    run, path = session(kernel("k", 0, MS), end=MS), tmp_path / "none" / "report"
    with pytest.raises(gpusense.GpuSenseError) as raised:
        WRITERS[name](run, path)
    assert str(raised.value) == f"{path}: cannot be written: there is no folder {tmp_path}/none"
    assert isinstance(raised.value, OSError)  # as before
    assert raised.value.errno == errno.ENOENT
    with pytest.raises(NotWritten, match=f"^{tmp_path}: cannot be written: it is a folder$"):
        WRITERS[name](run, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk(tmp_path):
    with pytest.raises(NotWritten, match=r"^/dev/full: cannot be written: No space left on device$"):
        text.write(session(kernel("k", 0, MS)), "/dev/full")


def test_a_file_under_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritten, match="file/report: cannot be written: Not a directory"):
        text.write(session(), tmp_path / "file" / "report")


def test_what_an_open_file_raises_is_its_owners(tmp_path):
    class Broken(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        text.write(session(kernel("k", 0, MS)), Broken())


def test_the_command_says_it_once(tmp_path, capsys):
    run, path = tmp_path / "run.gpusense", tmp_path / "none" / "r.html"
    gpusense.session.save(session(kernel("k", 0, MS), end=MS), run)
    assert main(["report", str(run), "--html", "-o", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"gpusense report: {path}: cannot be written: there is no folder {tmp_path}/none\n"
    )
