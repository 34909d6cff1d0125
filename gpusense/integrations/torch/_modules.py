"""Blocks for the calls of modules.

``nn.Module.__call__`` is wrapped, instead of using torch's global hooks: those put every module on the slow path
(2 µs a call and more, for all modules), make ``torch.compile``'d modules warn at each call, and are not called when
Ctrl-C leaves a module. A wrapped call of a module without a block costs about 0.3 µs. The wrapper takes the place of
torch's ``_wrapped_call_impl``, with nothing between it and ``_call_impl``: modules nest as deeply as without it.
"""

import weakref
from collections.abc import Callable
from time import time_ns
from typing import Any

from ..._attribution.boundaries import FRAME_ENDED, FRAME_OPENED, Frame
from ..._attribution.open_blocks import LAST_ID, block_ids, innermost, running
from ..._runtime import threads
from .._hosts import Patches
from ._dynamo import Dynamo, wrap
from ._nodes import Hook
from ._state import State, Thread, around, frame_of

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
_get_ident = threads.thread_id()
_WARM_UP, _TRIAL = 2, 8  # calls that are not looked at, and calls after which a module may be found too short


class Place:
    """Where a module stands: its qualified name in its root, and what its calls took the host so far."""

    __slots__ = ("attributes", "calls", "hooks", "host_ns", "inner", "level", "made", "name", "steady")

    def __init__(self, name: str, attributes: dict[str, Any], level: int) -> None:
        self.name = name
        self.attributes = attributes
        self.level = level
        self.calls = -_WARM_UP
        self.host_ns = 0
        self.inner = 0  # id of the module that a wrapper calls
        self.steady = False  # below the model, and judged to be worth a block
        self.hooks: list[Hook] = []  # for nodes, that no node has now
        self.made = 0  # of them


class _Unknown:
    """For modules that were never seen."""

    steady = False


_UNKNOWN: Any = _Unknown()


