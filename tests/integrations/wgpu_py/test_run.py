"""``gpusense run`` sees the passes and transfers of a wgpu program that knows nothing of it."""

import os
import subprocess
import sys

from support.machine import HERE, ROOT

from gpusense.session import load

PROGRAM = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from support import wgpu_programs as programs
print(hash(bytes(programs.compute())) != 0)
"""


def test_run_times_a_wgpu_program(wgpu, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "gpusense", "run", "-o", "s.gpusense", "--trace-all", "program.py"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\n"
    session = load(tmp_path / "s.gpusense")
    assert {kernel.backend for kernel in session.kernels} == {"wgpu"}
    assert {transfer.direction for transfer in session.transfers} >= {"cpu_to_gpu", "gpu_to_cpu"}
    assert "wgpu" in done.stderr or "no device" not in done.stderr.splitlines()[0]


def test_a_wgpu_that_is_not_known_is_named(wgpu, tmp_path):
    """In the session and in what is concluded from it."""
    (tmp_path / "program.py").write_text("import wgpu.backends.wgpu_native\n")
    # What the wheel's library answers cannot be changed, what we know can.
    (tmp_path / "sitecustomize.py").write_text("import gpusense._capi.wgpu_structs as known\nknown.FAMILIES.clear()\n")
    command = [sys.executable, "-m", "gpusense", "run", "-o", "s.gpusense", "program.py"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "is not known to gpusense" in load(tmp_path / "s.gpusense").meta["sources"]["wgpu"]["reason"]
    assert "verdict: Nothing was recorded: wgpu is not traced: wgpu-native" in done.stderr


def test_a_wgpu_program_without_passes_is_no_missing_cuda(wgpu, tmp_path):
    (tmp_path / "program.py").write_text("import wgpu.backends.wgpu_native\n")
    command = [sys.executable, "-m", "gpusense", "run", "-o", "s.gpusense", "program.py"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert "verdict: Nothing was recorded: wgpu was traced, and the program submitted no pass." in done.stderr


def test_run_times_copies_where_it_is_told_to(wgpu, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "gpusense",
        "run",
        "-o",
        "s.gpusense",
        "--trace-all",
        "--wgpu-copies",
        "program.py",
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    copies = [one for one in load(tmp_path / "s.gpusense").transfers if one.timing == "device"]
    assert [one.name for one in copies] == ["copy_buffer_to_buffer"] * 2  # the program's, and that of its read


def test_passes_are_called_passes(wgpu, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "gpusense", "run", "-o", "s.gpusense", "program.py"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    assert "no device seen" not in done.stderr
    command = [sys.executable, "-m", "gpusense", "report", "s.gpusense"]
    report = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
    for text in (done.stderr, report.stdout):
        assert "kernel" not in text
        assert "loader" not in text
    assert "; passes " in report.stdout
