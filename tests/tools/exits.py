"""Many exits of each kind, on the Python that runs this: python tests/tools/exits.py [TIMES]   (100)

The programs of ``tests/lifetime/test_life_cycle.py``, which runs each once: half of the times CUPTI still moves buffers
after the interpreter has ended. Needs pytest (for that file) and a C compiler. Prints a row a kind; exits 1 where an
exit status or standard error was not the program's own.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "lifetime")]

from support.programs import HEAD  # noqa: E402
from test_life_cycle import EXITS  # noqa: E402


def build(source: str, target: pathlib.Path) -> str:
    command = ["cc", "-shared", "-fPIC", "-O1", "-pthread", "-o", str(target), str(TESTS / "fakes" / source)]
    subprocess.run(command, check=True)
    return str(target)


def is_its_own(how: str, done: "subprocess.CompletedProcess[str]") -> bool:
    error = done.stderr
    return done.returncode == EXITS[how][1] and (
        error == "" or (how == "exception" and "gpusense" not in error and error.endswith("ValueError: mine\n"))
    )


def main() -> int:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    folder = pathlib.Path(tempfile.mkdtemp())
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSENSE", "FAKE", "PYTHON"))}
    environ = {
        **kept,
        "PYTHONPATH": str(TESTS.parent),
        "GPUSENSE_LIBCUDA": build("libcuda.c", folder / "libcuda.so.1"),
        "GPUSENSE_LIBCUPTI": build("libcupti.c", folder / "libcupti.so.13"),
    }
    wrong = 0
    for how, (code, _) in EXITS.items():
        good = 0
        for number in range(times):
            late = {"FAKE_CUPTI_LATE": "1"} if number % 2 else {}
            program = f"{HEAD}begin()\n_workload.run(gpusense.trace, 1)\n{code}"
            command = [sys.executable, "-c", program]
            done = subprocess.run(command, env=environ | late, cwd=folder, capture_output=True, text=True, timeout=60)
            if is_its_own(how, done):
                good += 1
            else:
                print(f"{how}, late={bool(late)}: status {done.returncode}, {done.stderr[-400:]!r}", flush=True)
        print(f"Python {sys.version.split()[0]}  {how:18} {good} of {times}", flush=True)
        wrong += times - good
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