class Modules:
    """The modules of this process: ``None`` for those without a block of their own. After each call that has one,
    ``watch(frame, args, kwargs, output)`` runs."""

    def __init__(self, state: State, watch: Callable[..., None]) -> None:
        self.state = state
        self.watch = watch
        self.too_short: list[str] = []
        self.roots = 0
        self._dynamo = Dynamo()
        self._places: dict[int, Place | None] = {}
        self._watch: dict[int, weakref.ref[Any]] = {}

    def install(self, patches: Patches) -> None:
        """Calls of modules have blocks from now on, and dynamo looks past the wrapper."""
        self._dynamo.install(patches, wrap(patches, self.state.host.torch.nn.Module, "__call__", self._wrap))

    def uninstall(self, patches: Patches) -> None:
        """What ``patches`` does not know of."""
        self._dynamo.uninstall(patches)

    def _wrap(self, original: Any) -> Callable[..., Any]:  # noqa: C901
        """What calls a module, in its block where it has one. A closure reaches what it needs fastest."""
        get, unknown, known = self._places.get, _UNKNOWN, _is_known(original)
        begin, end, left, watch, fail = self._begin, self._end, self._left, self.watch, self.state.fail
        get_ident, get_innermost, new, ids, find = _get_ident, innermost.get, Frame.__new__, block_ids, running.get

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: C901 - see the head of open_blocks
            place = get(id(self), unknown)
            if place is None:
                # What torch's own does, instead of calling it: most modules have no block, and a call costs each of
                # them more than the question.
                if not known:
                    return original(self, *args, **kwargs)
                if self._compiled_call_impl is not None:
                    return self._compiled_call_impl(*args, **kwargs)
                return self._call_impl(*args, **kwargs)
            run: Any = find(get_ident())
            frame: Any = None
            opened = False
            try:
                # The usual case: a module that is known, inside another one. Its block is a frame.
                if run is not None and run.calls and place.steady and get_innermost() is run.base:
                    try:
                        frame = new(Frame)
                        frame.number, frame.place, frame.block = next(ids), place, None
                        frame.run, frame.outer = run, run.frame
                        frame.start_ns = time_ns()
                        corr = frame.corr = run.newest()
                        if corr <= LAST_ID:
                            opened = True
                            run.append((FRAME_OPENED, frame))
                            run.frame = frame
                        else:
                            run.calls = False
                    except Exception:  # noqa: BLE001 - the program's forward pass goes on
                        fail("modules")
                if not opened:
                    frame = begin(place, self)
                if not known:
                    output = original(self, *args, **kwargs)
                elif self._compiled_call_impl is None:  # as above
                    output = self._call_impl(*args, **kwargs)
                else:
                    output = self._compiled_call_impl(*args, **kwargs)
            except BaseException as error:
                if opened:
                    left(frame, error)
                elif frame is not None:
                    end(frame, self, error)
                raise
            if frame is None:
                return output
            if not opened:
                end(frame, self, None)
            else:
                try:
                    if frame.block is None and run.lean and (corr := run.newest()) <= LAST_ID:
                        run.append((FRAME_ENDED, frame, time_ns(), corr))
                        run.frame = frame.outer
                    else:
                        left(frame, None)
                except Exception:  # noqa: BLE001
                    run.calls = False
                    fail("modules")
            watch(frame, args, kwargs, output)
            return output

        return __call__

    def _left(self, frame: Frame, error: BaseException | None) -> None:
        """Ends the call of ``frame`` where it became a block, or has to."""
        try:
            run: Any = frame.run
            block = run.close(frame) if error is None else run.block_of(frame)
            if block is not None:
                self.state.close(block, error)
            run.frame = frame.outer
            if error is not None:
                run.produced = None
        except Exception:  # noqa: BLE001
            self.state.fail("modules")

    def _begin(self, place: Any, module: Any) -> Frame | None:
        """The block of a call that is not the usual case; None where there is none."""
        if not self.state.on["modules"]:
            return None
        try:
            return self._open(place, module, self.state.local.thread)
        except Exception:  # noqa: BLE001 - the program's forward pass goes on
            self.state.fail("modules")
            return None

    def _open(self, place: Any, module: Any, here: Thread) -> Frame | None:
        state, outer = self.state, around(here.frame)
        if place is _UNKNOWN:
            place = self._discover(module)
            if place is None:
                return None
        if outer is not None and outer.place.inner == id(module):
            return None
        inside, before = here.frame, None
        if place.level == 1:
            block, before = state.open_measured(place.name, place.attributes)
        else:
            block = state.open(place.name, place.attributes)
        if block is None:
            return None
        frame = frame_of(block, place, here, inside)
        frame.before = before
        if inside is None:
            here.begin(block, frame, calls=True)
        here.frame = frame
        return frame

    def _end(self, call: Frame, module: Any, error: BaseException | None) -> None:
        state, block, place = self.state, call.block, call.place
        here: Any = call.run
        try:
            if error is not None:
                here.produced = None
            if place.level == 1:
                state.close_measured(block, call.before, error)
            else:
                state.close(block, error)
            here.frame = call.outer
            if call.outer is None:
                here.end()
            if place.level > 1 and error is None and not place.steady:
                place.calls += 1
                if place.calls > 0:
                    place.host_ns += block.end_ns - block.start_ns
                    if place.calls == _TRIAL:
                        self._judge(place, module)
        except Exception:  # noqa: BLE001
            state.fail("modules")

    def _judge(self, place: Place, module: Any) -> None:
        """A module that is over sooner than its block is worth gets none from now on."""
        place.steady = True
        if place.host_ns < place.calls * self.state.options.min_us * 1e3:
            self._places[id(module)] = None
            self.too_short.append(place.name)

    # --- names ------------------------------------------------------------------------------------------------------

    def _discover(self, module: Any) -> Place | None:
        """A module outside every known one is a root; one made during a forward pass belongs to that."""
        if getattr(module, "_is_replica", False):  # of DataParallel: made anew for every pass
            return None
        if around(self.state.local.thread.frame) is not None:
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
                self._know(child, self._place(qualified, kind, inside) if shown else None)
            self._walk(child, f"{qualified}.", inside, seen)

    def _place(self, name: str, kind: str, level: int) -> Place:
        place = Place(name, {"torch.module": kind}, level)
        place.steady = self.state.options.min_us <= 0  # else it is judged by its first calls
        return place

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
