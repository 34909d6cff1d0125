"""A library that carries its own copy of gpusense, and leaves it on: made here in a temporary folder.

python examples/vendored_use.py
"""

import pathlib
import subprocess
import sys
import tempfile

LIBRARY = """
from ._gpusense import configure, get_tracer, trace

configure(defaults=True, threshold_us=500)   # the application and the environment have the last word

@trace("mylib.solve")
def solve(n):
    return sum(i * i for i in range(n))

def report():
    return get_tracer().summary()
"""

with tempfile.TemporaryDirectory() as folder:
    package = pathlib.Path(folder) / "mylib"
    package.mkdir()
    (package / "__init__.py").write_text(LIBRARY)
    copy = str(package / "_gpusense")
    gpusense = [sys.executable, "-m", "gpusense", "vendor"]
    subprocess.run([*gpusense, copy, "--core"], check=True, stderr=subprocess.DEVNULL)
    subprocess.run([*gpusense, copy, "--check"], check=True, stderr=subprocess.DEVNULL)  # for the library's CI

    sys.path.insert(0, folder)
    import mylib

    mylib._gpusense.enable()
    print(mylib.solve(1000), mylib.report().operation("mylib.solve").count, "call")
    print("the copy is", mylib._gpusense.__name__)
