"""Xid events: one thread that waits in the driver and counts critical errors for every device."""

import ctypes
import struct
from typing import Any

from ..._capi import nvml as c
from ..._runtime import threads

_NOBODY = "unsupported: Xid events are read by a running monitor only"
_WAIT_MS = 5000  # asleep in the driver; between two looks whether anybody still watches


class Events:
    """``watch`` starts the thread at the first user, ``unwatch`` ends it after the last; both return at once."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self._lock = threads.rlock()
        self._users = 0
        self._thread: Any = None
        self._seen: dict[int, tuple[int | None, int]] = {}  # handle that is watched → (last xid, count)
        self._why = _NOBODY  # no other is

    def last(self, handle: int) -> tuple[int | None, int | None, str | None]:
        """(last Xid, how many, why not) of a device since watching began; (None, 0, None) where there was none."""
        why, seen = self._why, self._seen.get(handle)
        return (None, None, why) if seen is None else (*seen, None)

    def watch(self, handles: list[int]) -> None:
        with self._lock:
            self._users += 1
            if self._thread is not None or not handles:
                return
            self._thread = threads.start(lambda: self._run(handles), "gpusense-xid")

    def unwatch(self) -> None:
        with self._lock:
            self._users = max(0, self._users - 1)

    def _run(self, handles: list[int]) -> None:
        api, events = self._api, ctypes.c_void_p()
        code = api.nvmlEventSetCreate(ctypes.byref(events))
        watched = [handle for handle in handles if not code and self._register(handle, events)]
        refused = f"unsupported: nvmlDeviceRegisterEvents: {c.code_name(code or c.NOT_SUPPORTED)} as watching began"
        if watched:
            self._seen, self._why = dict.fromkeys(watched, (None, 0)), refused
            while not self._is_over(code := self._wait(events), f"lost: nvmlEventSetWait_v2: {c.code_name(code)}"):
                pass  # someone has begun to watch since
        else:
            self._is_over(code or c.NOT_SUPPORTED, refused)
        if events.value:
            api.nvmlEventSetFree(events)

    def _is_over(self, code: int, why: str) -> bool:
        """True once there is a code or nobody watches; then whoever begins to watch starts another thread."""
        with self._lock:
            if not code and self._users:
                return False
            self._seen, self._why, self._thread = {}, why if code else _NOBODY, None
            return True

    def _register(self, handle: int, events: ctypes.c_void_p) -> bool:
        kinds = ctypes.c_ulonglong()
        if self._api.nvmlDeviceGetSupportedEventTypes(handle, ctypes.byref(kinds)) or not kinds.value & c.EVENT_XID:
            return False
        return not self._api.nvmlDeviceRegisterEvents(handle, c.EVENT_XID, events)

    def _wait(self, events: ctypes.c_void_p) -> int:
        """Counts events until nobody watches (0) or the wait fails (its code)."""
        data = ctypes.create_string_buffer(struct.calcsize(c.EVENT) + 64)
        while self._users:
            code: int = self._api.nvmlEventSetWait_v2(events, data, _WAIT_MS)
            if code == c.TIMEOUT:
                continue
            if code:
                return code
            handle, kind, xid, _, _ = struct.unpack_from(c.EVENT, data)
            if kind & c.EVENT_XID:
                self._seen[handle] = xid, self._seen.get(handle, (None, 0))[1] + 1
        return 0
