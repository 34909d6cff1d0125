"""On a real NVIDIA GPU with torch: each wait names the line it was called from, and nothing hangs or is lost for it.

Each case runs in processes of its own: ``python -m pytest tests/gpu/test_sync_lines.py -s``.
"""

import json
import pathlib
import subprocess
import sys

import pytest

from gpusense import cuda

pytestmark = pytest.mark.gpu
BENCHMARK = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "gpu" / "sync_lines.py"


@pytest.fixture
def part():
    """The facts of one part of the benchmark, by case."""
    if not cuda.cuda_available():
        pytest.skip("needs an NVIDIA GPU")
    pytest.importorskip("torch")

    def run(name):
        done = subprocess.run(
            [sys.executable, str(BENCHMARK), "--part", name, "--json"],
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        print(f"\n{done.stdout}")
        facts = json.loads(done.stdout.splitlines()[-1])
        assert not {name: case["failed"] for name, case in facts.items() if "failed" in case}
        return facts

    return run


def test_each_wait_names_the_line_it_was_called_from(part):
    for facts in part("lines").values():
        assert facts["wrong"] == {}
        assert facts["unnamed"] == 0
        assert [row for row in facts["rows"] if row[2] != row[3]] == []
        assert facts["status"]["lost"] == facts["status"]["foreign"] == 0


def test_torch_profiler_has_its_kernels_once_lines_were_stopped(part):
    facts = part("profiler")["after lines"]
    assert facts["lines"] is True, facts["reason"]
    assert facts["first"] == facts["second"] == facts["launched"]
    assert facts["state"] == "running"


def test_threads_that_hold_the_gil_in_the_driver_hang_nothing(part):
    facts = part("gil")["gil"]
    assert min(facts["holding"] + facts["releasing"]) > 0
    assert facts["status"]["noted"] > 0


def test_a_program_ends_as_it_would_while_threads_wait(part):
    """Some releases of torch abort where daemon threads launch as the interpreter ends, with gpusense and without."""
    facts = part("exit")
    usual = {case["status_of_exit"] for name, case in facts.items() if name.startswith("without")}
    cases = [case for name, case in facts.items() if not name.startswith("without")]
    assert usual
    assert len(cases) == 2
    for case in cases:
        assert case["noted"] > 0
        assert case["status_of_exit"] in usual
        assert case["stderr"] == [] or case["status_of_exit"] != 3
