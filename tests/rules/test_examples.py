"""Every example runs to its end on a machine without a GPU, with warnings as errors, and says something."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

#: What the output must hold: an example that prints anything else has stopped showing what it is for.
SHOWN = {
    "trace_block": ["step", "normalise", "load"],
    "decorator": ["[0, 1, 2, 3] [0, 1, 4]", "batches / square"],
    "custom_sink": ["{'my_kernel': 200000}", "4 listed, 1 summed"],
    "asyncio_server": ["[0, 1, 4, 9, 16]", "5 requests"],
    "multiprocess": ["train: 1 ms", "train: 2 ms", "2 processes in one session"],
    "vendored_use": ["332833500 1 call", "the copy is mylib._gpusense"],
    "monitor_to_csv": ["time,device,uuid,gpu_percent"],
    "find_a_stall": ["Every 10 steps GPU 0 is idle for 20.0 ms longer than usual"],
    "without_a_gpu": [
        "temperatures: []",
        "kept: []",
        "['squares', 'work']",
        "kernels in it: None, because no GPU work",
    ],
    "matrix_product": ["without CUDA: libcuda"],
    "otlp_server": ["GET /b \n  infer 10\n    gpu_kernel: attention", "short work, summed 9 short kernels, 45.0 µs"],
    "prometheus": ["# TYPE gpusense_build_info gauge"],
}
#: The same where wgpu and a driver are, as in CI.
WITH_WGPU = {
    "wgpu_transfers": ["write_buffer(frame)", "read_buffer(frame)", " GB/s"],
    "matrix_product": ["wgpu: begins with 1,139; right is 1,139", "µs for 128 × 128"],
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path):
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GPUSENSE")}
    environ["PYTHONPATH"] = str(ROOT)
    environ["PYTHONIOENCODING"] = "utf-8"
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(path)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=100,
        env=environ,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout.strip()
    for words in [*SHOWN.get(path.stem, ()), *(WITH_WGPU.get(path.stem, ()) if environ.get("CI") else ())]:
        assert words in done.stdout


#: Of examples that watch devices, where there are two.
WATCHED = {
    "background_monitor": ["NVIDIA H100 80GB HBM3 is at 91", "NVIDIA H100 80GB HBM3: 87.0 % busy, 346 W"],
    "block_energy": ["NVIDIA H100 80GB HBM3: ", " J (", "of it ours"],
    "monitor_to_csv": ["NVIDIA H100 80GB HBM3,GPU-ab000001-1111-2222-3333-444444444444,87.0,"],
    "prometheus": ['hw_temperature_celsius{hw_id="GPU-ab000000-1111-2222-3333-444444444444:temperature:gpu"'],
}


@pytest.mark.parametrize("name", WATCHED)
def test_example_with_devices(name, build_library, tmp_path):
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GPUSENSE")}
    environ["PYTHONPATH"] = str(ROOT)
    environ["PYTHONIOENCODING"] = "utf-8"
    environ["GPUSENSE_LIBNVIDIA_ML"] = str(build_library("libnvidia_ml.c", "libnvidia-ml.so.1"))
    environ["FAKE_NVML"] = "devices=2 value=nvmlDeviceGetTemperatureV:-1:91"
    # With logging on: what a callback raises is told there and nowhere else.
    code = "import logging, runpy, sys; logging.basicConfig(); runpy.run_path(sys.argv.pop(), run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "examples" / f"{name}.py")],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=100,
        env=environ,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for words in WATCHED[name]:
        assert words in done.stdout


def test_what_is_shown_is_of_examples_that_are_there():
    assert {*SHOWN, *WITH_WGPU} <= {path.stem for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_says_how_to_run_it(path):
    text = path.read_text("utf-8")
    assert f"python examples/{path.name}" in text.split('"""')[1]
