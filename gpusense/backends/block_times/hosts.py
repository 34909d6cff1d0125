"""Which streams a thread launches on: the libraries that the program uses are asked, and say when that changes.

Nothing is imported. A library is met at the first block after the program has imported it.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..._runtime import log
from ..._runtime.interrupts import is_the_programs
from ..._runtime.patches import Patches

_MOST_STREAMS = 256  # that are remembered
#: Libraries that use streams of their own and tell nobody, by the module that does it.
SILENT = {"jaxlib": "JAX", "tensorflow": "TensorFlow"}


class Current(NamedTuple):
    """A stream that this thread launches on."""

    device: int | None  # CUDA ordinal; None: the one of the thread's context
    stream: int  # as the driver's handle
    keeps: Any = None  # what keeps it alive


class Answer:
    """Streams that a thread launches on; none where nobody knows, or where a library failed: ``reason``. Often the very
    object of the last time: ``here`` has what whoever asked made of it."""

    __slots__ = ("here", "reason", "streams")

    def __init__(self, *streams: Current, reason: str = "") -> None:
        self.streams, self.reason = streams, reason
        self.here: Any = None


#: Gives the streams of one library on some devices, or on the thread's own where there are none of them.
Ask = Callable[[Sequence[int]], Answer | None]
Told = Callable[[], None]


class Hosts:
    """The libraries met so far. ``leaves`` is called before a thread goes on to another stream, ``arrives`` after;
    ``came`` as a library is met."""

    def __init__(self, leaves: Told, arrives: Told, came: Told) -> None:
        self._told, self._came = (leaves, arrives), came
        self._patches = Patches()
        self._known: dict[str, Ask | None] = {}
        self._ask: Ask = _nothing
        self._nobody = Answer()
        self._imported = 0  # that the program had imported when that was last looked at

    def look(self) -> None:
        """Meets libraries that have been imported since."""
        if len(sys.modules) == self._imported:
            return
        self._imported, self._nobody = len(sys.modules), Answer()
        for name, meet in _HOSTS.items():
            module = sys.modules.get(name)
            if module is None or name in self._known:
                continue
            if _is_importing(module):
                self._imported = 0
            else:
                self._known[name] = self._meet(name, meet, module)
                asked = [ask for ask in self._known.values() if ask is not None]
                self._ask = asked[0] if len(asked) == 1 else _all_of(asked)
                self._came()

    def _meet(self, name: str, meet: "Meet", module: Any) -> Ask | None:
        try:
            return meet(module, self._patches, *self._told)
        except Exception:  # noqa: BLE001 - of an unusual version
            log.exception(f"streams of {name}", f"{name} does not say which streams it uses")
            return None

    def streams(self, devices: Sequence[int]) -> Answer:
        """The streams that this thread launches on."""
        if len(sys.modules) != self._imported:
            self.look()
        try:
            return self._ask(devices) or self._nobody
        except Exception as error:
            if is_the_programs(error):
                raise
            return Answer(reason=f"{type(error).__name__}: {error}")

    def forget(self) -> None:
        """Puts everything back."""
        self._patches.undo()
        self._known.clear()
        self._ask = _nothing
        self._imported = 0


def _nothing(_: Sequence[int]) -> None:
    return None


def _all_of(asked: Sequence[Ask]) -> Ask:
    def ask(devices: Sequence[int]) -> Answer | None:
        found = [answer for one in asked if (answer := one(devices)) is not None]
        return Answer(*[stream for answer in found for stream in answer.streams]) if len(found) != 1 else found[0]

    return ask


def silent() -> str:
    """Which library of the program's tells nobody about its streams; "" where none is known to."""
    return next((name for module, name in SILENT.items() if module in sys.modules), "")


def _is_importing(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


Meet = Callable[[Any, Patches, Told, Told], Ask | None]


def _torch(torch: Any, patches: Patches, leaves: Told, arrives: Told) -> Ask | None:
    stream_of = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if stream_of is None:  # built without CUDA
        return None
    initialised, device = torch.cuda.is_initialized, torch._C._cuda_getDevice
    patches.wrap(torch.cuda, "set_stream", lambda original: _between(original, leaves, arrives))

    made: dict[tuple[int, int], Answer] = {}

    def ask(devices: Sequence[int]) -> Answer | None:
        if not made and not initialised():
            return None
        if len(devices) > 1:
            return Answer(*[Current(one, stream_of(one)) for one in devices])
        one = device()
        key = one, stream_of(one)
        found = made.get(key)
        if found is None:
            if len(made) > _MOST_STREAMS:
                made.clear()
            found = made[key] = Answer(Current(*key))
        return found

    return ask


def _cupy(cupy: Any, patches: Patches, leaves: Told, arrives: Told) -> Ask:
    stream_of = cupy.cuda.get_current_stream
    kind = next(of for of in cupy.cuda.Stream.__mro__ if "use" in vars(of))
    for name in ("__enter__", "__exit__", "use"):
        patches.wrap(kind, name, lambda original: _between(original, leaves, arrives))

    def ask(_: Sequence[int]) -> Answer:
        stream = stream_of()
        return Answer(Current(None, stream.ptr, stream))

    return ask


_HOSTS: dict[str, Meet] = {"torch": _torch, "cupy": _cupy}


def _between(original: Any, leaves: Told, arrives: Told) -> Callable[..., Any]:
    def switch(*args: Any, **kwargs: Any) -> Any:
        _tell(leaves)
        try:
            return original(*args, **kwargs)
        finally:
            _tell(arrives)

    return switch


def _tell(told: Told) -> None:
    try:
        told()
    except Exception as error:  # nothing of ours reaches the library
        if is_the_programs(error):
            raise
        log.exception("streams", "a change of streams was not noticed")
