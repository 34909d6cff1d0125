"""Kernel names by address: each text is demangled and labelled once (``labels``). Pure."""

from collections.abc import Callable, Mapping
from typing import Protocol

from .._runtime.text import decoded
from .labels import label

#: Label; full name, demangled where that could be done, or None where it says no more; name as the driver gave it or
#: None.
Described = tuple[str, str | None, str | None]
#: The first two of them: kernels are summed up by both, since two names may have one label.
Named = tuple[str, str | None]
#: What is at an address.
NameOf = Callable[[int], Described]
#: ``glance(texts)`` → what says whether each is still at its address. It may miss what only reading all finds.
Glance = Callable[[Mapping[int, bytes]], Callable[[], bool]]

MAX_NAMES = 20_000
MAX_SETS = 64
#: After this time every name is read again: where nothing can glance at them, a module that is unloaded, and another
#: whose names land on the same addresses, within this time would be misnamed.
RECHECK_S = 1.0


def no_glance(_: Mapping[int, bytes]) -> Callable[[], bool]:
    """Where texts do not change while their addresses are believed."""
    return _true


def _true() -> bool:
    return True


class Demangler(Protocol):
    """What makes mangled C++ names readable, where it can: ``_capi.demangle``."""

    def demangle(self, name: str) -> str | None: ...

    def is_ready(self) -> bool:
        """Whether a name that has no readable form now never will."""
        ...


class Texts:
    """What stands at addresses. A program's modules come and go, and each buffer has names that were good as its
    records were made: whether they still are is asked for all names of a buffer at once."""

    __slots__ = ("_by_pointer", "_glances")

    def __init__(self) -> None:
        self._by_pointer: dict[int, bytes] = {}
        self._glances: dict[frozenset[int], Callable[[], bool]] = {}

    def forget(self) -> None:
        self._by_pointer.clear()
        self._glances.clear()

    def fresh(self, pointers: frozenset[int], read: Callable[[int], bytes], glance: Glance) -> dict[int, bytes]:
        """Of ``pointers`` those with a text that is new since the last time, or may be."""
        same, texts = self._glances.get(pointers), self._by_pointer
        if same is not None and same():
            return {}
        known = pointers & texts.keys()
        if same is not None or not glance({pointer: texts[pointer] for pointer in known})():
            known = frozenset()
        found = {pointer: read(pointer) if pointer else b"" for pointer in pointers - known}
        texts.update(found)
        if len(self._glances) >= MAX_SETS:
            self._glances.clear()
        self._glances[pointers] = glance({pointer: texts[pointer] for pointer in pointers})
        return found


class NameCache:
    """Kernel names by address: each text is worked out once, and an address is read again where its text has changed,
    and now and then anyhow, because it may be reused after a module is unloaded."""

    __slots__ = ("_by_pointer", "_by_text", "_demangler", "_many", "_provisional", "_recheck_at", "_texts")

    def __init__(self, demangler: Demangler) -> None:
        self._demangler = demangler
        self._by_pointer: dict[int, Described] = {}
        self._by_text: dict[bytes, Described] = {}
        self._many: dict[frozenset[int], tuple[dict[int, Described], dict[int, Named]]] = {}
        self._texts = Texts()
        self._recheck_at = 0.0
        self._provisional = False  # some text was worked out before there was a C++ runtime

    def new_buffer(self, now_s: float = 0.0) -> None:
        """``now_s``: monotonic seconds; 0 has every name read again."""
        if now_s == 0.0 or now_s > self._recheck_at:
            self._by_pointer.clear()
            self._many.clear()
            self._texts.forget()
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
        self, pointers: frozenset[int], read: Callable[[int], bytes], glance: Glance = no_glance
    ) -> tuple[dict[int, Described], dict[int, Named]]:
        """As :meth:`resolve` for each, and labels and full names alone. Where these were asked for a moment ago, as in
        a program that does the same again and again, nothing is looked up; the answer is not to be changed."""
        fresh = self._texts.fresh(pointers, read, glance)
        found = self._many.get(pointers)
        if found is None or fresh:
            for pointer, raw in fresh.items():
                self._by_pointer[pointer] = self._by_text.get(raw) or self.describe(raw)
            if len(self._many) >= MAX_SETS:
                self._many.clear()
            known = {pointer: self.resolve(pointer, read) for pointer in pointers}
            found = self._many[pointers] = known, {pointer: found[:2] for pointer, found in known.items()}
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
        demangled = self._demangler.demangle(name)
        full = demangled or name
        short = label(full) if full else "?"
        described = short, full if full not in ("", short) else None, name or None
        return described, demangled is not None or not name.startswith("_Z") or self._demangler.is_ready()


class Names:
    """What a decoder asks for names: ``cache``, and what reads the text at an address where the cache has none, or
    another."""

    __slots__ = ("cache", "glance", "read")

    def __init__(self, cache: NameCache, read: Callable[[int], bytes], glance: Glance = no_glance) -> None:
        self.cache = cache
        self.read = read
        self.glance = glance

    def __call__(self, pointer: int) -> Described:
        return self.cache.resolve(pointer, self.read)

    def many(self, pointers: frozenset[int]) -> tuple[dict[int, Described], dict[int, Named]]:
        return self.cache.many(pointers, self.read, self.glance)
