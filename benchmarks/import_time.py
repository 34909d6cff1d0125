"""Time of ``import gpusense`` over a bare interpreter, both with ``-I -S``; processes interleaved. Budget: ≤ 3 ms.

Prints the median difference and its quartiles in milliseconds.
"""

import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BARE = "pass"
IMPORT = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import gpusense"


def run(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
    return (time.perf_counter() - began) * 1e3


def main(rounds: int = 60) -> None:
    run(IMPORT)
    differences = [-run(BARE) + run(IMPORT) for _ in range(rounds)]
    low, median, high = statistics.quantiles(differences, n=4)
    print(
        f"import gpusense: {median:.2f} ms over bare [{low:.2f}, {high:.2f}], {rounds} pairs, {sys.version.split()[0]}"
    )


if __name__ == "__main__":
    main()
