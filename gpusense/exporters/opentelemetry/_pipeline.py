"""One instrumented process: sink and block listener in front, the worker's tick behind, counters of what became of all.

received = exported + folded + scopes + dropped (by reason), once the inbox is empty.
"""

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from opentelemetry.trace import SpanContext

from ..._records.records import BlockRecord, GpuBlockTime, Record
from ..._runtime import log, process
from ..._runtime.clock import now_ns
from ..._tracing import select as selection
from . import _spans as reasons
from ._attributes import MAX_TEXT, SPANNED, Redact, hang_attributes, text
from ._budget import Allowance, Placed, longest, select
from ._histograms import Work
from ._inside import OfTracer, only_place
from ._parents import Blocks, Ids, RootSpan, child, from_traceparent
from ._resource import program
from ._spans import SpanBuilder
from ._target import Sent, Target
from ._view import View
from ._worker import Inbox, Worker

#: Reasons that are no choice of anybody: the endpoint, or the way to it, did not take the records.
UNSENT = ("export_failed", "no_exporter", "queue_full")
OFF, ANOTHER_COPY = "off", "another_copy"
HANG = "gpusense.hang"
#: A block's span waits so long for what the device still does of it; reading that takes so long at most, and where it
#: takes longer the span waits, too, up to here.
HOLD_S, READ_S, LONGEST_HOLD_S = 1.0, 0.5, 10.0


class Settings(NamedTuple):
    max_spans_per_s: float | None = 2_000
    queue: int = 32_768  # records waiting for the worker
    batch: int = 1024  # spans a request, some 400 kB
    interval_s: float = 1.0
    metric_interval_s: float = 60.0
    exit_timeout_s: float = 2.0
    top_names: int = 50
    max_text: int = MAX_TEXT
    redact: Redact | None = None
    spans: bool = True
    summed_spans: bool = True


class Hang(NamedTuple):
    """The span of a hang, from its beginning until it was noticed."""

    name: str
    context: SpanContext
    parent: SpanContext | None
    attributes: dict[str, Any]
    start_ns: int
    end_ns: int
    failed: bool = True


class Providers(Protocol):
    """What keeps a pipeline on the application's providers."""

    def follow(self) -> None:
        """Looks which they are now; called at the start of each tick."""

    def unwatch(self) -> None:
        """Called at the end."""

    def forget(self) -> None:
        """Called in a forked child."""


