"""The machine code that notes the lines of calls, against its source and against a stand-in for CPython."""

import ctypes
import platform
import re
import subprocess
import sys

import pytest
from support.machine import FAKES, assembled, built_for

from gpusense._capi.machine import executable
from gpusense.backends.cupti.sync_lines import code

LINUX = sys.platform == "linux"
NATIVE = platform.machine() if LINUX else None


@pytest.mark.parametrize("machine", code.CODES)
def test_the_bytes_are_what_the_source_assembles_to(machine, tmp_path):
    text, symbols = assembled(machine, code.CODES[machine].assembly, tmp_path)
    assert text == code.CODES[machine].machine
    assert len(text) <= executable.PAGE
    assert symbols["note"] == code.CODES[machine].entries["note"]


def test_python_and_assembly_agree_on_the_control_block():
    constants = {name: int(value, 0) for name, value in re.findall(r"\.set (\w+), (\w+)", code.CONSTANTS)}
    names = "THREAD_STATE INTERPRETER_OF TAKE_GIL GIVE_GIL COLLECT_NOT COLLECT FRAME BACK CODE LINE INCREASE DECREASE"
    places = [constants.pop(name) for name in names.split()]
    assert places == list(range(code.FUNCTIONS, code.STOPS, 8))
    assert len(places) == len(code.PYTHON_FUNCTIONS)
    assert constants.pop("STOP_MASK") == code.STOP_COUNT - 1
    assert constants == {name: getattr(code, name) for name in constants}
    assert len(constants) == 17
    assert code.CONTROL_BYTES <= executable.PAGE


@pytest.mark.skipif(not LINUX, reason="the functions are looked up as on Linux")
def test_this_python_exports_what_the_code_calls():
    python = ctypes.PyDLL(None)
    assert [name for name in code.PYTHON_FUNCTIONS if not hasattr(python, name)] == []


@pytest.mark.parametrize("machine", code.CODES)
def test_rows_are_whole_and_bounded_and_references_balanced(machine, compiler, tmp_path):
    build, run = built_for(machine, compiler)
    program, image = tmp_path / "calls", tmp_path / "code.bin"
    image.write_bytes(code.CODES[machine].machine)
    source = str(FAKES / "lines_calls.c")
    subprocess.run([*build, "-O2", "-pthread", "-o", str(program), source], check=True, timeout=120)
    rounds = "20000" if machine == NATIVE else "2000"
    done = subprocess.run([*run, str(program), str(image), rounds], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert int(re.search(r"seen (\d+)", done.stdout)[1]) > 0
