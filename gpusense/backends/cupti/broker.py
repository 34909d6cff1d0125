"""The one CUPTI subscription of the process, shared by every copy of gpusense in it.

Copies meet in the interpreter's dict. The one that comes first makes the *hub*: one drain thread that flushes, takes
full buffers and shows each to all who joined. Buffers are shared, not decoded, so copies of different versions need to
agree on nothing but CUPTI.

No lock is held while CUPTI is called: its callbacks may run under locks of its own.
"""

import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ..._capi.interpreter import interpreter_dict
from ..._records.protocols import OnBuffer
from ..._records.records import Unavailable
from ..._runtime import log, process, threads
from ..._runtime.errors import BackendError
from .kinds import Kinds, Pause, Switches, Wants

KEY = "gpusense.cupti"
ABI = 1  # of the state dict; raised when a copy could misread another's

#: Each reading costs a busy program more than its records do, so that fewer of more records are better; whoever waits
#: for records flushes.
PERIOD_S = 0.5
LOOK_S = 0.2  # between two looks at how many buffers are in use
#: Between two looks, and half of the time between readings, once no buffer was read for so long that holds more than
#: the markers by which members notice other profilers. A burst that comes first must fit into the buffers.
QUIET_S, REST_S, FEW_BYTES = 5.0, 0.75, 256
#: Where more and more buffers are needed they are read more often, before none is left. Each thread that launches has
#: one of its own, so that a server with a thread for each request needs many that are nearly empty. The one that a
#: thread has at every look is no sign of that: reading more often would only find it emptier.
SHORTEST_S = 0.02
CROWDED = 4  # one part in so many of the buffers, at one time
CLOSE_WAIT_S = 2.0
EXIT_WAIT_S = 1.0
DRAIN_LIMIT = 1024  # buffers in one go, so that a program that launches faster than we read cannot keep a thread here
FEWEST_BUFFERS = 2

Shared = dict[str, Any]


class Engine(Switches, Protocol):
    """What the hub drives: CUPTI and the mailbox, or a fake. Calls that CUPTI refuses raise :class:`BackendError`.

    ``register``: true where all buffers are other ones from now on. ``discard``: what a taken buffer holds takes no
    memory from now on; False, and it has to be given back, where it is one of those before. ``status(ask)``: as
    builtins; without a call to CUPTI unless ``ask``.
    """

    def register(self, after_another: bool = False) -> bool | None: ...
    def flush(self, forced: bool) -> None: ...
    def take(self) -> tuple[int, int, int] | None: ...
    def give(self, address: int) -> None: ...
    def newest(self) -> Callable[[], int] | None: ...
    def forget_newest(self) -> None: ...
    def discard(self, address: int) -> bool: ...
    def finalize(self) -> None: ...
    def let_go(self, kinds: Iterable[int]) -> None: ...
    def lent(self) -> int: ...
    def in_use(self) -> int: ...
    def status(self, ask: bool) -> dict[str, Any]: ...


def meet(build: Callable[[], Engine]) -> Shared | Unavailable:
    """The shared state of this process, made with ``build`` by the first copy that asks.

    Keys: ``abi``, ``pid``, ``version``, ``lock``, ``join(kinds, on_buffer, wants) -> leave``, ``wants() -> list``,
    ``flush(forced)``, ``pause(reason)``, ``resume()``, ``pause_kinds(kinds, wants) -> bool``,
    ``pauses(after) -> (count, ended, lasting)``, ``cpu_ns() -> int``, ``status() -> dict``, ``detach()``,
    ``newest() -> function or None``, ``step_aside(reason)``, ``want(on_buffer, kinds)``, ``forget_newest()``, and
    ``rouse()``, which a copy of an older version lacks.
    """
    place = interpreter_dict()
    if isinstance(place, Unavailable):
        return place
    # Without a lock, which a fork could leave locked: the first to put its own in is elected, a second one is dropped.
    shared: Shared = place.get(KEY) or place.setdefault(KEY, Hub(build()).shared())
    if shared.get("abi") != ABI:
        found = shared.get("version", "another version")
        return Unavailable("cupti", f"gpusense {found} shares CUPTI in a way this copy does not know; use one version")
    if shared["pid"] != os.getpid():
        return Unavailable("cupti", "this process was forked from one that traced; CUDA does not work in it")
    return shared


