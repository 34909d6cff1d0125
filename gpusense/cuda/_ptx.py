"""What a PTX text says about its kernels' parameters, and arguments packed accordingly. Pure."""

import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*(?:\(([^)]*)\))?")
_PARAMETER = re.compile(r"\.param\b[^,]*?\.([busf])(8|16|32|64)\b[^,]*?([\w$%]+)\s*(?:\[\s*(\d+)\s*\])?\s*$")
_INTEGERS = {8: "b", 16: "h", 32: "i", 64: "q"}
_FLOATS = {16: "e", 32: "f", 64: "d"}


class Parameter(NamedTuple):
    """One kernel parameter; ``kind`` is PTX's letter (b, u, s, f), ``bits`` an element's, ``length`` an array's."""

    name: str
    kind: str
    bits: int
    length: int | None = None

    @property
    def nbytes(self) -> int:
        return self.bits // 8 * (1 if self.length is None else self.length)

    def __str__(self) -> str:
        return f".{self.kind}{self.bits} {self.name}" + ("" if self.length is None else f"[{self.length}]")


def entries(ptx: str) -> dict[str, tuple[Parameter, ...]]:
    """The kernels (``.entry``) of a PTX text and their parameters, in order. ValueError for one not understood."""
    return {
        entry[1]: tuple(_parameter(part) for part in (entry[2] or "").split(",") if part.strip())
        for entry in _ENTRY.finditer(_COMMENT.sub(" ", ptx))
    }


def _parameter(text: str) -> Parameter:
    found = _PARAMETER.search(text)
    if found is None:
        raise ValueError(f"cannot read the PTX parameter {text.strip()!r}")
    kind, bits, name, length = found.groups()
    return Parameter(name, kind, int(bits), None if length is None else int(length))


def pack(kernel: str, parameters: Sequence[Parameter], arguments: Sequence[Any]) -> list[bytes]:
    """The bytes of each argument. TypeError for a wrong number or kind of them, OverflowError for a value out of range.

    An integer parameter takes an int, a floating-point one a float or int, an untyped one (``.b32``) either; any takes
    an object with the buffer protocol of exactly its size, such as a ctypes value or bytes.
    """
    if len(arguments) != len(parameters):
        wanted = ", ".join(map(str, parameters)) or "none"
        raise TypeError(f"{kernel} takes {len(parameters)} arguments ({wanted}), got {len(arguments)}")
    return [_packed(kernel, parameter, argument) for parameter, argument in zip(parameters, arguments, strict=True)]


def _packed(kernel: str, parameter: Parameter, argument: Any) -> bytes:
    if isinstance(argument, (int, float)) and parameter.length is None:
        code = _code(parameter, argument)
        if code is None:
            raise TypeError(f"{kernel}: {parameter} takes no {type(argument).__name__}")
        try:
            return struct.pack(f"<{code}", argument)
        except struct.error as error:
            raise OverflowError(f"{kernel}: {argument} is out of range for {parameter}") from error
    try:
        raw = bytes(memoryview(argument).cast("B"))
    except TypeError:
        raise TypeError(f"{kernel}: {parameter} takes no {type(argument).__name__}") from None
    if len(raw) != parameter.nbytes:
        raise TypeError(f"{kernel}: {parameter} takes {parameter.nbytes} bytes, got {len(raw)}")
    return raw


def _code(parameter: Parameter, argument: "int | float") -> str | None:
    """The struct code for a number, None where PTX's type and Python's do not go together."""
    if parameter.kind == "f":
        return _FLOATS.get(parameter.bits)
    if isinstance(argument, float):
        return _FLOATS.get(parameter.bits) if parameter.kind == "b" else None
    signed = parameter.kind == "s" or (parameter.kind == "b" and argument < 0)
    return _INTEGERS[parameter.bits] if signed else _INTEGERS[parameter.bits].upper()
