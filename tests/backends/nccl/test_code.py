"""The machine code is what its source assembles to, and the constants beside it are those in the source."""

import pytest
from support.machine import assembled

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


def test_what_is_kept_fits_its_place():
    assert code.CHANNELS + 16 * code.CHANNEL_COUNT <= code.SLOT_BYTES
    assert code.EVENT + code.EVENT_BYTES <= code.CHANNELS
    assert code.ROW_NAME + code.ROW_NAME_BYTES == code.ROW_BYTES
