"""The tracer that does nothing, with the same methods and result types; no ``if`` is left on its path."""

from time import time_ns
from typing import TYPE_CHECKING, Any

from .copies import Forwarded, Receiver
from .results import Results

if TYPE_CHECKING:
    from .types import Switch

OFF = "gpusense is off"
DISABLED = "recording is disabled; enable() goes on"

_LIMIT = 1000  # distinct names remembered


class NoopBlock:
    """What ``trace()`` gives while nothing is recorded. As a decorator it looks again at each call, so that enabling
    works later; under ``GPUSENSE=off`` it returns the function itself. ``reason`` says why nothing is recorded."""

    __slots__ = ("attributes", "links", "name", "reason")

    block_id = 0
    parent_id = None
    path: tuple[str, ...] = ()
    start_ns = 0
    end_ns = 0
    thread = 0

    def __init__(self, name: Any, attributes: Any, links: Any, reason: str) -> None:
        self.name = name
        self.attributes = attributes
        self.links = links
        self.reason = reason

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.reason}>"

    def __enter__(self) -> "NoopBlock":  # noqa: PYI034 - typing.Self is of 3.11
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, function: Any) -> Any:
        from .._runtime.config import mode

        if mode() == "off":
            return function
        from .decorator import decorated

        return decorated(function, self.name, self.attributes, self.links)

    def wait(self, timeout_s: float = 0.0) -> bool:
        return True

    def summary(self, timeout_s: float = 0.0) -> Any:
        from .summary import BlockSummary

        return BlockSummary(name="block" if self.name is None else str(self.name), reason=self.reason)


class NoopComputeBlock(NoopBlock):
    """What ``compute_block()`` gives while nothing is recorded: as a decorator it stays CPU work once enabled."""

    __slots__ = ("elements",)

    def __init__(self, name: Any, elements: int | None, attributes: Any, reason: str) -> None:
        super().__init__(name, attributes, None, reason)
        self.elements = elements

    def __call__(self, function: Any) -> Any:
        from .._runtime.config import mode

        if mode() == "off":
            return function
        from .decorator import compute_decorated

        return compute_decorated(function, self.name, self.elements, self.attributes)


class _Elsewhere(Forwarded, NoopBlock):
    """Not recorded by this copy of gpusense, but by another in the process."""

    __slots__ = ("_enter", "_leave")

    def __init__(self, receiver: Receiver, name: Any, attributes: Any, links: Any, reason: str) -> None:
        super().__init__(name, attributes, links, reason)
        if name is None:
            from .caller import called_from

            name = called_from()
        self._enter, self._leave = receiver["block"](name, attributes)


class _ComputeElsewhere(NoopComputeBlock):
    """The same, of CPU work."""

    __slots__ = ("_receiver", "_start_ns")

    def __init__(self, receiver: Receiver, name: Any, elements: int | None, attributes: Any, reason: str) -> None:
        super().__init__(name, elements, attributes, reason)
        self._receiver = receiver

    def __enter__(self) -> "_ComputeElsewhere":  # noqa: PYI034 - typing.Self is of 3.11
        self._start_ns = time_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self._receiver["compute"](self.name, self._start_ns, time_ns(), self.elements, self.attributes)


class _Blocks(dict[Any, NoopBlock]):
    """One shared block a name, so that an idle ``with`` allocates nothing."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __missing__(self, name: Any) -> NoopBlock:
        block = NoopBlock(name, None, None, self._reason)
        if len(self) < _LIMIT:
            self[name] = block
        return block


def _pass_on(error: Exception) -> None:
    """What a signal handler has raised here is the program's."""
    if type(error) not in (KeyError, TypeError):
        from .._runtime.interrupts import is_the_programs

        if is_the_programs(error):
            raise error


