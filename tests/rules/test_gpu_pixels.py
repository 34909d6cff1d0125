"""The example that renders a gradient: on a scripted driver, and without any."""

import os
import pathlib
import re
import subprocess
import sys

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "gpu_pixels.py"


def run(library: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        encoding="utf-8",
        env={**os.environ, "GPUSENSE_LIBCUDA": library, "PYTHONPATH": str(EXAMPLE.parents[1]), "PYTHONUTF8": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_without_a_gpu_the_cpu_paints(tmp_path):
    lines = run(str(tmp_path / "no-libcuda"), "20").splitlines()
    assert lines[-1].startswith("No CUDA device here, so the CPU did it: 20 × 10 pixels in ")
    assert lines[-1].endswith(" Mpx/s")
    assert len(lines) == 6
    assert lines[0][0] == " "
    assert lines[4][-1] == "@"


def test_with_a_driver_the_statistics_are_shown(build_library):
    output = run(str(build_library("libcuda.c", "libcuda.so.1")), "40")
    assert "NVIDIA H100 80GB HBM3: 40 × 20 pixels in 5.0 µs, 160.0 Mpx/s" in output
    assert re.search(r"takes 2\.4 kB of VRAM; [\d.]+ GB of [\d.]+ are free", output)
    assert "grid (3, 2, 1), block (16, 16, 1), 32 registers a thread," in output
    assert "8 blocks an SM, occupancy 100%" in output
