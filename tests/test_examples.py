"""Every example runs to its end on a machine without a GPU, with warnings as errors, and says something."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

#: What the output must hold: an example that prints anything else has stopped showing what it is for.
SHOWN = {
    "trace_block": ["step", "normalise", "load"],
    "decorator": ["[0, 1, 2, 3] [0, 1, 4]", "batches / square"],
    "custom_sink": ["{'my_kernel': 200000}", "5 seen, 4 kept, 1 counted"],
    "asyncio_server": ["[0, 1, 4, 9, 16]", "5 requests"],
    "multiprocess": ["train: 1 ms", "train: 2 ms", "2 processes in one session"],
    "vendored_use": ["332833500 1 call", "the copy is mylib._gpusense"],
    "monitor_to_csv": ["time,device,uuid,gpu_percent"],
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
    for words in SHOWN.get(path.stem, ()):
        assert words in done.stdout


def test_what_is_shown_is_of_examples_that_are_there():
    assert set(SHOWN) <= {path.stem for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_says_how_to_run_it(path):
    text = path.read_text("utf-8")
    assert f"python examples/{path.name}" in text.split('"""')[1]
