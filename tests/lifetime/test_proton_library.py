"""Triton Proton in a process where gpusense captures: both use one libcupti, and Proton is given no buffer of ours.

A package with the shape of Triton's Python part, over a C library that does with CUPTI what Proton's does.
"""

import json
import os
import signal
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")

VARIABLE = "TRITON_CUPTI_LIB_PATH"

KNOBS = """
import os
class Variable:
    def __init__(self, key): self.key = key
    def __set_name__(self, owner, name): self.name = name
    def __get__(self, knobs, owner):
        if knobs is None: raise AttributeError("of an instance alone")
        return knobs.__dict__.get(self.name) or os.environ.get(self.key) or "/its/own"
    def __set__(self, knobs, value): knobs.__dict__[self.name] = value
class Knobs:
    cupti_lib_dir = Variable("TRITON_CUPTI_LIB_PATH")
proton = Knobs()
"""

PROFILE = """
import os
from .. import knobs
from .._C.libproton import proton as libproton
from . import flags
def start():
    flags.flags.profiling_on = True
    return libproton.start(os.path.join(knobs.proton.cupti_lib_dir, "libcupti.so"))
def finalize():
    flags.flags.profiling_on = False
    return libproton.finalize_all()
"""

LIBRARY = """
import ctypes, os
_library = ctypes.CDLL(os.environ["FAKE_PROTON"])
paths = []
class proton:
    @staticmethod
    def start(path):
        "Starts."
        paths.append(os.path.realpath(path))
        code = _library.proton_start(path.encode())
        if code: raise RuntimeError(f"error {code}")
    @staticmethod
    def finalize_all(): return _library.proton_stop()
"""

HEAD = """
import ctypes, json, os, sys, time
driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
import gpusense
def launch(count):
    for _ in range(count): driver.fake_cuda_launch(b"k", 0, 7, ctypes.c_uint64(900))
def capture():
    gpusense.enable()
    tracer, deadline = gpusense.get_tracer(), time.monotonic() + 10
    while tracer.recorder.marker is None and time.monotonic() < deadline:
        with gpusense.trace("waiting"): time.sleep(0.005)
    return tracer
def until(state):
    deadline = time.monotonic() + 10
    while tracer.status()["state"] != state and time.monotonic() < deadline: time.sleep(0.01)
    assert tracer.status()["state"] == state, tracer.status()
def proton():
    import triton.profiler.profile
    return triton.profiler.profile
def seen(): return sum(row.count for row in tracer.session().aggregates if row.kind == "kernel")
"""

TURNS = """
launch(30)  # in a buffer that CUPTI has
used.start()
until("paused")
state = tracer.status()["reason"]
launch(20)
counted = used.finalize()
until("running")
launch(10)
print(json.dumps([counted, seen(), state, sys.modules["triton._C.libproton"].paths]))
"""


@pytest.fixture
def program(run_python, scripted, build_library, tmp_path):
    package = tmp_path / "triton"
    for name, text in {
        "__init__.py": "",
        "knobs.py": KNOBS,
        "_C/__init__.py": "",
        "_C/libproton.py": LIBRARY,
        "profiler/__init__.py": "",
        "profiler/flags.py": "class flags:\n    profiling_on = False\n",
        "profiler/profile.py": PROFILE,
    }.items():
        (package / name).parent.mkdir(exist_ok=True, parents=True)
        (package / name).write_text(text)
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def run(code, **env):
        done = run_python(
            f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + HEAD + code,
            GPUSENSE="on",
            TMPDIR=str(temporary),
            FAKE_PROTON=str(build_library("proton.c", "libproton.so")),
            **scripted,
            **env,
        )
        assert done.returncode < 0 or list(temporary.iterdir()) == []
        return done

    return run


def test_without_us_its_library_frees_what_comes_back(program):
    """That the stand-in shows the danger: the call that lets go of CUPTI is left out."""
    done = program(
        "from gpusense.backends.cupti import proton as ours\nours.step_aside = lambda: None\n"
        "tracer, used = capture(), proton()" + TURNS
    )
    assert done.returncode in (-signal.SIGABRT, -signal.SIGSEGV)


@pytest.mark.parametrize("order", ["tracer, used = capture(), proton()", "used, tracer = proton(), capture()"])
def test_both_have_what_is_theirs_through_one_library(program, scripted, order):
    done = program(order + TURNS)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    counted, seen, reason, paths = json.loads(done.stdout)
    assert (counted, seen) == (20, 40)
    assert reason == "another profiler, Triton Proton, holds CUPTI"
    assert paths == [os.path.realpath(scripted["GPUSENSE_LIBCUPTI"])]


def test_a_library_that_the_program_has_chosen_stays(program, tmp_path):
    code = "tracer, used = capture(), proton()\nprint(used.knobs.proton.cupti_lib_dir)"
    assert program(code, **{VARIABLE: "/chosen"}).stdout == "/chosen\n"
    code = "used = proton()\nused.knobs.proton.cupti_lib_dir = '/mine'\ntracer = capture()\n"
    code += "print(used.knobs.proton.cupti_lib_dir)"
    assert program(code).stdout == "/mine\n"


def test_without_capture_nothing_is_touched(program):
    code = (
        "used = proton()\ngpusense.disable()\nprint(used.knobs.proton.cupti_lib_dir, used.libproton.start.__module__)"
    )
    done = program("import triton._C.libproton\n" + code)
    assert done.stdout == "/its/own triton._C.libproton\n"


def test_a_proton_with_other_insides_is_left_alone(program, tmp_path):
    (tmp_path / "triton" / "knobs.py").write_text("")
    (tmp_path / "triton" / "profiler" / "profile.py").write_text("libproton = None\n")
    done = program("tracer, used = capture(), proton()\nlaunch(3)\nprint(seen())")
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_its_own_errors_reach_the_program(program):
    done = program(
        """
tracer, used = capture(), proton()
used.knobs.proton.cupti_lib_dir = "/nowhere"
try:
    used.start()
except RuntimeError as error:
    print(error, used.libproton.start.__doc__)
until("paused")
used.flags.flags.profiling_on = False
until("running")
launch(3)
print(seen())
"""
    )
    assert done.stdout == "error -1 Starts.\n3\n", done.stderr
