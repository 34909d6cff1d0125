"""The machine code that makes a mark, by itself."""

import subprocess
import sys

import pytest
from support.machine import FAKES, assembled, built_for

from gpusense._capi.machine import mark_code as code
from gpusense._capi.machine.executable import PAGE


@pytest.mark.parametrize("machine", code.CODES)
def test_the_bytes_are_what_the_source_assembles_to(machine, tmp_path):
    native = code.CODES[machine]
    text, symbols = assembled(machine, native.assembly, tmp_path)
    assert text == native.machine
    assert len(text) <= PAGE
    assert text[-32:] == bytes(32)
    assert symbols["mark"] == native.entries["mark"] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the code is for Linux")
@pytest.mark.parametrize("machine", code.CODES)
def test_each_call_may_refuse_and_none_is_made_after_that(machine, compiler, tmp_path):
    build, run = built_for(machine, compiler)
    program, image = tmp_path / "calls", tmp_path / "code.bin"
    image.write_bytes(code.CODES[machine].machine)
    subprocess.run([*build, "-O1", "-o", str(program), str(FAKES / "mark_calls.c")], check=True, timeout=120)
    done = subprocess.run([*run, str(program), str(image)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    other, captured, refused = (step << code.STEP_BITS for step in (1, 2, 3))
    assert [(int(answer), calls) for answer, calls in map(str.split, done.stdout.splitlines())] == [
        (5_000_000_999_999_999, "csrt"),
        (-other, "c"),
        (-(other + 201), "c"),
        (-(captured + 906), "cs"),
        (-captured, "cs"),
        (-(captured + 700), "cs"),
        (-(refused + 400), "csr"),
    ]
