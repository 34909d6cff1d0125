"""Kernels and parameters out of PTX text, and arguments packed to fit them."""

import ctypes
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusense.cuda import _ptx, _workload
from gpusense.cuda._ptx import Parameter


def parameters(declaration: str) -> tuple[Parameter, ...]:
    return _ptx.entries(f".version 6.0\n.visible .entry k({declaration}) {{ ret; }}")["k"]


def test_entries_of_the_demonstration():
    found = _ptx.entries(_workload.PTX)
    assert list(found) == ["saxpy", "matmul_naive", "spin"]
    assert [str(parameter) for parameter in found["saxpy"]] == [".u64 x", ".u64 y", ".f32 a", ".u32 n"]


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        ("", ()),
        (".param .u64 a", (Parameter("a", "u", 64),)),
        ("\n.param .u64 .ptr .global .align 4 a,\n.param .f32 b\n", (Parameter("a", "u", 64), Parameter("b", "f", 32))),
        (".param .align 8 .b8 s[16]", (Parameter("s", "b", 8, 16),)),
        (
            ".param .b64 k_param_0, .param .s16 k_param_1",
            (Parameter("k_param_0", "b", 64), Parameter("k_param_1", "s", 16)),
        ),
        (".param /* a, b */ .u32 n // c)\n", (Parameter("n", "u", 32),)),
    ],
)
def test_parameters(declaration, expected):
    assert parameters(declaration) == expected


def test_entry_without_a_list_and_in_comments():
    text = "/* .entry no() */ // .entry neither()\n.entry _Z1kv { ret; } .visible .entry $odd%name(.param .u8 x) {}"
    assert _ptx.entries(text) == {"_Z1kv": (), "$odd%name": (Parameter("x", "u", 8),)}


def test_parameter_not_understood_is_named():
    with pytest.raises(ValueError, match=r"cannot read the PTX parameter '\.param \.texref t'"):
        parameters(".param .texref t")


def test_sizes():
    assert Parameter("s", "b", 8, 12).nbytes == 12
    assert Parameter("s", "f", 64).nbytes == 8
    assert str(Parameter("s", "b", 8, 12)) == ".b8 s[12]"


RANGES = {("u", bits): (0, 2**bits - 1) for bits in (8, 16, 32, 64)} | {
    ("s", bits): (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)
}


@given(st.sampled_from(sorted(RANGES)), st.integers(-(2**66), 2**66))
def test_integers_go_in_whole_or_not_at_all(type_, value):
    kind, bits = type_
    low, high = RANGES[type_]
    parameter = Parameter("n", kind, bits)
    if low <= value <= high:
        (raw,) = _ptx.pack("k", [parameter], [value])
        assert int.from_bytes(raw, "little", signed=kind == "s") == value
        assert len(raw) == parameter.nbytes
    else:
        with pytest.raises(OverflowError, match=f"k: {value} is out of range for .{kind}{bits} n"):
            _ptx.pack("k", [parameter], [value])


@given(st.floats(width=32, allow_nan=False))
def test_floats(value):
    for bits, code in ((32, "<f"), (64, "<d")):
        (raw,) = _ptx.pack("k", [Parameter("x", "f", bits)], [value])
        assert struct.unpack(code, raw) == (value,)


@pytest.mark.parametrize(
    ("parameter", "argument", "expected"),
    [
        (Parameter("x", "f", 32), 2, struct.pack("<f", 2.0)),
        (Parameter("x", "f", 16), 0.5, struct.pack("<e", 0.5)),
        (Parameter("x", "b", 32), 0.5, struct.pack("<f", 0.5)),
        (Parameter("x", "b", 32), -1, b"\xff\xff\xff\xff"),
        (Parameter("x", "b", 32), 2**32 - 1, b"\xff\xff\xff\xff"),
        (Parameter("x", "u", 8), True, b"\1"),
        (Parameter("x", "u", 64), ctypes.c_uint64(5), struct.pack("<Q", 5)),
        (Parameter("x", "b", 8, 3), b"abc", b"abc"),
    ],
)
def test_packed(parameter, argument, expected):
    assert _ptx.pack("k", [parameter], [argument]) == [expected]


@pytest.mark.parametrize(
    ("parameter", "argument", "message"),
    [
        (Parameter("x", "u", 32), 1.0, "k: .u32 x takes no float"),
        (Parameter("x", "b", 8), 1.0, "k: .b8 x takes no float"),
        (Parameter("x", "u", 32), "1", "k: .u32 x takes no str"),
        (Parameter("x", "u", 32), None, "k: .u32 x takes no NoneType"),
        (Parameter("x", "u", 32), ctypes.c_uint64(5), "k: .u32 x takes 4 bytes, got 8"),
        (Parameter("x", "b", 8, 3), 7, r"k: .b8 x\[3\] takes no int"),
    ],
)
def test_argument_of_the_wrong_kind(parameter, argument, message):
    with pytest.raises(TypeError, match=message):
        _ptx.pack("k", [parameter], [argument])


def test_number_of_arguments():
    with pytest.raises(TypeError, match=r"k takes 1 arguments \(\.u32 n\), got 2"):
        _ptx.pack("k", [Parameter("n", "u", 32)], [1, 2])
    with pytest.raises(TypeError, match=r"k takes 0 arguments \(none\), got 1"):
        _ptx.pack("k", [], [1])
