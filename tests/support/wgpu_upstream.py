"""Runs the own tests of wgpu-py or pygfx bare and traced, and compares what passes and fails.

``python tests/support/wgpu_upstream.py FOLDER [pytest's arguments]``: the folder holds the tests of the installed
version, without its package, e.g. by
``git -C wgpu-py archive v0.32.0 tests tests_mem examples conftest.py | tar x -C FOLDER``. Needs a Vulkan driver.
"""

import collections
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
#: Each in a process of its own: some have modules of the same name.
PARTS = ("tests", "tests_mem", "examples/tests")

#: How a program is traced, besides ``gpusense run``: with everything that may be added to it.
COPIES = """
import sys
from gpusense.integrations import wgpu_py
assert wgpu_py.instrument(copies=True, emit=lambda records: None) is True
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""
WAYS = {
    "bare": ["-m", "pytest"],
    "gpusense run": ["-m", "gpusense", "run", "-m", "pytest"],
    "with copies": ["-c", COPIES],
}


def outcomes(folder: pathlib.Path, way: str, part: str, options: list[str]) -> dict[str, str]:
    """What became of each test, by its name."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environ |= {"RENDERCANVAS_FORCE_OFFSCREEN": "1", "XDG_RUNTIME_DIR": environ.get("XDG_RUNTIME_DIR", "/tmp")}
    flags = ["-p", "no:cacheprovider", "-p", "no:gpusense", "-v", "--color=no", "-o", "console_output_style=classic"]
    done = subprocess.run(
        [sys.executable, *WAYS[way], part, *flags, *options], cwd=folder, env=environ, capture_output=True, text=True
    )
    rows = re.findall(r"^(\S+::.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", done.stdout, re.MULTILINE)
    if not rows or done.returncode not in (0, 1):  # 1: a test failed
        raise SystemExit(f"{way}, {part}: ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return dict(rows)


def compared(folder: pathlib.Path, part: str, options: list[str]) -> list[str]:
    """Sentences on what is not the same."""
    found: list[str] = []
    bare = outcomes(folder, "bare", part, options)
    for way in list(WAYS)[1:]:
        traced = outcomes(folder, way, part, options)
        differ = [name for name in bare.keys() | traced.keys() if bare.get(name) != traced.get(name)]
        found += [f"{name}: bare {bare.get(name)}, {way} {traced.get(name)}" for name in sorted(differ)]
        counts = ", ".join(f"{count} {outcome}" for outcome, count in collections.Counter(traced.values()).items())
        print(f"{part}, {way}: {counts}; {len(differ)} not as without tracing", flush=True)
    return found


def main(folder: pathlib.Path, options: list[str]) -> int:
    """1 where anything differs."""
    found = [line for part in PARTS if (folder / part).is_dir() for line in compared(folder, part, options)]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
