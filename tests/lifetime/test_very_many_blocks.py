"""Programs that open very many blocks, or very deep ones: all are in the session or counted, in bounded time."""

from gpusense.session import load

#: gpusense's thread comes to little, as beside a program that keeps the GIL.
_HELD_UP = """
from gpusense._capture import worker
worker.AT_ONCE_NS, worker.PAUSE_S = 0, 0.01
import gpusense
"""
_BLOCKS = """
with gpusense.trace("root"):
    for _ in range(12_000):
        with gpusense.trace("step"): pass
"""


def recorded(run_python, path, code, **env):
    """What ``gpusense run`` says of ``code``, how many blocks are in its file, and how many are counted as left out."""
    arguments = ["run", "--trace-all", "-o", str(path), "-c", code]
    done = run_python(f"from gpusense.cli import main; import sys; sys.exit(main({arguments!r}))", **env)
    assert done.returncode == 0, done.stderr
    session = load(str(path))
    assert not session.meta.get("damage")
    counters = session.counters
    return done.stderr, len(session.blocks), counters.shed_blocks + counters.failed_blocks + counters.unread_at_end


def test_a_run_without_a_driver_ends_whatever_the_number_of_its_blocks(run_python, tmp_path):
    code = """
import gpusense
for _ in range(60_000):
    with gpusense.trace("step"): pass
"""
    _, kept, left_out = recorded(run_python, tmp_path / "many.gpusense", code)
    assert kept + left_out == 60_000


def test_the_end_reads_all_that_waits_as_long_as_it_goes_on(run_python, tmp_path):
    _, kept, left_out = recorded(run_python, tmp_path / "waiting.gpusense", _HELD_UP + _BLOCKS)
    assert (kept, left_out) == (12_001, 0)


def test_an_end_that_is_given_up_is_in_the_file_and_in_the_answer(run_python, tmp_path):
    path = tmp_path / "given_up.gpusense"
    hurried = "from gpusense._tracing import tracer\ntracer.LONGEST_END_S = 0.1\nworker.PAUSE_S = 0.1\n"
    said, kept, left_out = recorded(run_python, path, _HELD_UP + hurried + _BLOCKS)
    assert kept < 12_001
    assert left_out > 0
    assert "unread at the end" in " ".join(said.split())
    assert any("was given up" in unseen.reason for unseen in load(str(path)).unseen)


def test_a_deep_recursion_is_in_the_file(run_python, tmp_path):
    code = """
import sys, gpusense
sys.setrecursionlimit(20_000)
@gpusense.trace("visit")
def visit(level):
    if level: visit(level - 1)
visit(2_000)
"""
    _, kept, left_out = recorded(run_python, tmp_path / "deep.gpusense", code, GPUSENSE="on")
    assert (kept, left_out) == (2_001, 0)