class NoopTracer(Results):
    """Every method of :class:`Tracer`, empty and honest: ``reason`` says why nothing is recorded. ``control`` turns
    recording on, where that is possible."""

    active = False
    metrics_source: Any = None

    def __init__(self, reason: str, settings: Any = None, control: "Switch | None" = None) -> None:
        self.reason = reason
        self._blocks = _Blocks(reason)
        vars(self)["named"] = self._blocks.__getitem__  # the same, with no function of ours on the way
        self._receiver: Receiver | None = None
        self._compute_blocks: dict[str, NoopComputeBlock] = {}  # the last one of each name
        self._config = settings
        self._control = control

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.reason}>"

    @property
    def config(self) -> Any:
        from .._runtime.config import Settings

        return self._config or Settings()

    def go_to(self, receiver: "Receiver | None") -> None:
        """Blocks that are made from now on are those of another copy of gpusense; None: they are nobody's."""
        self._receiver = receiver
        vars(self)["named"] = self._blocks.__getitem__ if receiver is None else self.trace

    def trace(self, name: Any = None, attributes: Any = None, links: Any = None) -> NoopBlock:
        receiver = self._receiver
        if receiver is not None:
            return _Elsewhere(receiver, name, attributes, links, self.reason)
        return self._block(name, attributes, links)

    def _block(self, name: Any, attributes: Any = None, links: Any = None) -> NoopBlock:
        if attributes is None and links is None:
            try:
                return self._blocks[name]
            except Exception as error:  # noqa: BLE001 - a name that cannot be a key
                _pass_on(error)
        return NoopBlock(name, attributes, links, self.reason)

    def named(self, name: str) -> NoopBlock:
        """As :meth:`trace` with a name alone."""
        return self._blocks[name]

    def measure(self, name: Any = None, attributes: Any = None) -> NoopBlock:
        return self.trace(name, attributes)

    def compute_block(self, name: Any, elements: int | None = None, attributes: Any = None) -> NoopBlock:
        receiver = self._receiver
        if receiver is not None:
            return _ComputeElsewhere(receiver, name, elements, attributes, self.reason)
        if attributes is not None:
            return NoopComputeBlock(name, elements, attributes, self.reason)
        try:
            block = self._compute_blocks[name]
        except Exception as error:  # noqa: BLE001 - seen for the first time, or a name that cannot be a key
            _pass_on(error)
            block = None
        if block is None or block.elements != elements:
            block = NoopComputeBlock(name, elements, None, self.reason)
            if type(name) is str and len(self._compute_blocks) < _LIMIT:
                self._compute_blocks[name] = block
        return block

    def open_scope(self, name: Any, attributes: Any = None, key: Any = None, parent: Any = None) -> NoopBlock:
        return self._block(name)

    def close_scope(self, block: Any) -> None:
        """One that was opened while recording was on is closed: what comes later is not inside it."""
        block.__exit__(None, None, None)

    def current_block(self) -> None:
        return None

    def record(self, records: Any) -> None:
        return None

    def record_kernel(
        self, name: str, start_ns: Any = None, end_ns: Any = None, *, duration_ns: Any = None, **fields: Any
    ) -> None:
        if fields:
            _check("record_kernel", fields)

    def record_transfer(
        self,
        name: str,
        direction: str,
        bytes: int = 0,
        *,
        duration_ns: Any = None,
        start_ns: Any = None,
        end_ns: Any = None,
        **fields: Any,
    ) -> None:
        if fields:
            _check("record_transfer", fields)

    def record_compute_block(
        self,
        name: str,
        start_ns: Any = None,
        end_ns: Any = None,
        elements: int | None = None,
        *,
        duration_ns: Any = None,
        **fields: Any,
    ) -> None:
        if fields:
            _check("record_compute_block", fields)

    def add_sink(self, sink: Any) -> None:
        return None

    def remove_sink(self, sink: Any) -> None:
        return None

    def add_source(self, source: Any) -> None:
        return None

    def remove_source(self, source: Any) -> None:
        return None

    def add_watcher(self, watcher: Any) -> None:
        return None

    def add_block_listener(self, listener: Any) -> None:
        return None

    def remove_block_listener(self, listener: Any) -> None:
        return None

    def session(self) -> Any:
        from ..session import Session

        return Session(meta={"mode": "off", "reason": self.reason, "backends": {}})

    def status(self) -> dict[str, Any]:
        return {"state": "off", "reason": self.reason}

    def enable(self) -> bool:
        """Turns recording on for the whole process; False where it stays off (``GPUSENSE=off``)."""
        return self._control is not None and self._control.enable()

    def disable(self) -> None:
        return None

    def detach(self, *, without_graphs: bool = False) -> Any:
        """Takes CUPTI out of the process where recording was on before; see :func:`gpusense.detach`."""
        return self._control.detach(without_graphs) if self._control is not None else None

    def reset(self) -> None:
        return None

    def flush(self, timeout_s: float = 1.0) -> bool:
        return True

    def dump(self, path: Any = None) -> None:
        return None

    def close(self) -> None:
        return None


class DisabledTracer(NoopTracer):
    """While disabled: blocks do nothing, results are those of before."""

    def __init__(self, live: Any, control: "Switch") -> None:
        super().__init__(DISABLED, live.config, control)
        self._live = live

    def session(self) -> Any:
        return self._live.session()

    def add_sink(self, sink: Any) -> None:
        self._live.add_sink(sink)

    def remove_sink(self, sink: Any) -> None:
        self._live.remove_sink(sink)

    def reset(self) -> None:
        self._live.reset()

    def dump(self, path: Any = None) -> Any:
        return self._live.dump(path)


def _check(function: str, fields: dict[str, Any]) -> None:
    """What raises while recording raises without, too: a name that is no keyword."""
    from .._records import fields as known

    kinds = {"record_kernel": known.KernelFields, "record_transfer": known.TransferFields}
    known.check_names(function, fields, kinds.get(function, known.ComputeFields))
