"""On a real NVIDIA GPU: the command counts what a program launched, ends as the program does, and shows itself."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from support.programs import WORK, counts

import gpusense
from gpusense import cuda
from gpusense.session import load

pytestmark = pytest.mark.gpu
ROOT = pathlib.Path(gpusense.__file__).resolve().parent.parent


@pytest.fixture
def command(tmp_path):
    if not cuda.cuda_available():
        pytest.skip("needs an NVIDIA GPU")
    (tmp_path / "work.py").write_text(WORK)
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GPUSENSE")}

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "gpusense", *words],
            cwd=tmp_path,
            env={**environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=110,
        )

    return run


@pytest.mark.parametrize("mode", [(), ("--live",)])
def test_run_counts_exactly_what_was_launched(command, tmp_path, mode):
    done = command("run", "-o", "s.gpusense", "--trace-all", *mode, "work.py")
    print(done.stderr)
    assert done.returncode == 0
    session = load(tmp_path / "s.gpusense")
    assert counts(session) == json.loads(done.stdout)
    assert session.meta["damage"] == []
    assert {kernel.path for kernel in session.kernels if kernel.name == "spin"} == {("demo", "step", "backward")}
    assert all(kernel.duration_ns >= 300_000 for kernel in session.kernels if kernel.name == "spin")


def test_the_threshold_of_a_file_can_be_chosen_afterwards(command, tmp_path):
    done = command("run", "-o", "s.gpusense", "work.py")
    launched = json.loads(done.stdout)
    kept = load(tmp_path / "s.gpusense")
    counted = sum(row.count for row in kept.aggregates if row.kind == "kernel")
    assert len(kept.kernels) + counted == sum(launched[0].values())
    assert all(kernel.duration_ns >= 100_000 for kernel in kept.kernels)
    assert counts(load(tmp_path / "s.gpusense", trace_all=True)) == launched


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("1/0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_it_ends_as_the_program_does(command, tmp_path, ending, code):
    (tmp_path / "ending.py").write_text(WORK + ending)
    done = command("run", "-o", "s.gpusense", "--trace-all", "ending.py")
    assert done.returncode == code, done.stderr
    assert counts(load(tmp_path / "s.gpusense")) == json.loads(done.stdout)


def test_selftest_and_demo(command):
    tested = command("doctor", "--selftest", "--json")
    print(tested.stdout)
    assert json.loads(tested.stdout)["selftest"]["passed"] is True
    for words in ((), ("-o", "demo.gpusense")):
        shown = command("demo", *words)
        print(shown.stdout)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.startswith("This is this machine")
        assert "verdict: " in shown.stdout


def test_work_before_the_first_block_is_seen_or_named(command, tmp_path):
    """Nothing tells the command when CUDA becomes live: what was launched before capture must be an unseen interval."""
    (tmp_path / "sudden.py").write_text(
        "from gpusense.cuda import _workload\nimport json\nprint(json.dumps(_workload.run(steps=3).kernels))"
    )
    done = command("run", "-o", "s.gpusense", "--trace-all", "sudden.py")
    session = load(tmp_path / "s.gpusense")
    launched = sum(json.loads(done.stdout).values())
    assert len(session.kernels) == launched or session.unseen, done.stderr
