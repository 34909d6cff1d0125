"""What blocks and tracers answer when asked: summaries as NamedTuples, and as lines for people."""

import sys
from typing import Any, NamedTuple

from .._aggregation.block_totals import BLOCK_TIME
from .._records.records import AT_MOST, BLOCK_TIMES, BLOCKS, Path, standard_deviation
from .._runtime.text import count_text, encodable, percent_text, printable, sentence, size_text, time_text

_MOST_BLOCKS, _MOST_FAILURES = 200, 5


class Launched(NamedTuple):
    """One operation launched inside a block, its children included."""

    kind: str
    name: str
    count: int  # type: ignore[assignment]
    total_ns: int
    min_ns: int
    max_ns: int
    std_ns: float
    bytes: int = 0

    @property
    def avg_ns(self) -> float:
        return self.total_ns / self.count if self.count else 0.0


class BlockSummary(NamedTuple):
    """What one block launched. GPU times are sums over operations (concurrent ones count each)."""

    name: str
    path: Path = ()
    wall_ns: int | None = None
    gpu_ns: int | None = None  # kernels; None where no source reports kernels, and so for transfers and memsets
    kernel_count: int | None = None
    transfer_ns: int | None = None
    transfer_count: int | None = None
    transfer_bytes: int | None = None
    memset_count: int | None = None
    wait_ns: int | None = None  # the host waited for the device; None unless sync records are on
    compute_ns: int | None = None  # compute blocks inside
    operations: tuple[Launched, ...] = ()
    attributes: dict[str, Any] | None = None
    complete: bool = False
    reason: str = ""  # why something is unknown or incomplete
    ambiguous: int = 0  # operations that may belong here or to a block of another thread or task
    inherited: int = 0  # of threads without blocks of their own (autograd)
    device_ns: int | None = None  # the device's streams were in it; None unless the device times blocks
    device_at_most: bool = False  # that is a bound, because a stream was idle as the block began or ended

    def __str__(self) -> str:
        return _block_text(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return self.as_html()

    def as_html(self) -> str:
        """What ``str()`` says, with a table of what was launched."""
        from .._runtime.tables import escape, table

        head, *_ = str(self).splitlines()
        more = f"<p>{escape(self.reason)}</p>" if self.reason and self.operations else ""
        return f"<p>{escape(head)}</p>{table(self.operations) if self.operations else ''}{more}"


def block_summary(block: Any, recorder: Any, complete: bool) -> BlockSummary:
    """Built from the running totals of the pipeline; in file mode from the file."""
    totals = recorder.block_totals(block)
    end = block.end_ns
    of = recorder.clock.of_wall  # which may have been set while the block was open
    wall = max(0, of(end) - of(block.start_ns)) if end is not None else None
    if not block.block_id or totals is None:
        return BlockSummary(str(block.name), reason="the block was never entered, or was not sampled")
    rows = [
        Launched(kind, name, row[0], row[1], row[2], row[3], standard_deviation(row[0], row[1], row[4]), row[5])
        for (kind, name), row in totals.rows.items()
        if kind != BLOCK_TIME
    ]
    rows.sort(key=lambda row: -row.total_ns)
    status = recorder.status()
    running = status.get("state") == "running"
    captured = running or bool(rows)
    reason = "" if captured else f"no GPU work is captured: {status.get('reason') or status.get('state')}"
    timed = [(name, row) for (kind, name), row in totals.rows.items() if kind == BLOCK_TIME]
    if status.get("state") == BLOCKS and not captured:
        reason = BLOCK_TIMES if timed else f"the device did not time it: {recorder.block_times.why(block.path)}"
    if captured and not complete:
        why = f": {recorder.unread}" if recorder.unread else ""
        reason = f"not everything launched inside had finished and been read in time{why}"
    lacking = recorder.lacking(block) if captured and complete else ""
    if lacking:
        complete, reason = False, lacking
    if totals.late and captured:
        complete = False
        reason = "the block was asked for when it was open already: what it launched first may be missing"

    def add(kind: str, field: str) -> int | None:
        found = [getattr(row, field) for row in rows if row.kind == kind]
        return sum(found) if found or running else None

    return BlockSummary(
        name=block.name,
        path=block.path,
        wall_ns=wall,
        gpu_ns=add("kernel", "total_ns"),
        kernel_count=add("kernel", "count"),
        transfer_ns=add("transfer", "total_ns"),
        transfer_count=add("transfer", "count"),
        transfer_bytes=add("transfer", "bytes"),
        memset_count=add("memset", "count"),
        wait_ns=add("sync", "total_ns") if "sync" in recorder.settings.kinds else None,
        compute_ns=sum(row.total_ns for row in rows if row.kind == "compute"),
        operations=tuple(rows),
        attributes=block.attributes,
        complete=complete and (captured or bool(timed)),
        reason=reason,
        ambiguous=totals.ambiguous,
        inherited=totals.inherited,
        device_ns=sum(row[1] for _, row in timed) if timed else None,
        device_at_most=any(name == AT_MOST for name, _ in timed),
    )


def print_summary(session: Any, file: Any = None) -> None:
    """A table of the blocks on ``file`` (standard output)."""
    _write(_table_lines(session, file if file is not None else sys.stdout), file)


def print_bottlenecks(session: Any, top_n: int = 5, file: Any = None) -> None:
    """What took the most time on ``file`` (standard output)."""
    from .bottlenecks import bottlenecks, lines

    _write(lines(bottlenecks(session, top_n)), file)


def export_json(session: Any, path: Any = None) -> str | None:
    """The session in the shape of ``gpusense report --json``: as text, or written to ``path`` piece by piece."""
    from ..report import json as renderer

    pieces = renderer.pieces(session, indent=2)
    if path is None:
        return "".join(pieces)
    with open(path, "w", encoding="utf-8") as target:
        target.writelines(pieces)
    return None


# --- lines for people -------------------------------------------------------------------------------------------------


def _block_text(summary: BlockSummary) -> str:
    """A few lines for people."""
    if summary.kernel_count is None and not summary.operations and summary.device_ns is None:
        return printable(f"{summary.name}: {summary.reason}")
    parts = [f"{time_text(summary.wall_ns)} wall"]
    if summary.device_ns is not None:
        parts.append(f"{'at most ' * summary.device_at_most}{time_text(summary.device_ns)} on the device")
    if summary.kernel_count is not None:
        kernels = count_text(summary.kernel_count, "kernel")
        parts.append(f"{time_text(summary.gpu_ns)} in {kernels}" if summary.kernel_count else "no kernel")
    if summary.transfer_count is not None:
        copies, size = count_text(summary.transfer_count, "copy", "copies"), size_text(summary.transfer_bytes or 0)
        spent = f"{copies} ({size} in {time_text(summary.transfer_ns)})"
        parts.append(spent if summary.transfer_count else "no copy")
    if summary.wait_ns:
        parts.append(f"{time_text(summary.wait_ns)} waiting")
    lines = [f"{summary.name}: {', '.join(parts)}"]
    lines += [
        f"  {time_text(row.total_ns):>10}  {row.count:>7,} ×  {_CALLED.get(row.kind, row.kind):<8}  {_name(row)}"
        for row in summary.operations[:10]
    ]
    if summary.ambiguous:
        more = count_text(summary.ambiguous, "more operation")
        lines.append(f"  {more} may belong here or to a block of another thread or task.")
    if summary.reason:
        lines.append(f"  {sentence(summary.reason)}")
    return "\n".join(map(printable, lines))


#: What kinds of operations are called.
_CALLED = {"transfer": "copy", "sync": "wait"}


def _name(row: Launched) -> str:
    from ..analysis.operation import WAYS

    return WAYS.get(row.name, row.name)


def _table_lines(session: Any, stream: Any) -> list[str]:
    """A table of the blocks, totals, and what is not in them."""
    from ..analysis.facts import Facts
    from ..analysis.memory import alive, out_of_memory
    from ..analysis.summary import share_of_time
    from ..analysis.unwritten import absent_text, ignored, listed_text, untimed, untimed_text
    from ..report import blocks
    from ..report.style import style_of

    summary = session.summary()
    lines = list(blocks.lines(session, session.once(Facts).blocks, style_of(stream).width, _MOST_BLOCKS))
    if not summary.operations:
        lines.append(f"No block was recorded{f': {summary.reason}' if summary.reason else ''}.")
    counters = summary.counters
    busy = f"GPU busy {time_text(summary.gpu_busy_ns)}; " if summary.gpu_busy_ns else ""
    lost = counters.dropped + counters.missed
    lines.append(f"{busy}records: {listed_text(counters)}{f', {lost:,} lost' if lost else ''}")
    absent = absent_text(counters)
    if absent:
        lines.append(f"Not recorded: {absent}; the session's counters say why.")
        lines += [f"  {count_text(count, 'manual record')}: {reason}." for reason, count in ignored(session).items()]
    if untimed(session):
        lines.append(f"{untimed_text(session)}: {next(iter(untimed(session)))}.")
    lines += _waited(session)
    failed = out_of_memory(session) if session.allocations else []
    for block in failed[:_MOST_FAILURES]:
        lines.append(f"{_place(block.path)} ended for lack of memory, when these allocations were alive:")
        left = alive(session, block.end_ns)
        lines += [f"  {size_text(row.bytes):>10} in {row.allocations} from {_place(row.path)}" for row in left[:5]]
    if len(failed) > _MOST_FAILURES:
        lines.append(f"… and {count_text(len(failed) - _MOST_FAILURES, 'more block')} ended so")
    if summary.observed_share is not None and summary.observed_share < 1:
        lines.append(
            f"Only {percent_text(summary.observed_share)} of the run was recorded (overhead budget); no sum includes "
            "the rest."
        )
    budget, cost, stays = (share_of_time(session, name) for name in ("budget", "share", "left"))
    if budget is not None and budget < min(cost or 0, stays or 0):
        lines.append(
            f"The overhead budget of {percent_text(budget)} is not kept: CUPTI makes launches longer by about "
            f"{percent_text(stays)} of the run even while capture is paused. detach() takes it out."
        )
    return lines


def _waited(session: Any) -> list[str]:
    """Where lines of waits were asked for: the lines from which most was waited, or why they are not known."""
    from ..analysis.waits import lines_missing, waits

    if "sync_lines" not in (session.meta.get("kinds") or ()):
        return []
    reason = lines_missing(session)
    return [f"The lines that wait are not known: {reason}."] * bool(reason) + [
        f"waited {time_text(row.total_ns)} in {count_text(row.count, 'call')} at {row.source_line}"
        for row in waits(session)[:5]
        if row.source_line
    ]


def _place(path: Path) -> str:
    return " › ".join(path) or "outside every block"


def _write(lines: list[str], file: Any) -> None:
    """The lines on ``file``, or on standard output."""
    stream = file if file is not None else sys.stdout
    text = "\n".join(map(printable, lines)) + "\n"
    stream.write(encodable(text, getattr(stream, "encoding", None) or "utf-8"))
