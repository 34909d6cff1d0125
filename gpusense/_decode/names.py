"""Kernel names for people: the short base name of what a driver or compiler calls a kernel, and names by address. Pure.

Works on demangled C++, on Itanium-mangled C++ where no demangler is at hand, and on the plain names that Triton, JAX
and hand-written PTX give. Each function reads its text once from left to right, so long names cost in proportion.
"""

import re
from collections.abc import Callable
from typing import Protocol

from .._runtime.text import decoded

#: Short name, demangled name or None, name as the driver gave it or None.
Described = tuple[str, str | None, str | None]
#: What is at an address.
NameOf = Callable[[int], Described]

MAX_NAMES = 20_000
MAX_SETS = 64
#: A module that is unloaded, and another whose names land on the same addresses, within this time would be misnamed.
RECHECK_S = 1.0

UNNAMED = "(unnamed)"
#: Kernels of CUTLASS that are a frame for their template argument, which is what runs; cuBLAS names its kernels so too.
_FRAMES = ("Kernel", "Kernel2", "device_kernel")
_FRAME = re.compile(rf"\bcutlass::(?:{'|'.join(_FRAMES)})(?=<)")
_MANGLED_FRAME = re.compile(rf"7cutlass(?:{'|'.join(f'{len(name)}{name}' for name in _FRAMES)})I")
_SKIPPED = re.compile(r"St|L|S[0-9A-Z]*_")  # std, internal linkage, what stood before
_OPEN = {"(": ")", "<": ">", "{": "}", "[": "]"}
# Longest first, so that ``<<`` is not taken for ``<``; the space is that of ``operator< <int>``.
_SIGNS = r"<=>|<<=|>>=|->\*|\(\)|\[\]|<<|>>|->|\+\+|--|&&|\|\||[<>=!+\-*/%&|^]=|[<>=!+\-*/%&|^~,]"
_OPERATOR = re.compile(rf"operator(?:({_SIGNS})(?: (?=<))?|(?![A-Za-z0-9_])[^(<]*)")


def base_name(name: "bytes | str") -> str:
    """The last component without namespaces, template arguments, parameters and return type; never empty.

    ``void at::native::reduce_kernel<512, 1>(R)`` → ``reduce_kernel``; ``triton_poi_fused_add_0`` stays as it is; what
    only frames another is passed by: ``void cutlass::Kernel2<cutlass_80_simt_sgemm>(P)`` → ``cutlass_80_simt_sgemm``.
    """
    name = decoded(name).strip()
    if name.startswith("_Z"):
        found = _of_mangled(name)
        frame = _MANGLED_FRAME.search(name) if found in _FRAMES else None
        return (_of_mangled("_Z" + name[frame.end() :]) if frame else "") or found or name
    found = _of_demangled(name)
    frame = _FRAME.search(name) if found in _FRAMES else None
    return (_of_demangled(_first(name, frame.end())) if frame else "") or found or name or UNNAMED


def _of_demangled(name: str) -> str:
    if not any(sign in name for sign in ("(", "<", "::", "{", "[")):
        return name  # a plain name, spaces and all
    start = at = 0
    parts: list[str] = []  # of the component that began at ``start``
    while at < len(name):
        character = name[at]
        if name.startswith("::", at):
            start = at = at + 2
            parts = []
        elif character == " ":  # what came before was a return type
            start = at = at + 1
            parts = []
        elif at == start and (operator := _OPERATOR.match(name, at)):
            parts.append(operator[0].rstrip() if operator[1] else operator[0])
            at = operator.end()
        elif character in _OPEN:
            end = _closing(name, at)
            group = name[at:end]
            if character == "(" and parts and not name.startswith("::", end):
                break  # the parameter list: all that follows says how to call it
            if not parts and character in "({":
                parts.append(group if group == "(anonymous namespace)" else _lambda_name(group))
            at = end
        else:
            parts.append(character)
            at += 1
    return "".join(parts)


def _first(name: str, at: int) -> str:
    """The first of the arguments in the angle brackets that open at ``at``."""
    first = at = at + 1
    while at < len(name) and name[at] not in ",>":
        at = _closing(name, at) if name[at] in _OPEN else at + 1
    return name[first:at].strip()


def _closing(name: str, at: int) -> int:
    """Index after the bracket that closes the one at ``at``; the end of the name where none does.

    Round brackets may hold comparisons: there a ``>`` closes nothing, and what a ``<`` opened ends with them.
    """
    expected = [_OPEN[name[at]]]
    while expected and at + 1 < len(name):
        at += 1
        character = name[at]
        if character == ">":
            if expected[-1] == ">" and name[at - 1] != "-":
                expected.pop()
        elif character in _OPEN:
            expected.append(_OPEN[character])
        elif character in ")}]":
            while expected and expected[-1] == ">":
                expected.pop()
            if expected and expected[-1] == character:
                expected.pop()
    return at + 1


