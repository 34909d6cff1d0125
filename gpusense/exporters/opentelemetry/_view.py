"""What changes slowly: the tracer's counters and devices, and the resource and scopes that are made of them."""

from collections.abc import Callable
from typing import Any

from ..._records.device_identity import device_of
from ..._runtime import log
from .._instruments import hardware_id
from ._attributes import Redact
from ._resource import build as build_resource
from ._resource import detected
from ._resource import scope as build_scope
from ._target import Target

MAX_SCOPES = 256
MAX_AGE_S = 10.0  # of the tracer's counters and devices


class View:
    """``session()`` is a snapshot of seconds ago; the worker takes a new one where :meth:`is_old`."""

    def __init__(self, tracer_of: Callable[[], Any], target: Target, redact: Redact | None) -> None:
        self._tracer_of = tracer_of
        self._target = target
        self._redact = redact
        self._session: Any = None
        self._taken_s = float("-inf")
        self._scopes: dict[tuple[str, Any, Any], Any] = {}
        self._resource: Any = None
        self._resource_of: Any = None

    def session(self) -> Any:
        if self._session is None:
            self._session = self.now()
        return self._session

    def is_old(self, now_s: float) -> bool:
        return now_s - self._taken_s >= MAX_AGE_S

    def look(self, now_s: float) -> None:
        """Takes a new snapshot; the tracer hands out what was still under way."""
        before, self._session, self._taken_s = self._session, self.now(), now_s
        if before is None or self._facts(before) != self._facts(self._session):
            self._resource = None
            self._scopes.clear()

    def now(self) -> Any:
        """What the tracer holds in memory. A recorder that writes a file would read all of it back to give its session;
        there the kernels are decoded after the program has ended.
        """
        tracer = self._tracer_of()
        recorder = getattr(tracer, "recorder", None)
        if recorder is None or recorder.store.mode != "file":
            return tracer.session()
        log.once("otel-file", "kernels are not sent while gpusense run writes a session file; give it --live")
        return recorder.snapshot()

    def resource(self) -> Any:
        base = getattr(self._target.provider(), "resource", None)
        if self._resource is None or base is not self._resource_of:
            session = self.session()
            self._resource_of = base
            known = base if base is not None else detected()
            self._resource = build_resource(known, session.meta, session.devices, self._redact)
        return self._resource

    def scope(self, backend: str, device: Any, context: Any) -> Any:
        known = self._scopes.get((backend, device, context))
        if known is None:
            if len(self._scopes) >= MAX_SCOPES:
                self._scopes.clear()
            info = device_of(self.session().devices, backend, device)
            known = build_scope(backend, device, context, info, self.threshold_ns(), self._redact)
            self._scopes[backend, device, context] = known
        return known

    def device_id(self, device: Any) -> str | None:
        info = device_of(self.session().devices, "wgpu", device)  # which counts CUDA's ordinals, then other cards
        return hardware_id(info) if info is not None else None

    def threshold_ns(self) -> int | None:
        found = getattr(self._tracer_of().config, "threshold_ns", None)
        return found if type(found) is int else None

    def forget(self) -> None:
        """In a forked child: the resource says which process it is."""
        self._resource = self._resource_of = None

    @staticmethod
    def _facts(session: Any) -> Any:
        return session.devices, session.meta.get("backends"), session.meta.get("frameworks")