class Pipeline:
    """``tracer_of()`` gives the tracer in force: it changes with ``configure()``, ``disable()`` and forks.

    ``metrics`` are the caller's to set before :meth:`start`; they are exported from our tick.
    """

    def __init__(
        self, tracer_of: Callable[[], Any], target: Target, settings: Settings, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._tracer_of = tracer_of
        self._joined: Any = None
        self.target = target
        self.settings = settings
        self.metrics: Any = None
        self._providers: Providers | None = None
        #: The other copy of gpusense that sends to the same exporters and came first: then nothing goes from here.
        self.yields_to: str | None = None
        self.exported = self.folded = self.scopes = 0
        self.dropped: Counter[str] = Counter()
        self.root: RootSpan | None = None
        self._remote = from_traceparent(environ)
        self._open = True
        self._ready: deque[Any] = deque(maxlen=64)
        self._root_lost = False
        self._hangs: set[int] = set()  # that were told, by when they were noticed
        self._metrics_s = time.monotonic()
        self.view = View(tracer_of, target, settings.redact)
        self.inbox = Inbox(settings.queue)
        self.work = Work(settings.top_names, now_ns())
        self._inside = OfTracer(tracer_of)
        self._held: list[Placed] = []  # blocks whose spans wait for the device, and scopes with theirs for short work
        self._held_blocks = 0  # of them
        self._held_s = 0.0  # since when, the first of them
        self._hurry = False
        self.blocks = Blocks(self.ids, self.default_parent, self._inside.watch)
        self._builder = SpanBuilder(self.blocks, self.view.scope, self.parent_at, settings.redact, settings.max_text)
        burst = (settings.max_spans_per_s or 0) * max(settings.interval_s, 1.0)
        self._allowance = Allowance(settings.max_spans_per_s, burst, time.monotonic())
        self.worker = Worker(self.tick, settings.interval_s)

    # --- on the application's and the tracer's threads ---------------------------------------------------------------

    def start(self, providers: Providers) -> None:
        self._providers = providers
        self.work.baseline(self.view.now())
        self.join()
        self.worker.start()
        process.register(self)
        _at_end_of_worker_process(self)

    @property
    def tracer(self) -> Any:
        return self._tracer_of()

    def join(self) -> None:
        """Listens to the tracer in force."""
        self._listen(self.tracer)

    def adopt(self, tracer: Any) -> None:
        """Listens to ``tracer``, which was just made; in a forked child it is the first thing to happen."""
        if self._open:
            self._listen(tracer)
            self.worker.wake()

    def _listen(self, tracer: Any) -> None:
        if tracer is self._joined:
            return
        tracer.add_sink(self.sink)
        if self.settings.spans:
            tracer.add_block_listener(self.blocks)
        self._joined = tracer

    @property
    def is_open(self) -> bool:
        return self._open

    def rejoin(self) -> None:
        """In a forked child that makes spans (a web server's worker): its own tracer, as the parent had one."""
        if not getattr(self.tracer, "active", True) and getattr(self._joined, "active", False):
            from ... import enable

            enable()
        self.join()
        self.worker.wake()

    def sink(self, records: list[Record]) -> None:
        self.inbox.put([record for record in records if type(record) in SPANNED or type(record) is GpuBlockTime])
        self.worker.wake()

    def ids(self) -> Ids | None:
        return self.target.ids() if self._open and self.settings.spans and self.yields_to is None else None

    def default_parent(self) -> SpanContext | None:
        return self.root.context if self.root is not None and self.root.end_ns is None else self._remote

    def parent_at(self, start_ns: int) -> SpanContext | None:
        """The parent of work launched under no span: the root from its start on, else what TRACEPARENT names."""
        root = self.root
        return root.context if root is not None and start_ns >= root.start_ns else self._remote

    def start_root(self, name: str, attributes: dict[str, Any]) -> RootSpan:
        ids = self.ids()
        context = child(ids, self._remote, name) if ids is not None else None
        recorder = getattr(self.tracer, "recorder", None)
        command = program(recorder.facts if recorder is not None else {}, sys.argv)
        attributes = {"process.pid": os.getpid(), "process.command": command, **attributes}
        self.root = RootSpan(text(name, 120), context, self._remote, attributes, self._finish_root)
        return self.root

    def flush(self, timeout_s: float) -> bool:
        """Whether everything that was recorded until now has been handed to the exporter in time."""
        deadline = time.monotonic() + timeout_s
        self._flush_tracer(timeout_s)
        self._hurry = True
        return self.worker.flush(max(deadline - time.monotonic(), 0.0))

    def provider_ends(self) -> None:
        """The application shuts its provider down: what is not sent now finds no exporter any more."""
        if self.root is not None:
            self.root.end()
        self.flush(self.settings.exit_timeout_s)

    def close(self, timeout_s: float | None = None) -> bool:
        """Sends what there is and ends, in ``timeout_s`` at most; False where something was still under way, or the
        endpoint did not take all that it was sent in the life of this export.
        """
        if not self._open:
            return True
        budget = self.settings.exit_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + budget
        self._flush_tracer(min(0.5, budget))
        if self.root is not None:
            self.root.end()
        self._open = False
        self._leave_tracer()
        finished = self.worker.stop(max(deadline - time.monotonic(), 0.0))
        self.target.close()
        if self.metrics is not None:
            self.metrics.close()
        return finished and not self._root_lost and not any(self.dropped_now().get(reason) for reason in UNSENT)

    # --- on the worker ----------------------------------------------------------------------------------------------

    def tick(self, final: bool) -> None:
        self.join()
        if self._providers is not None:
            self._providers.follow()
        now = time.monotonic()
        look = final or self.view.is_old(now)
        hurry, self._hurry = self._hurry or final, False
        due = len(self._held) if hurry or now - self._held_s >= HOLD_S else 0
        if due and not look and not self._flush_tracer(READ_S) and now - self._held_s < LONGEST_HOLD_S and not hurry:
            due = 0
        if look:
            self.view.look(now)  # before the inbox is emptied: the tracer hands us what was still under way
            self._note_hangs()
        records = self.inbox.take()
        if records or self._ready or due:
            self._all_accounted(records, sys.maxsize if hurry else due)
        if look:
            self.work.absorb(self.view.session())
        if self.metrics is not None and (final or now - self._metrics_s >= self.settings.metric_interval_s):
            self._metrics_s = now
            self.metrics.export()

    def _note_hangs(self) -> None:
        """A span for each hang, once."""
        for found in self.view.session().meta.get("hang") or ():
            noticed_ns, wait = found["noticed_ns"], found.get("wait") or {}
            parent, ids = self.default_parent(), self.ids()
            if noticed_ns in self._hangs or ids is None:
                continue
            self._hangs.add(noticed_ns)
            context = child(ids, parent, HANG)
            if context is not None:
                about = hang_attributes(found, wait)
                start_ns = wait.get("since_ns") or found.get("last_completed_ns") or noticed_ns
                self._ready.append(Hang(HANG, context, parent, about, min(start_ns, noticed_ns), noticed_ns))

    def _all_accounted(self, records: list[Record], due: int) -> None:
        """Whatever fails in between, each record is counted as one thing. ``due``: blocks that wait no longer."""
        before = self._accounted()
        try:
            self._spans(records, due)
        finally:
            missing = len(records) - (self._accounted() - before)
            if missing:
                self.dropped[reasons.INVALID] += missing

    def _accounted(self) -> int:
        return self.exported + self.folded + self.scopes + self._held_blocks + sum(self.dropped.values())

    def _spans(self, records: list[Record], due: int) -> None:
        blocks: list[Placed] = []
        operations: list[Placed] = []
        valid = []
        ids = self.target.ids() if self.settings.spans and self.yields_to is None else None
        nowhere = self._why_nowhere()
        self._builder.begin(self.view.resource() if ids is not None else None)
        for record in records:
            if type(record) is GpuBlockTime:  # the span of its block has it
                self.folded += 1
                continue
            found = self._builder.locate(record)
            if found != reasons.INVALID:
                valid.append(found.record if isinstance(found, Placed) else record)
            if isinstance(found, str):
                self._refuse(found if ids is not None or found == reasons.INVALID else nowhere)
                if found == reasons.SCOPE_OF_ANOTHER:
                    blocks += self._builder.scope(record)
            elif ids is None:
                self._refuse(nowhere)
            else:
                (blocks if type(found.record) is BlockRecord else operations).append(found)
        self.work.add(valid)
        blocks = self._no_longer_held(blocks, [item.record for item in operations], due)
        if ids is not None:
            self._send(self._chosen(blocks, operations, ids))
        else:
            self.dropped[nowhere] += sum(not item.parent.scope for item in blocks)

    def _no_longer_held(self, ended: list[Placed], operations: list[Record], due: int) -> list[Any]:
        """Blocks whose spans go now, with what was launched in them; ``ended`` may wait for that."""
        if not self._held and not self._inside.known:
            return [item for item in ended if not item.parent.scope]
        self._inside.add(operations)
        if not self._held:
            self._held_s = time.monotonic()
        held: list[Any] = [*self._held, *ended]
        ready, self._held = sorted(held[:due], key=lambda item: -item.record.block_id), held[due:]
        self._held_blocks = sum(not item.parent.scope for item in held[due:])
        if ready:
            self._held_s = time.monotonic()
        for at, item in enumerate(ready):
            block_id = item.record.block_id
            ready[at] = item._replace(inside=self._inside.of(block_id, item.record.parent_id, item.parent.block))
            self.blocks.release(block_id)
        return ready

    def _why_nowhere(self) -> str:
        """The reason of records that get no span because none is made at all."""
        if not self.settings.spans:
            return OFF
        return reasons.NO_PROVIDER if self.yields_to is None else ANOTHER_COPY

    def _chosen(self, blocks: list[Placed], operations: list[Placed], ids: Ids) -> list[tuple[Any, int]]:
        """Spans with the number of records each stands for, within the budget."""
        budget = self._allowance.available(time.monotonic())
        some, refused = longest([item for item in blocks if not item.parent.scope], budget)
        left = None if budget is None else max(budget - len(some), 0)
        picked = select(operations, left)
        self.dropped["budget"] += refused + picked.refused
        threshold = self.view.threshold_ns()
        summed = [*some, *(item for item in blocks if item.parent.scope)] if self.settings.summed_spans else []
        summed = [item for item in summed if item.inside is not None and item.inside.short]
        if left is not None:
            summed = summed[: max(left - len(picked.individual) - len(picked.groups), 0)]
        self._allowance.spend(len(some) + len(summed) + len(picked.individual) + len(picked.groups))
        if picked.threshold_ns is not None:
            threshold = max(picked.threshold_ns, threshold or 0)
        spans = [(self._made(self._builder.build, item, ids), 1) for item in some]
        spans += [(self._one(item, ids), 1) for item in picked.individual]
        where = only_place(self.view.session()) if len(self.view.session().devices) == 1 else None
        made = [self._made(self._builder.summed, item, self.view.threshold_ns(), ids, where) for item in summed]
        spans += [(span, 0) for span in made if span is not None and span != reasons.INVALID]
        spans += [(self._made(self._builder.fold, group, threshold, ids), group.count) for group in picked.groups]
        return spans

    def _one(self, item: Placed, ids: Ids) -> Any:
        """The span of one operation, to which its bucket of a histogram points."""
        span = self._made(self._builder.build, item, ids)
        if self.metrics is not None and span is not None and span != reasons.INVALID:
            self.work.point_at(item.record, span.context.trace_id, span.context.span_id, now_ns())
        return span

    def _made(self, make: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return make(*arguments)
        except Exception:  # noqa: BLE001 - one odd record must not cost its batch
            log.exception("otel-span", "a record could not be turned into a span")
            return reasons.INVALID

    def _send(self, spans: list[tuple[Any, int]]) -> None:
        good: list[tuple[Any, int]] = []
        while self._ready:
            good.append((self._root_span(self._ready.popleft()), 0))
        for span, count in spans:
            if span is None or span == reasons.INVALID:
                self.dropped[reasons.UNSAMPLED if span is None else reasons.INVALID] += count
            else:
                good.append((span, count))
        size = self.settings.batch
        for start in range(0, len(good), size):
            self._send_batch(good[start : start + size], more=start > 0)

    def _send_batch(self, batch: list[tuple[Any, int]], more: bool) -> None:
        try:
            failed, reason = self.target.send([span for span, _count in batch], more)
        except Exception:  # noqa: BLE001 - a foreign processor may fail in any way; it costs its batch
            log.exception("otel-send", "the exporter raised on a batch of spans, which is lost")
            failed, reason = Sent(len(batch))
        for _span, count in batch[: len(batch) - failed]:
            self.exported += count > 0
            self.folded += max(count - 1, 0)
        if failed:
            lost = [count for _span, count in batch[len(batch) - failed :]]
            self.dropped[reason] += sum(lost)
            self._root_lost |= 0 in lost  # such a span stands for no record

    def _refuse(self, reason: str) -> None:
        if reason == reasons.SCOPE_OF_ANOTHER:
            self.scopes += 1
        else:
            self.dropped[reason] += 1

    def _root_span(self, root: "RootSpan | Hang") -> Any:
        assert root.context is not None
        assert root.end_ns is not None
        return self._builder.root(
            root.name, root.context, root.parent, root.attributes, root.start_ns, root.end_ns, root.failed
        )

    # --- counters ---------------------------------------------------------------------------------------------------

    @property
    def lost_attributes(self) -> int:
        return self._builder.lost_attributes

    def dropped_now(self) -> dict[str, int]:
        """Records without a span, by reason, the ones refused by the full queue among them."""
        found = {reason: count for reason, count in list(self.dropped.items()) if count}
        if self.inbox.refused:
            found["queue_full"] = self.inbox.refused
        return found

    # --- ends -------------------------------------------------------------------------------------------------------

    def _finish_root(self, root: RootSpan) -> None:
        self._ready.append(root)

    def _flush_tracer(self, timeout_s: float) -> bool:
        try:
            return bool(self.tracer.flush(timeout_s))
        except Exception:  # noqa: BLE001 - at exit nothing may fail
            log.exception("otel-flush", "the tracer could not be flushed before the OpenTelemetry export")
            return True

    def _leave_tracer(self) -> None:
        try:
            followers = selection.control.followers
            if self.adopt in followers:
                followers.remove(self.adopt)
            if self._providers is not None:
                self._providers.unwatch()
            for tracer in (self._joined, self.tracer):
                tracer.remove_sink(self.sink)
                tracer.remove_block_listener(self.blocks)
        except Exception:  # noqa: BLE001 - at exit nothing may fail
            log.exception("otel-leave", "the OpenTelemetry export could not be ended in full")

    def at_exit(self) -> None:
        self.close()

    def after_fork_in_child(self) -> None:
        """What the parent had is the parent's; ids and open blocks stay valid as parents."""
        self.worker.forget()
        self.inbox.forget()
        self._ready.clear()
        self._root_lost = False
        self._held, self._held_blocks = [], 0
        self._inside.forget()
        self.exported = self.folded = self.scopes = 0
        self.dropped = Counter()
        self.view.forget()
        self.work = Work(self.settings.top_names, now_ns())
        if self.metrics is not None:
            self.metrics.forget(self.work)
        self.target.forget()
        if self._providers is not None:
            self._providers.forget()
        util = sys.modules.get("multiprocessing.util")
        if util is not None:  # it forgets its finalizers only after this
            util.register_after_fork(self, _at_end_of_worker_process)


def _at_end_of_worker_process(pipeline: Pipeline) -> None:
    """Forked children of multiprocessing leave without atexit, up to Python 3.12; they run finalizers of their own."""
    workers, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if workers is not None and util is not None and workers.parent_process() is not None:
        util.Finalize(None, pipeline.close, exitpriority=10)