def _lambda_name(group: str) -> str:
    """``{lambda(float)#2}`` → ``{lambda#2}``; other groups, such as ``'unnamed'``, as they are."""
    if not group.startswith("{lambda"):
        return group
    mark = group.rfind("#")
    return "{lambda" + (group[mark:] if mark > 0 else "}")


def _of_mangled(name: str) -> str:
    """The last source name before any template arguments: a kernel's own arguments come last in its encoding."""
    at, found = 2, ""
    if name.startswith("L", at):  # internal linkage
        at += 1
    nested = name.startswith("N", at)
    if nested:
        at += 1
        while at < len(name) and name[at] in "rVKRO":
            at += 1
    while at < len(name):
        if skipped := _SKIPPED.match(name, at):
            at = skipped.end()
        elif name[at] == "B" and found:  # an ABI tag, not a component
            at, _ = _source_name(name, at + 1)
        elif "0" <= name[at] <= "9" and (nested or not found):  # else the type of a parameter
            at, found = _source_name(name, at)
        else:
            break
    return found


def _source_name(name: str, at: int) -> tuple[int, str]:
    """(index after it, the identifier) of a length and as many characters."""
    digits = at
    while digits < len(name) and "0" <= name[digits] <= "9" and digits - at < 6:
        digits += 1
    end = digits + int(name[at:digits] or 0)
    return end, name[digits:end]


class Demangler(Protocol):
    """What makes mangled C++ names readable, where it can: ``_capi.demangle``."""

    def demangle(self, name: str) -> str | None: ...

    def is_ready(self) -> bool:
        """Whether a name that has no readable form now never will."""
        ...


class NameCache:
    """Kernel names by address: each text is worked out once, and an address is read again now and then, because it may
    be reused after a module is unloaded."""

    __slots__ = ("_by_pointer", "_by_text", "_demangler", "_many", "_provisional", "_recheck_at")

    def __init__(self, demangler: Demangler) -> None:
        self._demangler = demangler
        self._by_pointer: dict[int, Described] = {}
        self._by_text: dict[bytes, Described] = {}
        self._many: dict[frozenset[int], tuple[dict[int, Described], dict[int, str]]] = {}
        self._recheck_at = 0.0
        self._provisional = False  # some text was worked out before there was a C++ runtime

    def new_buffer(self, now_s: float = 0.0) -> None:
        """``now_s``: monotonic seconds; 0 has every name read again."""
        if now_s == 0.0 or now_s > self._recheck_at:
            self._by_pointer.clear()
            self._many.clear()
            self._recheck_at = now_s + RECHECK_S
            if self._provisional and self._demangler.is_ready():
                self._by_text.clear()
                self._provisional = False

    def resolve(self, pointer: int, read: Callable[[int], bytes]) -> Described:
        found = self._by_pointer.get(pointer)
        if found is None:
            raw = read(pointer) if pointer else b""
            found = self._by_pointer[pointer] = self._by_text.get(raw) or self.describe(raw)
        return found

    def many(
        self, pointers: frozenset[int], read: Callable[[int], bytes]
    ) -> tuple[dict[int, Described], dict[int, str]]:
        """As :meth:`resolve` for each, and the short names alone. Where these were asked for a moment ago, as in a
        program that does the same again and again, nothing is looked up; the answer is not to be changed."""
        found = self._many.get(pointers)
        if found is None:
            if len(self._many) >= MAX_SETS:
                self._many.clear()
            known = {pointer: self.resolve(pointer, read) for pointer in pointers}
            found = self._many[pointers] = known, {pointer: found[0] for pointer, found in known.items()}
        return found

    def describe(self, raw: bytes) -> Described:
        found = self._by_text.get(raw)
        if found is None:
            if len(self._by_text) >= MAX_NAMES:
                self._by_text.clear()
            found, final = self._work_out(raw)
            self._by_text[raw] = found
            self._provisional = self._provisional or not final
        return found

    def _work_out(self, raw: bytes) -> tuple[Described, bool]:
        """And whether that is for good: a C++ runtime may come into the process later."""
        name = decoded(raw)
        full = self._demangler.demangle(name)
        described = base_name(full or name) or "?", full, name or None
        return described, full is not None or not name.startswith("_Z") or self._demangler.is_ready()


class Names:
    """What a decoder asks for names: ``cache``, and what reads the text at an address where the cache has none."""

    __slots__ = ("cache", "read")

    def __init__(self, cache: NameCache, read: Callable[[int], bytes]) -> None:
        self.cache = cache
        self.read = read

    def __call__(self, pointer: int) -> Described:
        return self.cache.resolve(pointer, self.read)

    def many(self, pointers: frozenset[int]) -> tuple[dict[int, Described], dict[int, str]]:
        return self.cache.many(pointers, self.read)
