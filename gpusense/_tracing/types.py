"""What type checkers know of blocks: a decorated function keeps its type. Never imported at run time."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar

from .summary import BlockSummary

F = TypeVar("F", bound=Callable[..., Any])


class TimedBlock(Protocol):
    """What ``compute_block()`` gives."""

    def __enter__(self) -> "TimedBlock": ...  # noqa: PYI034 - typing.Self is of 3.11

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

    def __call__(self, function: F, /) -> F: ...


class Block(Protocol):
    """What ``trace()`` gives, whether something is recorded or not; see the class :class:`.block.Block`."""

    @property
    def name(self) -> Any: ...

    @property
    def block_id(self) -> int: ...

    @property
    def parent_id(self) -> int | None: ...

    @property
    def path(self) -> tuple[str, ...]: ...

    @property
    def start_ns(self) -> int: ...

    @property
    def end_ns(self) -> int | None: ...

    def __enter__(self) -> "Block": ...  # noqa: PYI034 - typing.Self is of 3.11

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

    def __call__(self, function: F, /) -> F: ...

    def wait(self, timeout_s: float = ...) -> bool: ...

    def summary(self, timeout_s: float = ...) -> BlockSummary: ...


class Switch(Protocol):
    """What tracers ask of whatever decides which of them is active."""

    def enable(self) -> bool: ...

    def disable(self) -> None: ...

    def detach(self, without_graphs: bool = ...) -> Any: ...

    def ends(self, tracer: Any) -> None: ...

    def forget_in_child(self, tracer: Any) -> None: ...
