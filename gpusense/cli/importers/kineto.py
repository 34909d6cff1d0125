"""Reads Chrome traces of torch.profiler (Kineto) and of Proton. Pure: values of JSON in, a :class:`.trace.Trace` out.

Whatever is of another type than Kineto writes is counted and left out, event by event. Operators (``cpu_op``) are
counted alone: there are thousands a step, and what the program named is in ``user_annotation`` and ``nn.Module``.
"""

from typing import Any

from ..._records.records import DeviceInfo, Dim3, GpuKernel, GpuMemoryTransfer, GpuMemset, GpuSync, Path
from ...analysis.families import is_collective
from .chrome_json import EVENTS
from .collectives import NAME
from .trace import Call, Trace, vendor_of, wait_of

TORCH, PROTON = "torch.profiler", "Proton"
_DEVICES = 1000  # of one machine
_MODULE = "nn.Module: "
_STEP = "ProfilerStep#"
_DIRECTIONS = {
    "HtoD": "cpu_to_gpu",
    "DtoH": "gpu_to_cpu",
    "DtoD": "on_device",
    "PtoP": "gpu_to_gpu",
    "HtoH": "cpu_to_cpu",
}
_SYNCS = {
    "Context Sync": "context_synchronize",
    "Stream Sync": "stream_synchronize",
    "Event Sync": "event_synchronize",
    "Stream Wait Event": "stream_wait_event",
}
#: Events that say again what another says, or how it is drawn.
_REPEATED = frozenset({"gpu_user_annotation", "ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd", "Trace"})


class Hatchet(ValueError):
    """A profile of sums without times."""


class Ours(ValueError):
    """What gpusense has written itself, for somebody else to read."""


class Reader:
    """:meth:`take` what :func:`.chrome_json.values` gives; :attr:`trace` holds what was understood."""

    def __init__(self) -> None:
        self.trace = Trace(TORCH)
        self.events = 0
        self._properties: Any = None

    def take(self, name: str, value: Any) -> None:
        """Raises :class:`Hatchet` for a profile of Proton's that has no times, and :class:`Ours`."""
        if (name == "otherData" and isinstance(value, dict) and "gpusense" in value) or (
            name == "schema" and str(value).startswith("gpusense.")
        ):
            raise Ours
        if name == EVENTS:
            self.events += 1
            if isinstance(value, dict):
                self._event(value)
            else:
                self.trace.leave_out("events that are no objects")
        elif name == "deviceProperties":
            self._devices(value)
        elif name == "baseTimeNanoseconds":
            self.trace.base_ns = _whole(value) or 0
        elif name == "distributedInfo" and isinstance(value, dict):
            self.trace.meta["rank"] = _whole(value.get("rank"))
            self.trace.meta["world_size"] = _whole(value.get("world_size"))

    def _event(self, event: dict[str, Any]) -> None:
        if "frame" in event and "ph" not in event:
            raise Hatchet
        phase, category = event.get("ph"), event.get("cat")
        if phase == "M":
            self._named(event)
        if phase != "X" or not isinstance(category, str) or category in _REPEATED:
            return
        start, length = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
        if start is None or length is None or length < 0:
            self.trace.leave_out("events whose time is not a number")
            return
        args = event.get("args")
        take = _TAKES.get(category)
        name = event.get("name")
        if take is None:
            self.trace.leave_out(f"{category[:40]} events")
            self.trace.see(start, start + length)
            return
        take(
            self,
            name if isinstance(name, str) else "",
            start,
            start + length,
            args if isinstance(args, dict) else {},
            event,
        )

    def _named(self, event: dict[str, Any]) -> None:
        args, thread = event.get("args"), event.get("tid")
        if event.get("name") == "thread_name" and isinstance(args, dict) and isinstance(thread, int):
            name = args.get("name")
            if isinstance(name, str) and not name.startswith("stream "):
                self.trace.name_thread(thread, name)

    # --- what the device did ----------------------------------------------------------------------------------------

    def _kernel(self, name: str, start: int, end: int, args: dict[str, Any], event: dict[str, Any]) -> None:
        path: Path = ()
        if isinstance(calls := args.get("call_stack"), list) and "stream" not in args:
            self.trace.tool = PROTON
            path = tuple(str(one)[:200] for one in calls if one != "ROOT")[:-1][:64]
        kernel = GpuKernel(
            **self.trace.kernel_names(name),
            start_ns=start,
            end_ns=end,
            **_place(args, event),
            grid=_three(args.get("grid")),
            block=_three(args.get("block")),
            registers_per_thread=_whole(args.get("registers per thread")),
            dynamic_shared_bytes=_whole(args.get("shared memory")),
            graph_id=_whole(args.get("graph id")) or None,
            graph_node_id=_whole(args.get("graph node id")) or None,
            path=path,
        )
        self.trace.add(kernel, kernel.correlation_id)
        if NAME in args and is_collective(name):  # what copies the parts of a list has them, too
            self.trace.add_collective(args, start, end, kernel.correlation_id)

    def _copy(self, name: str, start: int, end: int, args: dict[str, Any], event: dict[str, Any]) -> None:
        way, _, memories = name.removeprefix("Memcpy ").partition(" ")
        source, arrow, destination = memories.strip("()").lower().partition(" -> ")
        direction: Any = _DIRECTIONS.get(way)
        if direction is None:
            self.trace.leave_out("copies of unknown direction")
            return
        copy = GpuMemoryTransfer(
            name=direction,
            direction=direction,
            bytes=_whole(args.get("bytes")) or 0,
            start_ns=start,
            end_ns=end,
            **_place(args, event),
            source=_memory(source) if arrow else None,
            destination=_memory(destination) if arrow else None,
        )
        self.trace.add(copy, copy.correlation_id)

    def _memset(self, _name: str, start: int, end: int, args: dict[str, Any], event: dict[str, Any]) -> None:
        memset = GpuMemset("memset", _whole(args.get("bytes")) or 0, start, end, **_place(args, event))
        self.trace.add(memset, memset.correlation_id)

    # --- what the host did ------------------------------------------------------------------------------------------

    def _call(self, name: str, start: int, end: int, args: dict[str, Any], event: dict[str, Any]) -> None:
        self.trace.see(start, end)
        launch, thread = _whole(args.get("correlation")), self.trace.thread(event.get("tid"))
        key = launch if launch is not None else (thread, start)
        if (wait := wait_of(name)) is not None:
            self.trace.wait(GpuSync(wait, start, end, correlation_id=launch), key, thread)
        elif launch is not None:
            self.trace.call(launch, Call(thread, start, _whole(args.get("size"))))

    def _sync(self, name: str, start: int, end: int, args: dict[str, Any], event: dict[str, Any]) -> None:
        kind = _SYNCS.get(name)
        if kind is None:
            self.trace.leave_out("cuda_sync events of unknown kind")
            return
        wait = GpuSync(kind, start, end, **_place(args, event))
        self.trace.wait(wait, wait.correlation_id if wait.correlation_id is not None else ("sync", start), None)

    def _annotation(self, name: str, start: int, end: int, _args: dict[str, Any], event: dict[str, Any]) -> None:
        attributes = None
        if name.startswith(_STEP):  # each has its own number, and all are passes of one block
            step = _whole(name.removeprefix(_STEP))
            name, attributes = "ProfilerStep", {"step": step} if step is not None else None
            self.trace.meta["step_block"] = name
        self.trace.block(self.trace.thread(event.get("tid")), start, end, name, attributes)

    def _function(self, name: str, start: int, end: int, _args: dict[str, Any], event: dict[str, Any]) -> None:
        if name.startswith(_MODULE):
            self.trace.block(self.trace.thread(event.get("tid")), start, end, name.removeprefix(_MODULE))
            return
        self.trace.leave_out("python_function events")
        self.trace.see(start, end)

    # --- devices ----------------------------------------------------------------------------------------------------

    def _devices(self, properties: Any) -> None:
        for row in properties[:_DEVICES] if isinstance(properties, list) else ():
            index, name = (_whole(row.get("id")), row.get("name")) if isinstance(row, dict) else (None, None)
            if index is None or not isinstance(name, str):
                continue
            major, minor = _whole(row.get("computeMajor")), _whole(row.get("computeMinor"))
            self.trace.devices[index] = DeviceInfo(
                index,
                name[:200],
                vendor := vendor_of(name),
                TORCH,
                memory_total_bytes=_whole(row.get("totalGlobalMem")),
                compute_capability=(major, minor)
                if major is not None and minor is not None and vendor == "nvidia"
                else None,
                sm_count=_whole(row.get("numSms")),
                cuda_index=index,
                kind="discrete",
                threads_per_sm=_whole(row.get("maxThreadsPerMultiprocessor")),
                shared_memory_per_sm_bytes=_whole(row.get("sharedMemPerMultiprocessor")),
                registers_per_sm=_whole(row.get("regsPerMultiprocessor")),
            )


