"""The tools whose cost ``overhead.py`` measures, each with what begins and ends it in a process."""

import ctypes
import os
import tempfile
import threading
import time


class Tool:
    """Does nothing. ``away``, ``on`` and ``off`` are called before parts, in this order, ``stop`` once at the end.

    ``leaves``: whether ``off`` is another state than ``away``.
    """

    leaves = True

    def __init__(self, step):
        self.step = step

    def away(self): ...

    def on(self): ...

    def off(self): ...

    def stop(self): ...

    def facts(self):
        return {}


class Floor(Tool):
    """What CUPTI costs whoever has the kinds on: buffers go round, nobody looks into them, nothing is flushed."""

    def __init__(self, step):
        super().__init__(step)
        from gpusense._decode import layouts
        from gpusense.backends.cupti.activity import CuptiActivity
        from gpusense.backends.cupti.engine import Engine

        activity = CuptiActivity()
        assert activity.load() is None
        self.kinds, self.records = layouts.DEFAULT_KINDS, 0
        self.engine = Engine(activity._api, 256 << 10, 128)
        threading.Thread(target=self.recycle, daemon=True).start()

    def recycle(self):
        while True:
            time.sleep(0.2)
            while full := self.engine.take():
                self.engine.give(full[0])

    def away(self):
        self.off()
        take_out()
        self.engine.mailbox.forget_newest()

    def on(self):
        self.engine.register()
        for kind in self.kinds:
            self.engine.enable(kind)

    def off(self):
        for kind in self.kinds:
            self.engine.disable(kind)

    def facts(self):
        return {"missed": self.engine.mailbox.counters().missed}


class Flushed(Floor):
    def __init__(self, step):
        super().__init__(step)
        self.flush = Timed(self.engine.flush)
        self.recording = False
        self.asking = threading.Lock()  # CUPTI is not taken out meanwhile
        threading.Thread(target=self.ask, daemon=True).start()

    def ask(self):
        from gpusense.backends.cupti import broker

        while True:
            time.sleep(broker.PERIOD_S)
            with self.asking:
                if self.recording:
                    self.flush(False)

    def on(self):
        super().on()
        self.recording = True

    def off(self):
        with self.asking:
            self.recording = False
        super().off()

    def facts(self):
        return {**super().facts(), **self.flush.facts()}


class Timed:
    """A function that is called again and again, and how long that takes."""

    def __init__(self, function):
        self.function, self.count, self.wall_s, self.cpu_s = function, 0, 0.0, 0.0

    def __call__(self, *arguments):
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            return self.function(*arguments)
        finally:
            self.count += 1
            self.wall_s += time.perf_counter() - began
            self.cpu_s += time.thread_time() - cpu

    def facts(self):
        each = 1e3 / max(1, self.count)
        return {"flushes": self.count, "flush_ms": round(self.wall_s * each, 2), "its_cpu": round(self.cpu_s * each, 2)}


class Gpusense(Tool):
    mode = "live"
    settings: dict = {}  # noqa: RUF012

    def __init__(self, step):
        super().__init__(step)
        from gpusense._tracing import select

        self.path = os.path.join(tempfile.mkdtemp(), "run.gpusense")
        self.run = select.control.start_session(mode=self.mode, path=self.path, **self.settings)
        self.recorder = self.run.tracer.recorder
        self.flush = None
        self.on_s, self.since = 0.0, time.monotonic()
        self.off()

    def away(self):
        if self.recorder.capture.attached:
            self.off()
        reason = self.recorder.capture.detach()
        assert not reason, reason

    def on(self):
        self.recorder.resume_capture()
        deadline = time.monotonic() + 2
        while not self.recorder.capture.running and time.monotonic() < deadline:
            time.sleep(0.002)
        assert self.recorder.capture.running, self.recorder.status()
        if self.flush is None:
            engine = self.recorder.capture._activity.shared["flush"].__self__._engine
            engine.flush = self.flush = Timed(engine.flush)
        self.since = time.monotonic()

    def off(self):
        self.on_s += time.monotonic() - self.since
        self.recorder.pause_capture()

    def stop(self):
        self.run.tracer.close()

    def facts(self):
        counters = self.recorder.session().counters
        size = os.path.getsize(self.path) if os.path.exists(self.path) else 0
        cpu_ns = self.recorder._drain_cpu_ns + self.recorder._tick_cpu_ns
        return {
            "records": counters.seen,
            "lost": counters.dropped + counters.missed,
            "file_mb": round(size / 1e6, 1),
            "threads": f"{cpu_ns / self.on_s / 1e7:.2f}%",
            "rounds": f"{self.recorder.spent_s / self.on_s * 100:.2f}%",
            **self.flush.facts(),
        }


class File(Gpusense):
    mode = "file"


class Blocks(Gpusense):
    """Live, with three nested blocks a step and a sink, as a tracing backend would use it."""

    def __init__(self, step):
        import gpusense

        plain = step

        def blocks():
            with gpusense.trace("request"), gpusense.trace("step"), gpusense.trace("model"):
                return plain()

        super().__init__(blocks)
        self.spans = []
        self.run.tracer.add_sink(self.spans.extend)

    def facts(self):
        return {**super().facts(), "spans": len(self.spans)}


