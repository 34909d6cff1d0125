"""GPU facts for tests: the fixture ``gpusense``, and ``--gpusense-report PATH`` for the whole run.

Opt-in: ``pytest -p PACKAGE.integrations.pytest_plugin`` or ``pytest_plugins = [...]`` in a conftest. There is no entry
point on purpose: one would load in every test run of everybody who merely has the package installed.
"""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import pytest

from .._records.records import Aggregate, Direction, GpuKernel, GpuMemoryTransfer, GpuMemset, GpuSync
from .._runtime.text import count_text
from ..session import Session
from ._hosts import close_block, open_block
from ._recording import Recording

_KINDS = ("sync", "allocation")
_DIRECTIONS = get_args(Direction)
#: What makes every answer too small.
_LOSSES = ("dropped", "missed", "invalid")


class Times(NamedTuple):
    """Device times of operations, in nanoseconds."""

    count: int  # type: ignore[assignment]
    total_ns: int
    min_ns: int
    p50_ns: int
    p95_ns: int
    max_ns: int
    bytes: int = 0

    @property
    def avg_ns(self) -> float:
        """The mean."""
        return self.total_ns / self.count


def times_of(records: list[Any]) -> Times:
    """Times of at least one record; a percentile is the smallest value that so many do not exceed."""
    lengths = sorted(record.end_ns - record.start_ns for record in records)

    def percentile(share: float) -> int:
        return int(lengths[max(0, -int(-share * len(lengths) // 1) - 1)])

    size = sum(getattr(record, "bytes", 0) for record in records)
    return Times(len(lengths), sum(lengths), lengths[0], percentile(0.5), percentile(0.95), lengths[-1], size)


class GpuFacts:
    """What the test has done on the GPU up to the first question. :meth:`restart` forgets it and begins anew.

    Where no GPU work can be seen (no GPU, ``GPUSENSE=off``) and the test recorded none itself, questions skip the test.
    Failures and skips are shown where the test asked: ``__tracebackhide__`` leaves our frames out.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._recording = Recording(name, _KINDS)

    def restart(self) -> None:
        """Begins anew, for example after a warm-up."""
        self._recording.close()
        self._recording = Recording(self._name, _KINDS)

    @property
    def session(self) -> Session:
        """Everything recorded, as a :class:`Session`."""
        __tracebackhide__ = True
        session = self._recording.end()
        if not self._recording.complete:
            pytest.fail("the GPU did not finish in time what the test launched")
        return session

    def kernels(self, name: str = "") -> list[GpuKernel]:
        """Kernels whose name or demangled name holds ``name``, in the order of the device."""
        __tracebackhide__ = True
        everything = self.session.kernels
        self._settle("kernel", bool(everything), counted_will_do=False)
        found = [kernel for kernel in everything if name in kernel.name or name in (kernel.full_name or "")]
        return sorted(found, key=lambda kernel: kernel.start_ns)

    def kernel(self, name: str) -> Times:
        """Times of the kernels whose name holds ``name``; fails the test where there was none."""
        __tracebackhide__ = True
        found = self.kernels(name)
        if not found:
            seen = ", ".join(sorted({kernel.name for kernel in self.session.kernels})) or "none"
            pytest.fail(f"no kernel was named {name!r}; kernels: {seen}")
        return times_of(found)

    @property
    def kernel_count(self) -> int:
        """How many kernels ran."""
        __tracebackhide__ = True
        kept = self.session.kernels
        return len(kept) + sum(row.count for row in self._counted("kernel", bool(kept)))

    @property
    def gpu_ns(self) -> int:
        """Sum of the times of all kernels."""
        __tracebackhide__ = True
        kept = self.session.kernels
        return sum(kernel.duration_ns for kernel in kept) + sum(
            row.total_ns for row in self._counted("kernel", bool(kept))
        )

    def transfers(self, direction: str | None = None) -> list[GpuMemoryTransfer]:
        """Copies, all or those of a direction: "cpu_to_gpu", "gpu_to_cpu", "gpu_to_gpu", "on_device", "cpu_to_cpu".

        Raises ValueError for another word: of a misspelt direction there would always be none.
        """
        __tracebackhide__ = True
        _check_direction(direction)
        everything = self.session.transfers
        self._settle("transfer", bool(everything), counted_will_do=False)
        return [copy for copy in everything if direction in (None, copy.direction)]

    def transfer_bytes(self, direction: str | None = None) -> int:
        """Bytes of all copies, or of those of a direction, as for :meth:`transfers`."""
        __tracebackhide__ = True
        _check_direction(direction)
        kept = self.session.transfers
        rows: list[Any] = [*kept, *self._counted("transfer", bool(kept))]
        return sum(row.bytes for row in rows if direction in (None, row.direction))

    @property
    def peak_memory_bytes(self) -> int:
        """The most device memory that allocations of this test held at once. A caching allocator's cache counts."""
        __tracebackhide__ = True
        records = self.session.allocations
        self._settle("allocation", bool(records), counted_will_do=False)
        live: dict[int, int] = {}
        held = peak = 0
        for record in sorted(records, key=lambda item: item.start_ns):
            if record.name == "alloc":
                live[record.address] = record.bytes
                held += record.bytes
            else:
                held -= live.pop(record.address, 0)
            peak = max(peak, held)
        return peak

    def syncs(self) -> list[GpuSync]:
        """The times at which the host waited for the device."""
        __tracebackhide__ = True
        session = self.session
        self._settle("sync", bool(session.syncs), counted_will_do=False)
        return [sync for sync in session.syncs if sync.name != "stream_wait_event"]

    def assert_no_sync(self) -> None:
        """Fails the test where the host waited for the device, and says how often and how long."""
        __tracebackhide__ = True
        found = self.syncs()
        if found:
            times = times_of(found)
            places = {f"{sync.name} at {sync.source_line}" if sync.source_line else sync.name for sync in found}
            names = ", ".join(sorted(places))
            pytest.fail(
                f"the host waited for the device {count_text(times.count, 'time')}, {times.total_ns} ns in all: {names}"
            )

    def _counted(self, kind: str, seen: bool) -> list[Aggregate]:
        """Sums of what was not kept one by one."""
        __tracebackhide__ = True
        self._settle(kind, seen, counted_will_do=True)
        return [row for row in self.session.aggregates if row.kind == kind]

    def _settle(self, kind: str, seen: bool, *, counted_will_do: bool) -> None:
        """Ends the test where its question has no answer: nothing can be seen, or not all was kept."""
        __tracebackhide__ = True
        counted = sum(row.count for row in self.session.aggregates if row.kind == kind)
        reason = self._recording.reason
        if not seen and not counted and reason and not self._worked():
            pytest.skip(f"no GPU work can be seen: {reason}")
        lost = [f"{name} {count:,}" for name in _LOSSES if (count := getattr(self.session.counters, name))]
        if lost:
            pytest.fail(f"not all that this test did on the GPU was recorded: {', '.join(lost)}")
        if counted and not counted_will_do:
            records = count_text(counted, f"{kind} record of this test was", f"{kind} records of this test were")
            pytest.fail(f"{records} only counted: raise max_records, and leave trace_all as it is")

    def _worked(self) -> bool:
        work = (GpuKernel, GpuMemoryTransfer, GpuMemset, GpuSync)
        return any(type(record) in work for record in self.session.records)


def _check_direction(direction: str | None) -> None:
    if direction is not None and direction not in _DIRECTIONS:
        raise ValueError(f"direction must be one of {', '.join(_DIRECTIONS)}, not {direction!r}")


@pytest.fixture  # type: ignore[untyped-decorator]
def gpusense(request: pytest.FixtureRequest) -> Iterator[GpuFacts]:
    """What this test does on the GPU: ``gpusense.kernel("sgemm").p95_ns``, ``gpusense.assert_no_sync()``."""
    facts = GpuFacts(request.node.name)
    yield facts
    facts._recording.close()


# --- the report of the whole run --------------------------------------------------------------------------------------


_REPORT = "gpusense-report"


def pytest_addoption(parser: pytest.Parser) -> None:
    try:
        parser.getgroup("gpusense").addoption(
            "--gpusense-report",
            metavar="PATH",
            help="write what the tests did on the GPU: .html, .json, .gpusense (a session), .pftrace, otherwise text",
        )
    except ValueError:  # another copy of gpusense has the option, and will write the report
        pass


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("gpusense_report")
    if path and not config.pluginmanager.has_plugin(_REPORT):
        config.pluginmanager.register(_Report(config, str(path)), _REPORT)


class _Report:
    """A block for every test, and the report at the end; with xdist one for each worker."""

    def __init__(self, config: pytest.Config, path: str) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER")
        stem, suffix = os.path.splitext(os.path.abspath(path))
        self.path = f"{stem}-{worker}{suffix}" if worker else stem + suffix
        self.recording = Recording("tests")
        self.written = ""
        self.spread = not worker and config.getoption("dist", "no") != "no"
        if self.spread:  # no test runs here
            self.written = f"gpusense: {stem}-gw0{suffix} and so on, one a worker"

    @pytest.hookimpl(wrapper=True)  # type: ignore[untyped-decorator]
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        block = open_block(item.nodeid)
        try:
            return (yield)
        finally:
            close_block(block)

    def pytest_sessionfinish(self) -> None:
        session = self.recording.close()
        if self.spread:
            return
        from ..report import forms, text

        try:
            (forms.writer_of(self.path) or text.write)(session, self.path)
            self.written = f"gpusense: {self.path}"
        except OSError as error:
            self.written = f"gpusense: no report: {error}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(self.written)
