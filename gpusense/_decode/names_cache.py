"""Kernel names by address: read again now and then, because an address may be reused after a module is unloaded."""

from collections.abc import Callable

Described = tuple[str, str | None, str | None]

MAX_NAMES = 20_000
MAX_SETS = 64
#: A module that is unloaded, and another whose names land on the same addresses, within this time would be misnamed.
RECHECK_S = 1.0


class NameCache:
    """Address → (short name, demangled, as the driver gave it); each text is worked out once."""

    __slots__ = ("_by_pointer", "_by_text", "_many", "_provisional", "_recheck_at")

    def __init__(self) -> None:
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
            if self._provisional:
                self._work_out_anew()

    def resolve(self, pointer: int, read: Callable[[int], bytes]) -> Described:
        found = self._by_pointer.get(pointer)
        if found is None:
            text = read(pointer) if pointer else b""
            found = self._by_pointer[pointer] = self._by_text.get(text) or self.describe(text)
        return found

    def many(
        self, pointers: frozenset[int], read: Callable[[int], bytes]
    ) -> tuple[dict[int, Described], dict[int, str]]:
        """As :meth:`resolve` for each, and the short names alone. Where these were asked for a moment ago, as in a
        program that does the same again and again, nothing is looked up; what is given is not to be changed."""
        found = self._many.get(pointers)
        if found is None:
            if len(self._many) >= MAX_SETS:
                self._many.clear()
            known = {pointer: self.resolve(pointer, read) for pointer in pointers}
            found = self._many[pointers] = known, {pointer: found[0] for pointer, found in known.items()}
        return found

    def describe(self, text: bytes) -> Described:
        found = self._by_text.get(text)
        if found is None:
            if len(self._by_text) >= MAX_NAMES:
                self._by_text.clear()
            found, final = self._work_out(text)
            self._by_text[text] = found
            self._provisional = self._provisional or not final
        return found

    def _work_out_anew(self) -> None:
        from .._capi.demangle import is_ready

        if is_ready():
            self._by_text.clear()
            self._provisional = False

    @staticmethod
    def _work_out(text: bytes) -> tuple[Described, bool]:
        """And whether that is for good: a C++ runtime may come into the process later."""
        from .._capi.demangle import demangle, is_ready
        from .._runtime.text import decoded
        from .names import base_name

        raw = decoded(text)
        full = demangle(raw)
        described = base_name(full or raw) or "?", full, raw or None
        return described, full is not None or not raw.startswith("_Z") or is_ready()


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