_TAKES = {
    "kernel": Reader._kernel,
    "gpu_memcpy": Reader._copy,
    "gpu_memset": Reader._memset,
    "cuda_runtime": Reader._call,
    "cuda_driver": Reader._call,
    "cuda_sync": Reader._sync,
    "user_annotation": Reader._annotation,
    "python_function": Reader._function,
}


def nanoseconds(value: Any) -> int | None:
    """Of microseconds, as a whole number or the text of one with a point, exactly."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value * 1000
    if not isinstance(value, str) or len(value) > 40:
        return None
    whole, _, part = value.partition(".")
    if part.isdecimal() and whole.lstrip("-").isdecimal():
        size = int(whole.lstrip("-")) * 1000 + int(part[:3].ljust(3, "0"))
        return -size if whole.startswith("-") else size
    try:
        return round(float(value) * 1000)
    except (ValueError, OverflowError):
        return None


def _whole(value: Any) -> int | None:
    """A number that stands as itself or as text; None for one that no record holds."""
    if isinstance(value, str) and len(value) < 20:
        try:
            value = int(value)
        except ValueError:
            return None
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 62) < value < 1 << 62:
        return None
    return value


def _three(value: Any) -> Dim3 | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    x, y, z = (_whole(one) for one in value)
    return (x, y, z) if x is not None and y is not None and z is not None and min(x, y, z) > 0 else None


def _place(args: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    """Proton has the stream where others have the thread, and the device only in newer versions."""
    proton = "call_stack" in args and "stream" not in args
    device = args.get("device", args.get("device_id", 0 if proton else None))
    stream = args.get("stream", args.get("stream_id", event.get("tid") if proton else None))
    return {
        "device": _whole(device),
        "context": _whole(args.get("context")),
        "stream": _whole(stream),
        "correlation_id": _whole(args.get("correlation")),
    }


def _memory(text: str) -> str | None:
    return text if text in ("pageable", "pinned", "device", "array", "managed") else None
