"""Who uses a GPU and how much, from DRM's ``fdinfo`` (Linux ``Documentation/gpu/drm-usage-stats.rst``).

A client is one open of a GPU; the same client shows in every process and descriptor that inherited it, so clients are
counted once, by driver, device and ``drm-client-id``. Only processes whose ``fdinfo`` the user may read are seen.
"""

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..._records.metrics import ProcessUsage
from ..._runtime import threads
from .. import sysfs

_UNITS = {"": 1, "B": 1, "KiB": 1024, "kB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_PATIENCE_S = 2.0  # for a scan that another device has begun
_DEVICE_REGIONS = ("vram", "local", "lmem")
#: A client's memory in a region, best first: what is resident now, amdgpu's older key for the same, all it asked for.
_MEMORY_KEYS = ("drm-resident-", "drm-memory-", "drm-total-")


class Client(NamedTuple):
    """One client's counters since it opened the device."""

    driver: str
    device: str | None  # PCI address; None for a platform device
    client_id: str
    pid: int
    engines_ns: dict[str, int]
    engines_cycles: dict[str, tuple[int, int]]  # busy, total
    capacity: dict[str, int]  # engines of one class
    memory: dict[str, int]  # bytes by region

    def memory_bytes(self, on_device: bool) -> int | None:
        """Bytes in the device's own regions, or in the others; None where the driver names no such region."""
        found = [size for region, size in self.memory.items() if region.startswith(_DEVICE_REGIONS) is on_device]
        return sum(found) if found else None


Key = tuple[str, str | None, str]
Clients = dict[Key, Client]


def parse(text: str, pid: int, descriptor: str = "") -> Client | None:
    """The client an ``fdinfo`` file describes, or None where it is no DRM one. Broken lines are passed over."""
    pairs = {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    driver = pairs.get("drm-driver")
    if not driver:
        return None
    client = Client(
        driver,
        pairs["drm-pdev"].lower() if "drm-pdev" in pairs else None,
        pairs.get("drm-client-id") or f"{pid}/{descriptor}",  # drivers without ids: each open counts
        pid,
        {},
        {},
        {},
        {},
    )
    for key, value in pairs.items():
        if key.startswith("drm-engine-capacity-"):
            _put(client.capacity, key[20:], value)
        elif key.startswith("drm-engine-") and value.endswith("ns"):
            _put(client.engines_ns, key[11:], value)
        elif key.startswith("drm-total-cycles-"):
            _put_cycles(client, key[17:], pairs.get("drm-cycles-" + key[17:], ""), value)
    for prefix in reversed(_MEMORY_KEYS):
        for key, value in pairs.items():
            if key.startswith(prefix) and not key.startswith("drm-total-cycles-"):
                _put(client.memory, key[len(prefix) :], value)
    return client


def _put(where: dict[str, int], name: str, value: str) -> None:
    words = value.split()
    if words and words[0].isdigit():
        where[name] = int(words[0]) * (_UNITS.get(words[1], 1) if len(words) > 1 else 1)


def _put_cycles(client: Client, engine: str, busy: str, total: str) -> None:
    if busy.isdigit() and total.isdigit():
        client.engines_cycles[engine] = (int(busy), int(total))


def scan(proc: str = "/proc", pids: Iterable[int] | None = None) -> tuple[Clients, int]:
    """Every client of every process this user may look into, or of ``pids``, and how many other processes there are.

    One that ends meanwhile is passed over.
    """
    found: Clients = {}
    hidden = 0
    for pid in _all_pids(proc) if pids is None else pids:
        folder = f"{proc}/{pid}"
        try:
            descriptors = os.listdir(f"{folder}/fd")
        except OSError as error:
            hidden += isinstance(error, PermissionError)
            continue
        for descriptor in descriptors:
            client = _client(folder, pid, descriptor)
            if client is not None:
                found.setdefault((client.driver, client.device, client.client_id), client)
    return found, hidden


def _all_pids(proc: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []


def _client(folder: str, pid: int, descriptor: str) -> Client | None:
    try:
        if not os.readlink(f"{folder}/fd/{descriptor}").startswith("/dev/dri/"):
            return None
        text = sysfs.read(f"{folder}/fdinfo/{descriptor}", 16384).decode("utf-8", "replace")
    except OSError:
        return None
    return parse(text, pid, descriptor)


def busy_percent(before: Clients, after: Clients, elapsed_ns: int) -> dict[Key, dict[str, float]]:
    """By client, the share of each engine class it kept busy between two scans.

    Nanoseconds are divided by the time that passed, cycles by the cycles that passed, both by the number of engines of
    the class. A client whose counters went backwards (a new one under an old number) has no share.
    """
    shares: dict[Key, dict[str, float]] = {}
    for key, now in after.items():
        was = before.get(key)
        if was is None:
            continue
        mine = shares[key] = {}
        for engine, ns in now.engines_ns.items():
            _share(mine, engine, ns - was.engines_ns.get(engine, ns), elapsed_ns, now)
        for engine, (busy, total) in now.engines_cycles.items():
            busy_was, total_was = was.engines_cycles.get(engine, (busy, total))
            _share(mine, engine, busy - busy_was, total - total_was, now)
    return shares


def _share(shares: dict[str, float], engine: str, busy: int, total: int, client: Client) -> None:
    if total > 0 and busy >= 0:
        shares[engine] = min(100.0 * busy / total / max(client.capacity.get(engine, 1), 1), 100.0)


class Usage:
    """What the clients of one device use. ``shares`` is None after the first scan: a share needs two."""

    __slots__ = ("clients", "hidden", "shares")

    def __init__(self, clients: Clients, shares: dict[Key, dict[str, float]] | None, hidden: int = 0) -> None:
        self.clients = clients
        self.shares = shares
        self.hidden = hidden  # processes that this user may not look into

    def engine_totals(self) -> dict[str, float]:
        """Busy percent of each engine class over all clients, at most 100."""
        totals: dict[str, float] = {}
        for key in self.clients:
            for engine, percent in (self.shares or {}).get(key, {}).items():
                totals[engine] = min(totals.get(engine, 0.0) + percent, 100.0)
        return totals

    def memory(self, on_device: bool) -> int | None:
        """Bytes of all clients on the device or in system memory; None where no client says."""
        found = [client.memory_bytes(on_device) for client in self.clients.values()]
        known = [size for size in found if size is not None]
        return sum(known) if known else None

    def processes(self, reader: sysfs.Reader, proc: str = "/proc") -> tuple[ProcessUsage, ...] | None:
        """One row a process, largest memory first. Its share is that of its busiest engine class.

        None with a reason where no process that may be seen uses the device, and others may not be seen.
        """
        if not self.clients and self.hidden:
            reader.note("processes", f"denied: {self.hidden} processes of other users may not be looked into")
            return None
        rows: dict[int, ProcessUsage] = {}
        for key, client in self.clients.items():
            share = max((self.shares or {}).get(key, {}).values(), default=None)
            size = client.memory_bytes(True)
            size = client.memory_bytes(False) if size is None else size
            row = rows.get(client.pid)
            if row is None:
                name = sysfs.text_or_none(os.path.join(proc, str(client.pid), "comm"))
                row = ProcessUsage(client.pid, None, None, name, visible=True)
            total = _plus(row.gpu_percent, share)
            rows[client.pid] = row._replace(
                memory_used_bytes=_plus(row.memory_used_bytes, size),
                gpu_percent=None if total is None else min(total, 100.0),
            )
        return tuple(sorted(rows.values(), key=lambda row: -(row.memory_used_bytes or 0)))


class Scanner:
    """Scans at most every ``period_ns``, however many devices ask, and keeps the scan before for the shares.

    Looking through every process is the dear part, so it is done every ``search_ns``; between, only the processes that
    had a client are read. A new one is seen that much later.
    """

    def __init__(self, proc: str = "/proc", period_ns: int = 200_000_000, search_ns: int = 5_000_000_000) -> None:
        self.proc = proc
        self._period_ns = period_ns
        self._search_ns = search_ns
        self._searched_ns: int | None = None
        self._time_ns: int | None = None
        self._clients: Clients = {}
        self._hidden = 0
        self._shares: dict[Key, dict[str, float]] | None = None
        self._lock = threads.lock()  # every device asks on a thread of its own
        self._pid = os.getpid()

    def usage(self, now_ns: int, driver: str | None, device: str | None) -> Usage:
        """The clients that ``driver`` has on ``device``, as of the newest scan."""
        if self._pid != os.getpid():  # a forked child: a thread of the parent may have held the lock
            self._lock, self._pid = threads.lock(), os.getpid()
        # With a limit: a signal handler may ask in the middle of a scan, and gets what is known.
        if self._lock.acquire(timeout=_PATIENCE_S):
            try:
                self._renew(now_ns)
            finally:
                self._lock.release()
        mine = {key: client for key, client in self._clients.items() if key[0] == driver and key[1] == device}
        return Usage(mine, self._shares, self._hidden)

    def _renew(self, now_ns: int) -> None:
        before_ns = self._time_ns
        if before_ns is not None and now_ns - before_ns < self._period_ns:
            return
        clients = self._scan(now_ns)
        if before_ns is not None:
            self._shares = busy_percent(self._clients, clients, now_ns - before_ns)
        self._time_ns, self._clients = now_ns, clients

    def _scan(self, now_ns: int) -> Clients:
        if self._searched_ns is not None and now_ns - self._searched_ns < self._search_ns:
            return scan(self.proc, {client.pid for client in self._clients.values()})[0]
        self._searched_ns = now_ns
        found, self._hidden = scan(self.proc)
        return found


def _plus(left: Any, right: Any) -> Any:
    return right if left is None else left if right is None else left + right
