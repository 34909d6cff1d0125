"""Blocks for what the program or torch names itself: ``record_function``, NVTX ranges, compiled functions.

torch puts a ``record_function`` around each optimizer step, ``zero_grad`` and wait for a DataLoader, so these need no
hooks of their own, and end also where an exception leaves them.
"""

import re
import sys
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

from ... import get_tracer
from ..._records.records import LOADER, LOADER_BATCH, LOADER_WORKERS
from ..._tracing.block import Block
from ..._tracing.select import control
from .._hosts import Patches, close_block
from ._dynamo import wrap
from ._state import State

_OPTIMIZER = re.compile(r"Optimizer\.(?:step|zero_grad)#(.+)")
_SLOT = "_gpusense_block"


@lru_cache(maxsize=128)
def shown_name(name: str) -> str:
    """``AdamW.step`` for torch's ``Optimizer.step#AdamW.step``, ``DataLoader`` for its waits; others as they are."""
    if name.startswith(f"enumerate({LOADER})#"):
        return LOADER
    found = _OPTIMIZER.fullmatch(name)
    return found[1] if found else name


def _of_loader(iterator: Any) -> dict[str, Any] | None:
    """What a DataLoader's iterator knows; None of others."""
    known = {LOADER_WORKERS: "_num_workers", LOADER_BATCH: "_num_yielded"}
    found = {key: getattr(iterator, name, None) for key, name in known.items()}
    return found if all(type(value) is int for value in found.values()) else None


class Ranges:
    """``record_function``, NVTX and ``torch.compile`` of one instrumentation."""

    def __init__(self, state: State) -> None:
        self.state = state

    def install(self, patches: Patches) -> None:
        """What the program or torch names has blocks from now on."""
        torch = self.state.host.torch
        wrap(patches, torch.autograd.profiler.record_function, "__enter__", self._enter)
        wrap(patches, torch.autograd.profiler.record_function, "__exit__", self._exit)
        nvtx = getattr(torch.cuda, "nvtx", None)
        if nvtx is not None:
            wrap(patches, nvtx, "range_push", self._push)
            wrap(patches, nvtx, "range_pop", self._pop)
        wrap(patches, torch, "compile", self._compile)

    # --- record_function --------------------------------------------------------------------------------------------

    def _enter(self, original: Any) -> Callable[..., Any]:
        state, on, profiler = self.state, self.state.on, self.state.host.profiler

        def __enter__(range_: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(range_, *args, **kwargs)
            if on["ranges"]:
                try:
                    name, before = shown_name(str(range_.name)), None
                    # A range has no more than a name: whose wait this is, the function knows that entered it.
                    attributes = _of_loader(sys._getframe(1).f_locals.get("self")) if name == LOADER else None
                    if on["memory"]:
                        block, before = state.open_measured(name, attributes)
                    else:  # what that does, in fewer steps
                        block = (
                            None
                            if profiler._is_profiler_enabled
                            else (control.waiting or get_tracer()).open_scope(name, attributes)
                        )
                    if block is not None:
                        vars(range_)[_SLOT] = block, before
                except Exception:  # noqa: BLE001 - the program's range goes on
                    state.fail("ranges")
            return result

        return __enter__

    def _exit(self, original: Any) -> Callable[..., Any]:
        state = self.state

        def __exit__(range_: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                opened = vars(range_).pop(_SLOT, None)
                if opened is not None:
                    block, before = opened
                    error = args[1] if len(args) > 1 else None
                    if before is error is None and type(block) is Block:  # as state would
                        block.tracer.close_scope(block)
                    else:
                        state.close_measured(block, before, error)
            except Exception:  # noqa: BLE001
                state.fail("ranges")
            return original(range_, *args, **kwargs)

        return __exit__

    # --- NVTX -------------------------------------------------------------------------------------------------------

    def _push(self, original: Any) -> Callable[..., Any]:
        def range_push(msg: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(msg, *args, **kwargs)
            if self.state.on["ranges"]:
                try:
                    self.state.local.thread.nvtx.append(self.state.open(str(msg)))
                except Exception:  # noqa: BLE001
                    self.state.fail("ranges")
            return result

        return range_push

    def _pop(self, original: Any) -> Callable[..., Any]:
        def range_pop(*args: Any, **kwargs: Any) -> Any:
            stack = self.state.local.thread.nvtx
            if stack:
                try:
                    block = stack.pop()
                    if block is not None:
                        close_block(block)
                except Exception:  # noqa: BLE001
                    self.state.fail("ranges")
            return original(*args, **kwargs)

        return range_pop

    # --- torch.compile ----------------------------------------------------------------------------------------------

    def _compile(self, original: Any) -> Callable[..., Any]:
        """Compiled modules have their blocks as modules; compiled functions get one a call."""

        def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
            compiled = original(model, *args, **kwargs)
            module = self.state.host.torch.nn.Module
            if model is None or isinstance(compiled, module) or not callable(compiled) or not self.state.on["ranges"]:
                return compiled
            if isinstance(getattr(model, "__self__", None), module) and model.__name__ == "_call_impl":
                return compiled  # Module.compile(), whose calls have a block as the module's
            return self._region(compiled, getattr(model, "__qualname__", type(model).__name__))

        return compile

    def _region(self, compiled: Any, name: str) -> Callable[..., Any]:
        state, compiling = self.state, self.state.host.compiling
        attributes = {"torch.wrapper": "compile"}

        @wraps(compiled)
        def region(*args: Any, **kwargs: Any) -> Any:
            if compiling() or not state.on["ranges"]:
                return compiled(*args, **kwargs)
            block = self._open_region(name, attributes)
            try:
                return compiled(*args, **kwargs)
            finally:
                if block is not None:
                    close_block(block)

        return region

    def _open_region(self, name: str, attributes: dict[str, Any]) -> Any:
        try:
            return self.state.open(name, attributes)
        except Exception:  # noqa: BLE001
            self.state.fail("ranges")
            return None
