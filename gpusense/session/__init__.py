"""Sessions: everything recorded in one run; how it is saved, loaded and merged.

In: what a run recorded, or its file. Out: a :class:`Session`, which analyses, reports and exporters read. Files of the
package begin with an underscore; ``_capture`` writes through ``_writer``, ``_format`` has the layout of the file.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._session import Session, fold

if TYPE_CHECKING:
    from ._writer import Writer

__all__ = ["Session", "load", "merge", "save"]

#: What ``load`` adds to ``meta``.
_OF_THE_FILE = ("path", "complete", "file")


def load(
    path: "str | os.PathLike[str]",
    *,
    threshold_us: float | None = None,
    trace_all: bool = False,
    each_block: bool = False,
) -> Session:
    """The session in a file, or in a report in JSON (``gpusense report --json``, :meth:`Tracer.export_json`).

    What is damaged is left out and named in ``meta["damage"]``; ``meta["complete"]`` is false where the program was
    killed before it could end the file, or is still running.

    Raw activity buffers are decoded now: ``threshold_us`` (None: what the run used) and ``trace_all`` choose anew what
    is kept one by one. A session without raw buffers keeps what was kept; a higher threshold folds more of it into
    aggregates. Where no C++ runtime is in this process, a child process makes the names of kernels readable.
    ``each_block``: the session also tells what was launched inside each single block, where there are raw buffers.

    Raises ``SessionError`` where the file is no session, of a later format version, or cannot be read.
    """
    import gc

    # Records make no cycles, and while a million of them are made the search for some takes half the time.
    searched = gc.isenabled()
    gc.disable()
    try:
        return _load(path, None if threshold_us is None else int(threshold_us * 1000), trace_all, each_block)
    finally:
        if searched:
            gc.enable()


def _load(path: "str | os.PathLike[str]", threshold_ns: int | None, trace_all: bool, each_block: bool) -> Session:
    from ._format import is_json

    if is_json(path):
        from . import _json

        session = _json.load(path)
        if threshold_ns is not None and not trace_all:
            fold(session, threshold_ns)
        return session
    return _load_file(path, threshold_ns, trace_all, each_block)


def _load_file(path: "str | os.PathLike[str]", threshold_ns: int | None, trace_all: bool, each_block: bool) -> Session:
    from . import _format as file
    from ._builder import Builder
    from ._names import tell_apart

    with file.Reader(path) as reader:
        builder = Builder()
        raw = reader.has(file.BUFFER)
        undecided = 0
        for chunk in () if raw else reader:
            undecided += not builder.take(chunk)
        # A run records what other sources give it undecided too; a saved session has been decided about.
        decided = builder.meta.pop("decided", False) or builder.meta.get("mode") != "file"
        if raw or not (decided or (builder.is_empty and not undecided)):
            from .._capi import demangle
            from ._replay import replay

            demangle.learn(reader.kernel_names())
            session = replay(reader, threshold_ns=threshold_ns, trace_all=trace_all, each_block=each_block)
        else:
            session = builder.session()
            if not decided:  # and there was nothing to decide about
                session.meta.pop("graph_owners", None)
                session.each_block = {} if each_block else None
            if threshold_ns is not None and not trace_all:
                fold(session, threshold_ns)
        tell_apart(session)
        session.meta["path"] = reader.path
        session.meta["complete"] = reader.complete
        session.meta["damage"] = [*reader.damage, *session.meta.get("damage", ())]
    return session


def save(session: Session, path: "str | os.PathLike[str]") -> None:
    """Writes ``session`` to a file that :func:`load` gives back equal. Raises ``SessionError`` where that fails; what
    session ``path`` held before is there still then.
    """
    from .._runtime.errors import SessionError
    from ._paths import kept_until_whole
    from ._writer import Writer

    path = os.fspath(path)
    with kept_until_whole(path) as (fd, replaces):
        writer = Writer(path, max_bytes=None, fd=fd)
        try:
            _write(session, writer)
        finally:
            writer.close(end_ns=session.meta.get("end_ns"))
        lost = f"{writer.bytes_too_long} bytes were too much for one chunk" if writer.bytes_too_long else None
        if writer.failure or (lost and replaces):
            raise SessionError(f"{writer.path}: {writer.failure or lost}")
    if lost:
        raise SessionError(f"{writer.path}: {lost}")


def _write(session: Session, writer: "Writer") -> None:
    from .._records.counter_samples import packed as packed_samples
    from . import _format as file
    from ._work_chunks import packed

    meta = {key: value for key, value in session.meta.items() if key not in _OF_THE_FILE}
    writer.json(file.META, meta | {"decided": True})
    writer.rows(file.DEVICES, session.devices)
    writer.records(session.records)
    writer.rows(file.AGGREGATES, session.aggregates)
    if session.has_work:
        for payload in packed(session.work):
            writer.append(file.WORK, *payload)
    writer.rows(file.BUSY, session.busy)
    writer.rows(file.METRICS, session.metrics)
    for part in session.counter_samples.parts():
        for payload in packed_samples(part):
            writer.append(file.SAMPLES, *payload)
    writer.rows(file.UNSEEN, session.unseen)
    writer.rows(file.COUNTERS, [session.counters])


def merge(sessions: "Sequence[Session]") -> Session:
    """One session of the sessions of many processes or ranks, on one clock, with devices joined and ids kept apart.

    ``meta["processes"]`` lists them, ``meta["notes"]`` says how their clocks were joined.
    """
    from ._merge import merged
    from ._names import tell_apart

    session = merged(sessions)
    tell_apart(session)
    return session