class Light(Tool):
    """Three nested blocks a step, timed by the device, and no CUPTI; away there are no blocks."""

    leaves = False

    def __init__(self, step):
        import gpusense
        from gpusense._tracing import select

        def blocks():
            if not self.blocks:
                return step()
            with gpusense.trace("request"), gpusense.trace("step"), gpusense.trace("model"):
                return step()

        super().__init__(blocks)
        self.blocks, self.on_s, self.since = False, 0.0, time.monotonic()
        self.run = select.control.start_session(mode="live", kernels="blocks")

    def on(self):
        self.blocks, self.since = True, time.monotonic()

    def away(self):
        if self.blocks:
            self.on_s += time.monotonic() - self.since
        self.blocks = False

    def stop(self):
        self.away()
        self.session = self.run.finish()

    def facts(self):
        found = self.session.meta["sources"]["block_times"]
        thread = self.session.meta["overhead"]["thread_cpu_ns"]
        return {
            "timed": found["timed"],
            "untimed": sum(row["count"] for row in found["untimed"]),
            "clock_us": (found["clock_error_ns"] or 0) / 1e3,
            "thread": f"{thread / self.on_s / 1e7:.2f}%",
        }


class Exact(Gpusense):
    """As :class:`Blocks`, in two asyncio tasks that take turns inside the step's block."""

    settings = {"attribution": "exact"}  # noqa: RUF012

    def __init__(self, step):
        import asyncio

        import gpusense

        loop, plain = asyncio.new_event_loop(), step

        async def idle():
            with gpusense.trace("other"):
                await asyncio.sleep(0)

        async def request():
            with gpusense.trace("request"), gpusense.trace("step"):
                await asyncio.sleep(0)
                with gpusense.trace("model"):
                    return plain()

        async def both():
            return (await asyncio.gather(request(), idle()))[0]

        super().__init__(lambda: loop.run_until_complete(both()))
        self.spans = []
        self.run.tracer.add_sink(self.spans.extend)

    def facts(self):
        counters = self.recorder.session().counters
        return {**super().facts(), "ambiguous": counters.ambiguous}


class Monitor(Tool):
    leaves = False
    watching, samples = None, 0

    def away(self):
        if self.watching is not None:
            self.watching.stop()
            self.watching = None

    def on(self):
        from gpusense import monitor

        self.watching = monitor.start_background(self.count, interval=0.1)

    def count(self, metrics):
        self.samples += 1

    stop = away

    def facts(self):
        return {"samples": self.samples}


class TorchProfiler(Tool):
    kinds = ("CUDA",)

    def on(self):
        from torch.profiler import ProfilerActivity, profile

        self.profile = profile(activities=[getattr(ProfilerActivity, kind) for kind in self.kinds], acc_events=False)
        self.profile.start()

    def away(self):
        self.off()
        take_out()

    def off(self):
        if getattr(self, "profile", None) is not None:
            began = time.perf_counter()
            self.profile.stop()
            self.stop_s = time.perf_counter() - began
            self.profile = None

    def facts(self):
        return {"stop_of_one_stretch_s": round(getattr(self, "stop_s", 0), 3)}


class TorchAll(TorchProfiler):
    kinds = ("CPU", "CUDA")


class Proton(Tool):
    leaves = False

    def __init__(self, step):
        super().__init__(step)
        import triton.profiler as proton

        self.proton, self.folder, self.started = proton, tempfile.mkdtemp(), False

    def on(self):
        self.proton.start(os.path.join(self.folder, "proton"), backend="cupti", context="shadow")
        self.started = True

    def away(self):
        self.off()

    def off(self):
        if self.started:
            self.proton.finalize()
        self.started = False

    def stop(self):
        self.off()


class CuptiPython(Tool):
    def __init__(self, step):
        super().__init__(step)
        from cupti import cupti

        self.cupti, self.count, self.slow = cupti, 0, []
        kinds = cupti.ActivityKind
        self.kinds = (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET)

    def completed(self, activities):
        for activity in activities:
            self.count += 1
            if activity.end - activity.start >= 100_000:
                self.slow.append(activity.end)

    def away(self):
        self.off()
        self.cupti.activity_flush_all(1)
        take_out()

    def on(self):
        self.cupti.activity_register_callbacks(lambda: (8 << 20, 0), self.completed)
        for kind in self.kinds:
            self.cupti.activity_enable(kind)

    def off(self):
        for kind in self.kinds:
            self.cupti.activity_disable(kind)

    def stop(self):
        self.cupti.activity_flush_all(1)

    def facts(self):
        return {"records": self.count}


def take_out():
    """Ends CUPTI in this process. Nothing may run on the device, and no other thread may launch."""
    import torch

    torch.cuda.synchronize()
    with open("/proc/self/maps") as maps:
        mapped = {line.split()[-1] for line in maps if "/libcupti.so" in line}
    for path in mapped:
        code = ctypes.CDLL(path).cuptiFinalize()
        assert code == 0, (path, code)


MAKE = {
    "none": Tool, "floor": Floor, "flushed": Flushed, "file": File, "live": Gpusense, "live+blocks": Blocks,
    "light": Light, "exact": Exact, "monitor": Monitor,
    "torch-cuda": TorchProfiler, "torch-all": TorchAll, "proton": Proton, "cupti-python": CuptiPython,
}  # fmt: skip
