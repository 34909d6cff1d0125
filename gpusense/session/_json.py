"""Sessions in JSON, schema ``gpusense.report/1``: what the report's fields do not say of one, and the way back.

Records, sums, devices, samples and counters stand in the report as they are. What is concluded from them is concluded
anew, of which the table of all work is the base: it goes beside them in the form of the session file.
"""

import os
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from .._records import json_codec
from .._records.counter_samples import packed as packed_samples
from .._records.counter_samples import unpacked as unpacked_samples
from .._records.records import Aggregate, Counters, DeviceBusy, DeviceInfo, UnseenInterval
from .._records.work import WorkTable
from .._runtime.errors import SessionError
from .._runtime.text import count_text
from . import _format as file
from ._session import Session
from ._work_chunks import packed, unpack

SCHEMA = "gpusense.report/1"
#: The field of the report with what is only of use to :func:`load`.
FIELD = "session"

_OLD = "this JSON is of an older version: it has only sums of short work, so that phases and gaps are not known"


def more(session: Session) -> dict[str, Any]:
    """What goes into :data:`FIELD`."""
    work = [b64encode(zlib.compress(b"".join(parts))).decode("ascii") for parts in packed(session.work)]
    return {
        "busy": [json_codec.encode(row) for row in session.busy],
        "work": work if session.has_work else None,
        "samples": [
            b64encode(zlib.compress(b"".join(parts))).decode("ascii")
            for part in session.counter_samples.parts()
            for parts in packed_samples(part)
        ],
    }


def load(path: "str | os.PathLike[str]") -> Session:
    """The session in a report. Rows that do not fit are left out and named in ``meta["damage"]``."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as found:
            report = json_codec.loads(found.read())
    except OSError as error:
        raise SessionError(f"{name}: {error.strerror}") from error
    except ValueError as error:
        raise SessionError(f"{name}: no whole JSON: {error}") from error
    schema = report.get("schema") if isinstance(report, dict) else None
    if schema != SCHEMA:
        raise SessionError(f"{name}: JSON of schema {schema!r:.80}; sessions are read from {SCHEMA}")
    session = _session(report)
    session.meta["path"] = name
    return session


def _session(report: dict[str, Any]) -> Session:
    meta, own = _object(report.get("meta")), _object(report.get(FIELD))
    damage: list[str] = []

    def rows(of: Any, decode: Callable[[Any], Any], name: str) -> list[Any]:
        return list(_fitting(of.get(name), decode, name, damage))

    records = [row for name in ("records", "blocks") for row in rows(report, json_codec.decode_record, name)]
    counters = rows({"counters": [report.get("counters")]}, partial(json_codec.decode, Counters), "counters")
    session = Session(
        meta=dict(meta),
        devices=tuple(rows(report, partial(json_codec.decode, DeviceInfo), "devices")),
        records=records,
        aggregates=rows(report, partial(json_codec.decode, Aggregate), "aggregates"),
        metrics=rows(report, json_codec.metrics_from_dict, "metrics"),
        busy=rows(own if FIELD in report else report, partial(json_codec.decode, DeviceBusy), "busy"),
        unseen=rows(report, partial(json_codec.decode, UnseenInterval), "unseen"),
        counters=counters[0] if counters else None,
    )
    _take_work(session, own.get("work"), damage)
    for columns in _fitting(own.get("samples"), lambda part: unpacked_samples(_inflated(part)), "samples", damage):
        session.counter_samples.add(columns)
    if FIELD not in report and session.work.summed:
        session.meta["notes"] = [_OLD, *_list(meta.get("notes"))]
    session.meta["damage"] = [*damage, *_list(meta.get("damage"))]
    return session


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _fitting(found: Any, decode: Callable[[Any], Any], name: str, damage: list[str]) -> Iterator[Any]:
    lost, why = 0, ""
    for row in _list(found):
        try:
            yield decode(row)
        except ValueError as error:  # noqa: PERF203 - costs its row alone
            lost, why = lost + 1, why or str(error)
    if lost:
        damage.append(f"{count_text(lost, 'row')} of {name} left out: {why}")


def _take_work(session: Session, parts: Any, damage: list[str]) -> None:
    if not isinstance(parts, list):
        return
    table = WorkTable()
    try:
        for part in parts:
            unpack(_inflated(part), table)
    except ValueError as error:
        damage.append(f"the table of work is left out: {error}")
        return
    session.take_work(table)


def _inflated(part: Any) -> bytes:
    """Raises ``ValueError`` where that is none of ours."""
    try:
        return zlib.decompressobj().decompress(b64decode(part, validate=True), file.MAX_CHUNK_BYTES)
    except (TypeError, zlib.error) as error:
        raise ValueError(str(error)) from None
