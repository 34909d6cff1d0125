"""Reads what Nsight Systems exports as SQLite: ``nsys export --type sqlite``.

Its schema changes by version: each table and column is read where it is there. Times count from the beginning of the
recording; ``TARGET_INFO_SESSION_START_TIME`` says when that was. The file is opened for reading alone, and only tables
are read, never a view, which could be made to run without end.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from ..._capi.demangle import demangle
from ..._records.records import DeviceInfo, GpuKernel, GpuMemoryTransfer, GpuMemset, GpuSync
from ..._runtime.errors import GpuSenseError
from .trace import Call, Trace, vendor_of, wait_of

NSIGHT = "Nsight Systems"
HEAD = b"SQLite format 3\0"
_LONGEST = 8192  # characters of a text that are read
_MOST_BYTES = 64 << 20  # of a value; SQLite refuses a larger one
_ROWS = 10_000
_THREAD = (1 << 24) - 1  # the low bits of a global thread; above stand its process and machine
_PUSH_POP, _START_END = 59, 60  # kinds of NVTX events that are ranges
_COPIES = {1: "cpu_to_gpu", 2: "gpu_to_cpu", 3: "cpu_to_gpu", 4: "gpu_to_cpu", 5: "on_device", 6: "on_device",
           7: "on_device", 8: "on_device", 9: "cpu_to_cpu", 10: "gpu_to_gpu"}  # fmt: skip
_MEMORIES = {0: "pageable", 1: "pinned", 2: "device", 3: "array", 4: "managed", 5: "device", 6: "managed"}
_SYNCS = {1: "event_synchronize", 2: "stream_wait_event", 3: "stream_synchronize", 4: "context_synchronize"}
_NO_STREAM = 0xFFFFFFFF  # of a wait for a whole context
_KERNEL = ("demangledName", "shortName", "mangledName", "registersPerThread", "gridX", "gridY", "gridZ", "blockX",
           "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread")  # fmt: skip
_ACTIVITY = "CUPTI_ACTIVITY_KIND_"


def read(path: str) -> Trace:
    """Raises GpuSenseError for a file that is no database, or none of Nsight Systems."""
    try:
        # "immutable" would read past a lock, and wrongly while somebody writes.
        base = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise GpuSenseError(f"{path}: {error}") from None
    try:
        if hasattr(base, "setlimit"):
            base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
        base.text_factory = lambda raw: raw[:_LONGEST].decode("utf-8", "replace")
        return _Export(base).trace()
    except (sqlite3.Error, OverflowError) as error:
        raise GpuSenseError(f"{path}: the database cannot be read: {error}") from None
    finally:
        base.close()


class _Export:
    def __init__(self, base: sqlite3.Connection) -> None:
        self._base = base
        self._trace = Trace(NSIGHT)
        self._strings: dict[int, str | None] = {}
        base.execute("PRAGMA trusted_schema=OFF")
        self._tables = {str(name) for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def trace(self) -> Trace:
        known = [name for name in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME") if _ACTIVITY + name in self._tables]
        if not known and "NVTX_EVENTS" not in self._tables:
            raise GpuSenseError("this database is not an export of Nsight Systems: it has none of its tables")
        self._about()
        self._gpus()
        self._each(_ACTIVITY + "RUNTIME", ("start", "end"), ("globalTid", "correlationId", "nameId"), self._call)
        place = ("deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphNodeId")
        self._each(_ACTIVITY + "KERNEL", ("start", "end"), (*place, *_KERNEL), self._kernel)
        copy = ("bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId")
        self._each(_ACTIVITY + "MEMCPY", ("start", "end"), (*place, *copy), self._copy)
        self._each(_ACTIVITY + "MEMSET", ("start", "end"), (*place, "bytes", "value", "memKind"), self._memset)
        self._each(_ACTIVITY + "SYNCHRONIZATION", ("start", "end"), (*place, "syncType", "eventId"), self._sync)
        nvtx = ("end", "eventType", "globalTid", "endGlobalTid", "text", "textId")
        self._each("NVTX_EVENTS", ("start",), nvtx, self._range)
        for name in sorted(self._tables):
            if name.startswith(_ACTIVITY) and name.removeprefix(_ACTIVITY) not in _READ:
                (count,) = self._base.execute(f"SELECT count(*) FROM {_quoted(name)}").fetchone()
                self._trace.leave_out(f"rows of {name[:60]}", count)
        return self._trace

    def _each(
        self, table: str, needed: tuple[str, ...], wanted: tuple[str, ...], take: Callable[[dict[str, Any]], None]
    ) -> None:
        """Hands on each row of ``table`` as whole numbers and texts; what is of another type is None."""
        for row in self._rows(table, needed, wanted):
            if all(isinstance(row[name], int) for name in needed):
                take(row)
            else:
                self._trace.leave_out(f"rows of {table} without a time")

    def _rows(self, table: str, needed: tuple[str, ...], wanted: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
        if table not in self._tables:
            return
        have = {str(row[1]) for row in self._base.execute(f"PRAGMA table_info({_quoted(table)})")}
        if not have.issuperset(needed):
            self._trace.notes.append(
                f"the table {table} has no {', '.join(sorted(set(needed) - have))}: it was not read"
            )
            return
        columns = [name for name in (*needed, *wanted) if name in have]
        empty = dict.fromkeys(wanted)
        cursor = self._base.execute(f"SELECT {', '.join(map(_quoted, columns))} FROM {_quoted(table)}")
        while rows := cursor.fetchmany(_ROWS):
            for row in rows:
                yield empty | {
                    name: value if isinstance(value, (int, str)) else None
                    for name, value in zip(columns, row, strict=True)
                }

    def _text(self, number: Any) -> str | None:
        """The text that a number stands for."""
        if not isinstance(number, int) or "StringIds" not in self._tables:
            return None
        if number not in self._strings:
            row = self._base.execute("SELECT value FROM StringIds WHERE id = ?", (number,)).fetchone()
            self._strings[number] = row[0] if row and isinstance(row[0], str) else None
        return self._strings[number]

    # --- about ------------------------------------------------------------------------------------------------------

    def _about(self) -> None:
        for row in self._rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)):
            self._trace.base_ns = row["utcEpochNs"] if isinstance(row["utcEpochNs"], int) else 0
        for row in self._rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")):
            if row["name"] == "Hostname" and isinstance(row["value"], str):
                self._trace.meta["host"] = row["value"][:200]
        for row in self._rows("ThreadNames", ("nameId", "globalTid")):
            name = self._text(row["nameId"])
            if name and isinstance(row["globalTid"], int):
                self._trace.name_thread(row["globalTid"] & _THREAD, name)
        for row in self._rows("ANALYSIS_DETAILS", ("startTime", "stopTime")):
            if isinstance(row["startTime"], int) and isinstance(row["stopTime"], int):
                self._trace.see(row["startTime"], row["stopTime"])

    def _gpus(self) -> None:
        wanted = (
            "uuid",
            "busLocation",
            "totalMemory",
            "smCount",
            "computeMajor",
            "computeMinor",
            "isDiscrete",
            "clockRate",
        )
        for row in self._rows("TARGET_INFO_GPU", ("id", "name"), wanted):
            index, name = row["id"], row["name"]
            if not isinstance(index, int) or not isinstance(name, str):
                continue
            major, minor = _whole(row["computeMajor"]), _whole(row["computeMinor"])
            discrete = row["isDiscrete"]
            self._trace.devices[index] = DeviceInfo(
                index,
                name[:200],
                "nvidia" if vendor_of(name) == "unknown" else vendor_of(name),
                NSIGHT,
                uuid=row["uuid"] if isinstance(row["uuid"], str) else None,
                pci_bus_id=row["busLocation"].lower() if isinstance(row["busLocation"], str) else None,
                memory_total_bytes=_whole(row["totalMemory"]),
                compute_capability=(major, minor) if major is not None and minor is not None else None,
                sm_count=_whole(row["smCount"]),
                cuda_index=index,
                kind=None if discrete is None else "discrete" if discrete else "integrated",
            )
        gpus = dict(self._trace.devices)  # CUDA may count them in another order
        for row in self._rows("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId")):
            if row["gpuId"] in gpus and isinstance(row["cudaId"], int):
                number = row["cudaId"]
                self._trace.devices[number] = gpus[row["gpuId"]]._replace(index=number, cuda_index=number)

    # --- rows -------------------------------------------------------------------------------------------------------

    def _call(self, row: dict[str, Any]) -> None:
        thread = row["globalTid"]
        if not isinstance(thread, int):
            self._trace.leave_out("calls without a thread")
            return
        key = thread & ~_THREAD, row["correlationId"]
        self._trace.see(row["start"], row["end"])
        if (wait := wait_of(self._text(row["nameId"]) or "")) is not None:
            sync = GpuSync(wait, row["start"], row["end"], correlation_id=_whole(row["correlationId"]))
            self._trace.wait(sync, key, thread & _THREAD)
        else:
            self._trace.call(key, Call(thread & _THREAD, row["start"]))

    def _kernel(self, row: dict[str, Any]) -> None:
        mangled = self._text(row["mangledName"])
        name = self._text(row["demangledName"]) or (mangled and demangle(mangled, may_load=True)) or mangled
        grid, block = ((row[f"{of}X"], row[f"{of}Y"], row[f"{of}Z"]) for of in ("grid", "block"))
        kernel = GpuKernel(
            **self._trace.kernel_names(name or self._text(row["shortName"]) or ""),
            start_ns=row["start"],
            end_ns=row["end"],
            **_place(row),
            grid=grid if all(isinstance(one, int) and one > 0 for one in grid) else None,
            block=block if all(isinstance(one, int) and one > 0 for one in block) else None,
            registers_per_thread=_whole(row["registersPerThread"]),
            static_shared_bytes=_whole(row["staticSharedMemory"]),
            dynamic_shared_bytes=_whole(row["dynamicSharedMemory"]),
            local_bytes_per_thread=_whole(row["localMemoryPerThread"]),
            graph_node_id=_whole(row["graphNodeId"]) or None,
            raw_name=mangled,
        )
        self._trace.add(kernel, _launch(row))

    def _copy(self, row: dict[str, Any]) -> None:
        direction: Any = _COPIES.get(row["copyKind"])
        size = _whole(row["bytes"])
        if direction is None or size is None:
            self._trace.leave_out("copies of unknown direction or size")
            return
        copy = GpuMemoryTransfer(
            name=direction,
            direction=direction,
            bytes=size,
            start_ns=row["start"],
            end_ns=row["end"],
            **_place(row),
            source=_MEMORIES.get(row["srcKind"]),
            destination=_MEMORIES.get(row["dstKind"]),
            source_device=_whole(row["srcDeviceId"]) if direction == "gpu_to_gpu" else None,
            destination_device=_whole(row["dstDeviceId"]) if direction == "gpu_to_gpu" else None,
            graph_node_id=_whole(row["graphNodeId"]) or None,
        )
        self._trace.add(copy, _launch(row))

    def _memset(self, row: dict[str, Any]) -> None:
        memory = _MEMORIES.get(row["memKind"])
        memset = GpuMemset(
            "memset",
            _whole(row["bytes"]) or 0,
            row["start"],
            row["end"],
            **_place(row),
            value=_whole(row["value"]),
            memory=memory,
            graph_node_id=_whole(row["graphNodeId"]) or None,
        )
        self._trace.add(memset, _launch(row))

    def _sync(self, row: dict[str, Any]) -> None:
        kind = _SYNCS.get(row["syncType"])
        if kind is None:
            self._trace.leave_out("waits of unknown kind")
            return
        wait = GpuSync(kind, row["start"], row["end"], **_place(row), event_id=_whole(row["eventId"]) or None)
        self._trace.wait(wait, _launch(row), None)

    def _range(self, row: dict[str, Any]) -> None:
        if row["eventType"] not in (_PUSH_POP, _START_END):
            return  # marks, domains, names of things
        if not isinstance(row["end"], int):
            self._trace.leave_out("ranges without an end")
            return
        thread = row["globalTid"]
        name = row["text"] if isinstance(row["text"], str) and row["text"] else self._text(row["textId"])
        if not isinstance(thread, int) or row["endGlobalTid"] not in (None, 0, thread):
            self._trace.leave_out("ranges that end on another thread")
            return
        self._trace.block(thread & _THREAD, row["start"], row["end"], name or "")


_READ = frozenset({"RUNTIME", "KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION"})


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else None


def _place(row: dict[str, Any]) -> dict[str, Any]:
    stream = _whole(row["streamId"])
    return {
        "device": _whole(row["deviceId"]),
        "context": _whole(row["contextId"]),
        "stream": stream if stream != _NO_STREAM else None,
        "correlation_id": _whole(row["correlationId"]),
    }


def _launch(row: dict[str, Any]) -> tuple[Any, Any]:
    process = row["globalPid"]
    return (process & ~_THREAD if isinstance(process, int) else process), row["correlationId"]
