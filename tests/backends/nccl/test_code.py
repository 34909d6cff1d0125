"""The machine code is what its source assembles to, and the constants beside it are those in the source."""

import subprocess
import sys

import pytest
from support.machine import FAKES, NATIVE, assembled, built_for

from gpusense._capi.machine import nccl_code as code
from gpusense._capi.machine.executable import PAGE


@pytest.mark.parametrize("machine", code.CODES)
def test_the_bytes_are_what_the_source_assembles_to(machine, tmp_path):
    native = code.CODES[machine]
    text, symbols = assembled(machine, native.assembly, tmp_path)
    assert text == native.machine
    assert len(text) <= PAGE
    assert text[-8:] == bytes(8)
    assert {name: symbols[name] for name in native.entries} == native.entries


@pytest.mark.skipif(sys.platform != "linux", reason="the code is for Linux")
@pytest.mark.parametrize("machine", code.CODES)
def test_many_threads_lose_and_mix_nothing(machine, compiler, tmp_path):
    build, run = built_for(machine, compiler)
    native, program, image = code.CODES[machine], tmp_path / "stress", tmp_path / "code.bin"
    image.write_bytes(native.machine)
    source = str(FAKES / "nccl_stress.c")
    subprocess.run([*build, "-O2", "-pthread", "-o", str(program), source], check=True, timeout=120)
    offsets = [str(native.entries[name]) for name in ("init6", "start", "stop", "state", "finalize")]
    rounds = "30000" if machine == NATIVE else "3000"
    command = [*run, str(program), str(image), *offsets, "4", rounds]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    came = int(done.stdout.split()[1])
    assert came > int(rounds)


def test_what_is_kept_fits_its_place():
    assert code.CHANNELS + 16 * code.CHANNEL_COUNT <= code.SLOT_BYTES
    assert code.EVENT + code.EVENT_BYTES <= code.CHANNELS
    assert code.ROW_NAME + code.ROW_NAME_BYTES == code.ROW_BYTES
