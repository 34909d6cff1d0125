"""Time of ``import gpusense`` over a bare interpreter, both with ``-I -S``; processes interleaved. Budget: ≤ 3 ms. Then
processor time of ``gpusense run -c pass`` over ``python -c pass``, with an answer and with ``--quiet``.

Prints the median difference and its quartiles in milliseconds. ``ROOT…`` are other checkouts to measure beside this.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BARE = "pass"
IMPORT = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import gpusense"


def run(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
    return (time.perf_counter() - began) * 1e3


def said(what: str, differences: list[float]) -> None:
    low, median, high = statistics.quantiles(differences, n=4)
    print(f"{what}: {median:.2f} ms over bare [{low:.2f}, {high:.2f}], {len(differences)} pairs")


def processor_ms(root: str, *words: str) -> float:
    """Of a process and those it waits for: beside others on the machine it changes less than time does."""
    done = subprocess.Popen([sys.executable, *words], cwd=root, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(done.pid, 0)
    done.returncode = os.waitstatus_to_exitcode(status)
    assert done.returncode == 0, words
    return (used.ru_utime + used.ru_stime) * 1e3


def starts(roots: list[str], rounds: int = 40) -> None:
    ways = [(root, option) for root in roots for option in ((), ("--quiet",))]
    found: dict[tuple[str, tuple[str, ...]], list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        for number in range(-1, rounds):  # the first writes what is compiled
            bare = processor_ms("/", "-c", "pass")
            for root, option in ways:
                spent = processor_ms(root, "-m", "gpusense", "run", *option, "-c", "pass") - bare
                found[root, option] += [spent] if number >= 0 else []
    for (root, option), differences in found.items():
        said(" ".join((root, "gpusense run", *option)), differences)


def main(rounds: int = 60) -> None:
    run(IMPORT)
    said(f"import gpusense, {sys.version.split()[0]}", [-run(BARE) + run(IMPORT) for _ in range(rounds)])
    starts([str(ROOT), *sys.argv[1:]])


if __name__ == "__main__":
    main()