class _Member:
    __slots__ = ("kinds", "on_buffer", "wants")

    def __init__(self, on_buffer: OnBuffer, wants: Wants | None) -> None:
        self.kinds: frozenset[int] = frozenset()
        self.on_buffer = on_buffer
        self.wants = wants


class Hub:
    """Owner of the subscription: members, and the drain thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threads.lock()  # members and kinds
        self._registering = threads.lock()  # never asked for where CUPTI calls us
        self._reading = threads.rlock()  # the mailbox has one reader at a time
        self._reader = 0  # thread that holds it
        self._members: list[_Member] = []
        self._kinds = Kinds(engine, self._lock)
        self._wake = threads.Bell()
        self._thread: Any = None
        self._closing = False
        self._get_ident = threads.thread_id()
        self._pid = os.getpid()
        self._held_back: list[int] = []  # buffers beyond what the strictest member allows
        self._pool: tuple[int, int] | None = None  # how many there are, and their size
        self._givers: set[int] = set()  # threads whose buffers were read since the thread's last reading
        self._givers_before: set[int] = set()
        self._paused = self._flush_error = ""
        self._buffers = self._bytes = self._flushes = self._dropped_members = 0
        self._drain_cpu_ns = 0
        self._last_buffer_ns: int | None = None
        self._busy_ns = 0  # when there was more than markers, or a member joined
        self._flushed_at = 0.0  # monotonic time of the last flush, whoever asked for it
        self._registered = False
        process.register(self)

    def shared(self) -> Shared:
        from ... import __version__

        return {
            "abi": ABI,
            "pid": self._pid,
            "version": __version__,
            "lock": self._lock,
            "join": self.join,
            "flush": self.flush,
            "pause": self.pause,
            "resume": self.resume,
            "pause_kinds": self.pause_kinds,
            "pauses": self.pauses,
            "wants": self.wants,
            "cpu_ns": self.cpu_ns,
            "detach": self.detach,
            "status": self.status,
            "newest": self.newest,
            "step_aside": self.step_aside,
            "rouse": self.rouse,
            "want": self.want,
            "forget_newest": self._engine.forget_newest,
        }

    @property
    def alive(self) -> bool:
        return self._pid == os.getpid()

    # --- members ----------------------------------------------------------------------------------------------------

    def join(self, kinds: Iterable[int], on_buffer: OnBuffer, wants: Wants | None = None) -> Callable[[], None]:
        """Begins to show buffers with records of ``kinds`` (and of what others asked for) to ``on_buffer``.

        Returns the function that ends it. Raises :class:`BackendError` where CUPTI refuses; a kind that is merely not
        known to this CUPTI is left out and named in the status.
        """
        if not self.alive:
            raise BackendError("cuptiActivityEnable", 999, "this process was forked from one that traced")
        if self._paused:
            raise BackendError("cuptiSubscribe", 39, self._paused)
        member = _Member(on_buffer, wants)
        with self._lock:
            self._members.append(member)
            self._busy_ns = time.monotonic_ns()
        try:
            self.pause_kinds(())  # whoever switched kinds off until now did not know of this member
            self._register()
        except BaseException:  # its kinds were not touched: another profiler may have them on
            self._forget(member)
            raise
        try:
            self._switch(member, frozenset(kinds))
        except BaseException:
            self._remove(member)
            raise
        self._start_thread()
        return lambda: self._leave(member)

    def want(self, on_buffer: OnBuffer, kinds: Iterable[int]) -> None:
        """The member that ``on_buffer`` is of wants ``kinds`` from now on. Raises as :meth:`join` does; it stays a
        member."""
        for member in list(self._members):
            if member.on_buffer is on_buffer and self.alive:
                self._switch(member, frozenset(kinds))

    def _switch(self, member: _Member, kinds: frozenset[int]) -> None:
        with self._lock:
            if member not in self._members:
                return
            self._kinds.change(member.kinds, kinds)
            member.kinds = kinds
        self._kinds.settle()
        refusal = self._kinds.refusal(kinds)
        if refusal is not None:
            raise refusal

    def _register(self, anew: bool = False) -> None:
        """One thread at a time; who waited meanwhile finds it done. With a limit: CUPTI may not come back."""
        locked = self._registering.acquire(timeout=CLOSE_WAIT_S)
        try:
            if anew or not self._registered:
                if self._engine.register(anew):
                    self._held_back = []
                self._registered = True
        finally:
            if locked:
                self._registering.release()

    def _forget(self, member: _Member) -> None:
        with self._lock:
            if member in self._members:
                self._members.remove(member)

    def _leave(self, member: _Member) -> None:
        """Its kinds go off, and what is finished still reaches the member; then it is gone. A second call does
        nothing."""
        if member in self._members and self.alive:
            self._switch(member, frozenset())
            self.flush()
            self._remove(member)

    def _remove(self, member: _Member) -> None:
        with self._lock:
            if member not in self._members:
                return
            self._members.remove(member)
            self._kinds.change(member.kinds, frozenset())
            member.kinds = frozenset()
            lasting = self._kinds.lasting
            its_pause = lasting is not None and lasting[2] is member.wants
            if not self._members:
                if self._paused:
                    self._kinds.let_be()
                # Until someone joins again another profiler may have put in its own callbacks.
                self._registered, self._paused = False, ""
                self._wake.set()
        self._kinds.settle()
        if its_pause:
            self.pause_kinds(())

    def wants(self) -> list[Wants]:
        """What the members want, in the order in which they joined."""
        return [member.wants for member in list(self._members) if member.wants is not None]

    def pause_kinds(self, kinds: Iterable[int], by: Wants | None = None) -> bool:
        """Switches off ``kinds`` and on again what was paused, for a member that wants to see a part of the time.

        False, and nothing changes, where that would blind one who does not look at :meth:`pauses`.
        """
        wanted = frozenset(kinds)
        began = time.time_ns()
        with self._lock:
            blinds = by is None or any(member.wants is None for member in self._members)
            gone = by is not None and not any(member.wants is by for member in self._members)
            if not self.alive or self._paused or (wanted and (gone or (blinds and len(self._members) != 1))):
                return False
            self._kinds.begin_pause(wanted)
        self._kinds.follow_pause(began, by)
        return True

    def pauses(self, after: int) -> tuple[int, list[Pause], Pause | None]:
        """See :meth:`Kinds.pauses`."""
        return self._kinds.pauses(after)

    def newest(self) -> Callable[[], int] | None:
        """What gives the newest correlation id of all that was launched, where the engine knows."""
        return self._engine.newest()

    def cpu_ns(self) -> int:
        """CPU time of the drain thread so far."""
        return self._drain_cpu_ns

    # --- drain ------------------------------------------------------------------------------------------------------

    def _start_thread(self) -> None:
        with self._lock:
            self._wake.clear()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threads.start(self._run, "gpusense drain")

    def _run(self) -> None:
        period, read = PERIOD_S, self._buffers
        self._flushed_at = time.monotonic()
        while True:
            rests = self._rests()
            pause = 2 * REST_S if rests else period
            left = self._flushed_at + pause - time.monotonic()
            rung = self._wake.wait(REST_S if rests else min(max(left, SHORTEST_S), LOOK_S))
            with self._lock:  # so that one who joins now either keeps this thread or starts another
                if not self._members or not self.alive:
                    self._thread = None
                    return
            if self._closing:
                self._leave_all()
                return
            cpu = time.thread_time_ns()
            try:
                if not rung and time.monotonic() < self._flushed_at + pause and not self._crowded():
                    continue
                self.flush()
            except Exception:  # noqa: BLE001 - without this thread nobody would read
                log.exception("drain", "reading GPU records failed once and goes on")
            self._drain_cpu_ns += time.thread_time_ns() - cpu
            before, read = read, self._buffers
            period = self._period_after(period, read - before)

    def rouse(self) -> None:
        """Work may come: reads now, and looks as often as while there is some."""
        self._busy_ns = time.monotonic_ns()
        self._wake.set()

    def _rests(self) -> bool:
        """Whether nothing has been read for a while."""
        return time.monotonic_ns() - self._busy_ns > QUIET_S * 1e9

    def _period_after(self, period: float, read: int) -> float:
        """Seconds until the next look, when ``read`` buffers were there after the last ``period``."""
        before, self._givers_before, self._givers = self._givers_before, self._givers, set()
        more = read - len(before & self._givers_before)
        if more * CROWDED > self._count() - self._surplus():
            return max(SHORTEST_S, period / 2)
        return min(period * 1.5, PERIOD_S)

    def _crowded(self) -> bool:
        """Whether many buffers are in use, beside one for each thread whose work was read last."""
        more = self._engine.in_use() - len(self._givers | self._givers_before)
        return more * CROWDED > self._count() - self._surplus()

    def flush(self, forced: bool = False) -> str:
        """Has CUPTI deliver what is finished and shows it to the members before returning; "" or why that was not done.
        Any thread; never raises.

        ``forced`` also returns buffers with work that still runs, whose records then never get an end.
        """
        self._flushed_at = time.monotonic()
        if not self.alive or self._paused:
            return self._paused or "this process was forked from one that traced"
        ident = self._get_ident()
        if self._reader == ident:
            return "it is being read"  # a member called from its on_buffer
        refused = ""
        try:
            self._engine.flush(forced)
            self._flushes += 1
        except BackendError as error:
            refused = str(error)
        self._flush_error = refused
        try:
            # With a limit: a member may be waiting, in on_buffer, for the thread that is here.
            if not self._reading.acquire(timeout=CLOSE_WAIT_S):
                return "another thread was reading records for long"
            self._reader = ident
            emptied = self._drain()
        finally:
            if self._reader == ident:
                self._reader = 0
            threads.give_back(self._reading)
        return refused or ("" if emptied else "the program launched faster than records can be read")

    def _drain(self) -> bool:
        """Whether nothing is left to read."""
        for _ in range(DRAIN_LIMIT):
            full = self._engine.take()
            if full is None:
                return True
            address, valid, thread = full
            try:
                if valid:
                    self._givers.add(thread)
                    self._buffers += 1
                    self._bytes += valid
                    self._last_buffer_ns = time.monotonic_ns()
                    if valid > FEW_BYTES:
                        self._busy_ns = self._last_buffer_ns
                    self._show(address, valid, thread)
            finally:
                self._give_back(address)
        return False

    def _give_back(self, address: int) -> None:
        """Buffers beyond what the strictest member allows stay here, empty."""
        surplus = self._surplus()
        if len(self._held_back) < surplus and self._engine.discard(address):
            self._held_back.append(address)
            return
        self._engine.give(address)
        while len(self._held_back) > surplus:
            self._engine.give(self._held_back.pop())

    def _surplus(self) -> int:
        limits = [wants["buffer_bytes"] for wants in self.wants() if wants.get("buffer_bytes")]
        if not limits:
            return 0
        count, size = self._count(), self._pool[1] if self._pool is not None else 1
        return max(0, count - max(FEWEST_BUFFERS, int(min(limits)) // size))

    def _count(self) -> int:
        """How many buffers there are."""
        if self._pool is None:
            facts = self._engine.status(False)
            self._pool = facts.get("buffer_count", 0), facts.get("buffer_size", 1)
        return self._pool[0]

    def _show(self, address: int, valid: int, thread: int) -> None:
        for member in list(self._members):
            try:
                member.on_buffer(address, valid, thread)
            except Exception:  # noqa: BLE001, PERF203 - another copy's code; the others must not suffer
                log.exception("broker-member", "a copy of gpusense could not take GPU records and gets no more")
                self._dropped_members += 1
                self._remove(member)

    # --- other profilers --------------------------------------------------------------------------------------------

    def pause(self, reason: str) -> None:
        """Makes no call to CUPTI any more: another profiler has it. Kinds stay as they are, they may be its by now."""
        self._kinds.interrupted = self._kinds.held = True
        self._paused = reason
        self._tell(False, reason)

    def step_aside(self, reason: str) -> None:
        """As :meth:`pause`, before the other profiler takes CUPTI: no buffer of ours is with CUPTI any more, because it
        would be returned to the other, which may free it."""
        if not self.alive or self._paused or not self._members:
            return
        self._engine.let_go(self._kinds.wanted())
        self.flush()
        if self._engine.lent():
            self.flush(forced=True)  # records of what still runs then never get an end
        self.pause(reason)

    def resume(self) -> None:
        """Registers our callbacks and enables our kinds again. Raises :class:`BackendError` where CUPTI refuses."""
        if not self.alive or not self._paused:  # another member was first
            return
        self._register(anew=True)
        self._kinds.switch_all_on()  # members may want more of them once the blocks of all have a place
        self._paused = ""
        self._tell(True, "")

    def _tell(self, resumes: bool, reason: str) -> None:
        """The members, each of which may look much later."""
        for wants in self.wants():
            if (follow := wants.get("follow")) is not None:
                try:
                    follow(resumes, reason)
                except Exception:  # noqa: BLE001 - another copy's
                    log.exception("follow", "another copy of gpusense in this process could not follow a pause")

    def detach(self) -> None:
        """Takes CUPTI out of the process once nobody listens. Raises :class:`BackendError` with the reason if not."""
        if not self.alive:
            raise BackendError("cuptiFinalize", 7, "this process was forked from one that traced")
        if self._members:
            raise BackendError("cuptiFinalize", 7, "another copy of gpusense in this process still traces")
        thread = self._thread
        if thread is not None and thread.is_alive():  # it may be in a flush, which must not meet the end of CUPTI
            self._wake.set()
            thread.join(CLOSE_WAIT_S)
            if thread.is_alive():
                raise BackendError("cuptiFinalize", 7, "a flush of CUPTI is still under way")
        self._engine.finalize()
        self._kinds.interrupted = False

    # --- process ----------------------------------------------------------------------------------------------------

    def after_fork_in_child(self) -> None:
        """CUDA and CUPTI do not work in the child: no call, only forget. ``shared["pid"]`` tells other copies."""
        self._members = []
        self._thread = None
        self._lock = threads.lock()
        self._kinds.forget_in_child(self._lock)
        self._registering = threads.lock()
        self._reading = threads.rlock()
        self._reader = 0
        self._wake = threads.Bell()

    def at_exit(self) -> None:
        if not self.alive:
            return
        thread = self._thread
        if thread is None or not thread.is_alive():
            self._leave_all()
            return
        # On the drain thread, so that a CUPTI that does not answer cannot hold the exit.
        self._closing = True
        self._wake.set()
        thread.join(EXIT_WAIT_S)

    def _leave_all(self) -> None:
        for member in list(self._members):
            self._leave(member)

    def status(self) -> dict[str, Any]:
        """Counters and state, as builtins."""
        pause = self._kinds.lasting
        return {
            **self._engine.status(self.alive and not self._paused),
            "members": len(self._members),
            "kinds": self._kinds.wanted(),
            "refused_kinds": dict(self._kinds.refused),
            "paused": bool(self._paused),
            "reason": self._paused,
            "paused_since_ns": pause[0] if pause is not None else 0,
            "interrupted": self._kinds.interrupted,
            "flushes": self._flushes,
            "flush_error": self._flush_error,
            "buffers": self._buffers,
            "bytes": self._bytes,
            "last_buffer_monotonic_ns": self._last_buffer_ns,
            "dropped_members": self._dropped_members,
            "buffers_held_back": len(self._held_back),
            "drain_cpu_ns": self._drain_cpu_ns,
        }
