"""Blocks for the ranges of a host: context managers whose enter and exit are wrapped, by one class for all hosts."""

from collections.abc import Callable
from typing import Any

from .._runtime import log
from ._hosts import Patches, close_block, open_block

_SLOT = "_gpusense_block"


class RangeBlocks:
    """One instrumentation of a host's context manager class; switches itself off after its first failure."""

    def __init__(self, host: str, name_of: Callable[[Any], str], facts: Callable[[], dict[str, Any]] | None) -> None:
        self._host = host
        self._name_of = name_of
        self._facts = facts
        self.patches = Patches()
        self.on = True

    def install(self, owner: Any) -> None:
        """``owner``: the context manager class. Its objects open blocks from now on."""
        self.patches.wrap(owner, "__enter__", self._enter)
        self.patches.wrap(owner, "__exit__", self._exit)

    def remove(self) -> None:
        """Puts the class back; ranges that are open end their blocks all the same."""
        self.on = False
        self.patches.undo()

    def _enter(self, original: Any) -> Callable[..., Any]:
        def __enter__(range_: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(range_, *args, **kwargs)
            if self.on:
                try:
                    vars(range_).setdefault(_SLOT, []).append(open_block(self._name_of(range_)))
                except Exception:  # noqa: BLE001 - the program's range goes on
                    self._fail()
            return result

        return __enter__

    def _exit(self, original: Any) -> Callable[..., Any]:
        def __exit__(range_: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                opened = vars(range_).get(_SLOT)
                if opened:
                    self._close(opened.pop(), args[1] if len(args) > 1 else None)
            except Exception:  # noqa: BLE001
                self._fail()
            return original(range_, *args, **kwargs)

        return __exit__

    def _close(self, block: Any, error: BaseException | None) -> None:
        try:
            if self._facts is not None and self.on:
                block.attributes = {**(block.attributes or {}), **self._facts()}
        finally:
            close_block(block, error)

    def _fail(self) -> None:
        self.on = False
        log.exception(f"{self._host} ranges", f"the {self._host} integration failed once and is off")
