"""Blocks for the calls of modules.

``nn.Module.__call__`` is wrapped, instead of using torch's global hooks: those put every module on the slow path
(2 µs a call and more, for all modules), make ``torch.compile``'d modules warn at each call, and are not called when
Ctrl-C leaves a module. A wrapped call of a module without a block costs about 0.3 µs. Dynamo is told to look past it.
"""

import sys
import weakref
from collections.abc import Callable
from typing import Any

from ... import _active_tracer
from .._patches import Patches
from ._backward import Backward
from ._state import State, Thread

#: Modules around the user's own one: they and the name of their only child are left out of names.
WRAPPERS = frozenset({"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "OptimizedModule"})
#: Classes that torch mixes into a module's own one, which comes after them.
MIXED_IN = frozenset({"FSDPModule", "ReplicateModule"})
#: Modules that are never called: what they hold counts as their owner's.
CONTAINERS = frozenset({"ModuleList", "ModuleDict"})
#: What makes two functions do the same.
_OF_CODE = (
    "co_code", "co_names", "co_consts", "co_varnames", "co_freevars", "co_flags", "co_argcount", "co_kwonlyargcount",
)  # fmt: skip
_WARM_UP, _TRIAL = 2, 8  # calls that are not looked at, and calls after which a module may be found too short


class Place:
    """Where a module stands: its qualified name in its root, and what its calls took the host so far."""

    __slots__ = ("attributes", "calls", "host_ns", "inner", "level", "name")

    def __init__(self, name: str, attributes: dict[str, Any], level: int) -> None:
        self.name = name
        self.attributes = attributes
        self.level = level
        self.calls = -_WARM_UP
        self.host_ns = 0
        self.inner = 0  # id of the module that a wrapper calls


class Call:
    """One call of a module with a block; its backward pass refers to it."""

    __slots__ = ("before", "block", "here", "parent", "place", "thread")

    def __init__(self, place: Place, parent: "Call | None", block: Any, before: int | None, here: Thread) -> None:
        self.place = place
        self.parent = parent
        self.block = block
        self.here = here
        self.thread = block.thread
        self.before = before


class _Unknown:
    """For modules that were never seen."""


_UNKNOWN: Any = _Unknown()


class Modules:
    """The modules of this process: ``None`` for those without a block of their own."""

    def __init__(self, state: State, backward: Backward) -> None:
        self.state = state
        self.backward = backward
        self.too_short: list[str] = []
        self.roots = 0
        self._places: dict[int, Place | None] = {}
        self._watch: dict[int, weakref.ref[Any]] = {}

    def install(self, patches: Patches) -> None:
        torch = self.state.host.torch
        wrapper = patches.wrap(torch.nn.Module, "__call__", self._wrap)
        skip = getattr(getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None), "skip_code", None)
        if skip is not None:
            skip(wrapper.__code__)
        # Dynamo goes straight to ``forward`` where a module's __call__ is the one that it saw when it was imported.
        dynamo = sys.modules.get("torch._dynamo.variables.nn_module")
        if dynamo is not None and getattr(dynamo, "unpatched_nn_module_call", None) is wrapper.__wrapped__:
            patches.put(dynamo, "unpatched_nn_module_call", wrapper)

    def forget_wrapper(self, wrapper: Any, original: Any) -> None:
        """For a dynamo that was imported in between."""
        dynamo = sys.modules.get("torch._dynamo.variables.nn_module")
        if dynamo is not None and getattr(dynamo, "unpatched_nn_module_call", None) is wrapper:
            dynamo.unpatched_nn_module_call = original  # type: ignore[attr-defined]

    def _wrap(self, original: Any) -> Callable[..., Any]:
        get, unknown, call = self._places.get, _UNKNOWN, self._caller(original)

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            place = get(id(self), unknown)
            if place is None:
                return original(self, *args, **kwargs)
            return call(place, self, args, kwargs)

        def stands_in(self: Any, *args: Any, **kwargs: Any) -> Any:
            # Does what torch's own does, instead of calling it: most modules have no block, and a call costs each of
            # them more than the question.
            place = get(id(self), unknown)
            if place is None:
                if self._compiled_call_impl is not None:
                    return self._compiled_call_impl(*args, **kwargs)
                return self._call_impl(*args, **kwargs)
            return call(place, self, args, kwargs)

        return stands_in if _is_known(original) else __call__

    def _caller(self, original: Any) -> Callable[..., Any]:
        """What calls a module in its block. A closure reaches what it needs fastest."""
        state, end, watch = self.state, self._end, self.backward.watch
        on, local, profiler = state.on, state.local, state.host.profiler

        def call(place: Any, module: Any, args: Any, kwargs: Any) -> Any:
            begun = None
            if on["modules"]:
                try:
                    here = local.thread
                    outer = here.call
                    # The usual case: a module that is known, inside another one.
                    if place is _UNKNOWN or place.level == 1 or outer is None or outer.place.inner == id(module):
                        begun = self._begin(place, module, here, outer)
                    elif not profiler._is_profiler_enabled:
                        block = _active_tracer().open_scope(place.name, place.attributes)
                        begun = here.call = Call(place, outer, block, None, here)
                except Exception:  # noqa: BLE001 - the program's forward pass goes on
                    state.fail("modules")
            if begun is None:
                return original(module, *args, **kwargs)
            try:
                output = original(module, *args, **kwargs)
            except BaseException as error:
                end(begun, module, error)
                raise
            end(begun, module, None)
            watch(begun, args, kwargs, output)
            return output

        return call

    def _begin(self, place: Any, module: Any, here: Thread, outer: "Call | None") -> Call | None:
        state = self.state
        if place is _UNKNOWN:
            place = self._discover(module)
            if place is None:
                return None
        if outer is not None and outer.place.inner == id(module):
            return None
        if place.level == 1:
            block, before = state.open_measured(place.name, place.attributes)
        else:
            block, before = state.open(place.name, place.attributes), None
        if block is None:
            return None
        call = here.call = Call(place, outer, block, before, here)
        return call

    def _end(self, call: Call, module: Any, error: BaseException | None) -> None:
        state, block, place = self.state, call.block, call.place
        try:
            call.here.call = call.parent
            if error is not None:
                call.here.produced = None
            if place.level == 1:
                state.close_measured(block, call.before, error)
                return
            if error is None:
                block.__exit__(None, None, None)
            else:
                state.close(block, error)
            if place.calls < _TRIAL:
                place.calls += 1
                if place.calls > 0:
                    place.host_ns += block.end_ns - block.start_ns
                    if place.calls == _TRIAL:
                        self._judge(place, module)
        except Exception:  # noqa: BLE001
            state.fail("modules")

    def _judge(self, place: Place, module: Any) -> None:
        """A module that is over sooner than its block is worth gets none from now on."""
        if place.host_ns < place.calls * self.state.options.min_us * 1e3:
            self._places[id(module)] = None
            self.too_short.append(place.name)

    # --- names ------------------------------------------------------------------------------------------------------

    def _discover(self, module: Any) -> Place | None:
        """A module outside every known one is a root; one made during a forward pass belongs to that."""
        if getattr(module, "_is_replica", False):  # of DataParallel: made anew for every pass
            return None
        if self.state.local.thread.call is not None:
            self._know(module, None)
            return None
        return self.add_root(module)

    def add_root(self, module: Any) -> Place | None:
        """Names ``module`` and what it is made of, down to the depth that was asked for."""
        self.roots += 1
        inner = _inner(module)
        kind, mixed_in = _kind(inner)
        attributes: dict[str, Any] = {"torch.module": kind}
        compiled = "compile" if getattr(module, "_compiled_call_impl", None) is not None else ""
        wrapper = type(module).__name__ if inner is not module else compiled or mixed_in
        if wrapper:
            attributes["torch.wrapper"] = wrapper
        place = Place(kind, attributes, 1)
        self._know(module, place)
        if inner is not module:
            place.inner = id(inner)
            for wrapped in _between(module, inner):
                if id(wrapped) not in self._places:
                    self._know(wrapped, None)
        self._walk(inner, "", 1, {id(module)})
        return place

    def _walk(self, module: Any, prefix: str, level: int, seen: set[int]) -> None:
        for name, child in list(module._modules.items()):
            if child is None or id(child) in seen:
                continue
            seen.add(id(child))
            kind, _ = _kind(child)
            qualified = f"{prefix}{name}"
            inside = level if kind in CONTAINERS else level + 1
            if self._places.get(id(child)) is None:
                shown = kind not in CONTAINERS and inside <= self.state.options.depth
                self._know(child, Place(qualified, {"torch.module": kind}, inside) if shown else None)
            self._walk(child, f"{qualified}.", inside, seen)

    def _know(self, module: Any, place: Place | None) -> None:
        key = id(module)

        def gone(_: Any) -> None:  # before the number is given to another module
            self._places.pop(key, None)
            self._watch.pop(key, None)

        self._watch[key] = weakref.ref(module, gone)
        self._places[key] = place


def _as_torch_has_it(self: Any, *args: Any, **kwargs: Any) -> Any:
    if self._compiled_call_impl is not None:
        return self._compiled_call_impl(*args, **kwargs)
    else:  # noqa: RET505 - to be compiled to the same
        return self._call_impl(*args, **kwargs)


def _is_known(function: Any) -> bool:
    """Whether ``function`` compiles to what ``nn.Module.__call__`` has been since torch 2.1."""
    code = getattr(function, "__code__", None)
    known = _as_torch_has_it.__code__
    return code is not None and all(getattr(code, name) == getattr(known, name) for name in _OF_CODE)


def _inner(module: Any) -> Any:
    """The user's own module inside wrappers."""
    while type(module).__name__ in WRAPPERS:
        child = module._modules.get("module") or module._modules.get("_orig_mod")
        if child is None:
            child = module._modules.get("_fsdp_wrapped_module")
        if child is None:
            break
        module = child
    return module


def _kind(module: Any) -> tuple[str, str]:
    """The name of the module's own class, and of what stands before it: FSDP's part of a class, a compiled script."""
    own = type(module)
    if own.__name__ == "RecursiveScriptModule":
        return str(module.original_name), own.__name__
    first, *others = own.__bases__
    if first.__name__ in MIXED_IN and others:
        return others[0].__name__, first.__name__
    return own.__name__, ""


def _between(outer: Any, inner: Any) -> list[Any]:
    """The modules from ``outer`` (excluded) to ``inner`` (included) along wrappers."""
    found = []
    while outer is not inner:
        outer = next(child for child in outer._modules.values() if child is not None)
        found.append(outer)
    return found
