"""Print what the devices do: a line a sample and device, or JSON lines, or for Prometheus, until Ctrl-C."""

import argparse
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .. import monitor
from .._records.json_codec import dumps, metrics_line
from .._records.metrics import GpuMetrics
from .._runtime import threads
from .._runtime.errors import NotWritten
from .._runtime.text import count_text, gib_number, one_line, terminal
from ..report.style import style_of
from ._arguments import address, seconds

#: Samples that are kept for a reader who does not read.
_MOST_WAITING = 2_000
#: A thread that only waits wakes now and then, for signals to be handled.
_LONG_S = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="one sample of every device, then end")
    parser.add_argument("--json", action="store_true", help="JSON, one object a line (schema gpusense.metrics/1)")
    parser.add_argument("--interval", type=seconds, default=1.0, metavar="S", help="seconds between samples (1)")
    parser.add_argument(
        "--device",
        action="append",
        metavar="N",
        help='index, UUID or its beginning, PCI address, or "visible"; may be repeated (all)',
    )
    parser.add_argument(
        "--prometheus",
        type=address,
        metavar="[HOST]:PORT",
        help="print nothing, and serve /metrics there; without HOST to this machine only",
    )
    parser.add_argument(
        "--textfile",
        metavar="PATH.prom",
        help="print nothing, and write the same for node_exporter's textfile collector; removed at the end",
    )
    parser.add_argument(
        "--names", choices=("gpusense", "dcgm"), help="whose names --prometheus and --textfile use (gpusense)"
    )
    parser.add_argument("--gpm", action="store_true", help="also SM, tensor and memory activity (Hopper and later)")


def main(args: argparse.Namespace) -> int:
    """Exit code: 0; 1 where there is no device; 2 for one that does not exist."""
    devices = args.device if args.device is None or args.device != ["visible"] else "visible"
    try:
        if args.prometheus is not None or args.textfile is not None:
            return _for_prometheus(devices, args)
        if args.names is not None:
            raise ValueError("--names says what --prometheus and --textfile call the metrics")
        return _once(devices, args) if args.once else _follow(devices, args)
    except (ValueError, NotWritten) as error:
        print(terminal(f"gpusense monitor: {error}"), file=sys.stderr)
        return 2


def _once(devices: Any, args: argparse.Namespace) -> int:
    samples = monitor.snapshot(devices, gpm=args.gpm)
    if args.json:
        _print(dumps(metrics_line(samples, **_absent(samples)), portable=True))
    else:
        for sample in samples:
            _print(describe(sample))
        if not samples:
            _print(f"no device: {_why()}")
    return 0 if samples else 1


def _follow(devices: Any, args: argparse.Namespace) -> int:
    waiting: queue.SimpleQueue[GpuMetrics | None] = queue.SimpleQueue()
    missed = 0

    def take(sample: GpuMetrics) -> None:
        nonlocal missed
        if waiting.qsize() < _MOST_WAITING:
            waiting.put(sample)
        else:  # the reader of a pipe stands still
            missed += 1

    before = signal.signal(signal.SIGTERM, lambda *_: waiting.put(None))
    try:
        with monitor.start_background(take, args.interval, devices, history=1, gpm=args.gpm) as running:
            if not running.devices and running.problem is None:
                _print(dumps(metrics_line((), **_absent(())), portable=True) if args.json else f"no device: {_why()}")
                return 1
            while (sample := waiting.get()) is not None:
                _print(dumps(metrics_line((sample,)), portable=True) if args.json else describe(sample))
    except KeyboardInterrupt:  # which is how it is ended
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        if missed:
            lost = count_text(missed, "sample is", "samples are")
            print(f"gpusense monitor: {lost} not printed: the reader was too slow", file=sys.stderr)
    return 0


def _for_prometheus(devices: Any, args: argparse.Namespace) -> int:
    """Serves, or writes every ``--interval``, or both; ends with SIGINT or SIGTERM, and 0."""
    from ..exporters import prometheus

    names = args.names or "gpusense"
    if args.json or (args.once and args.prometheus is not None):
        raise ValueError(f"--prometheus and --textfile go without {'--json' if args.json else '--once'}")
    if args.once:
        samples = monitor.snapshot(devices, gpm=args.gpm)
        prometheus.write_textfile(args.textfile, samples, names)
        return 0 if samples else 1
    if args.textfile is not None and not args.textfile.endswith(".prom"):
        print("gpusense monitor: node_exporter reads only files that end in .prom", file=sys.stderr)
    ended = threads.Event()
    before = {one: signal.signal(one, lambda *_: ended.set()) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        with monitor.start_background(None, args.interval, devices, history=1, gpm=args.gpm) as running:
            if not running.devices and running.problem is None:
                text = f"gpusense monitor: no device yet, so nothing is told of one: {_why()}"
                print(terminal(text), file=sys.stderr, flush=True)
            with _served(running.latest, args.prometheus, names):
                _write_until(ended, running.latest, args, names)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    return 0


@contextmanager
def _served(latest: Callable[[], Iterable[GpuMetrics]], where: tuple[str, int] | None, names: str) -> Iterator[None]:
    from ..exporters import prometheus

    if where is None:
        yield
        return
    try:
        server = prometheus.serve(latest, *where, names)
    except OSError as error:
        raise ValueError(f"cannot listen on {where[0]}:{where[1]}: {error.strerror or error}") from None
    with server:
        print(f"gpusense monitor: serving {server.url}", file=sys.stderr, flush=True)
        yield


def _write_until(
    ended: threads.Event, latest: Callable[[], Iterable[GpuMetrics]], args: argparse.Namespace, names: str
) -> None:
    """Writes the file again and again. What is written first must succeed; later a full disk may have room again."""
    from ..exporters import prometheus

    if args.textfile is None:
        while not ended.wait(_LONG_S):
            pass
        return
    said = ""

    def write() -> None:
        nonlocal said
        try:
            prometheus.write_textfile(args.textfile, latest(), names)
        except NotWritten as error:
            if str(error) != said:
                said = str(error)
                print(terminal(f"gpusense monitor: {said}"), file=sys.stderr, flush=True)

    prometheus.write_textfile(args.textfile, latest(), names)
    try:
        while not ended.wait(args.interval):
            write()
    finally:  # else what was measured last would be read for ever
        if os.path.isfile(args.textfile) and not os.path.islink(args.textfile):
            with suppress(OSError):
                os.remove(args.textfile)


def describe(sample: GpuMetrics) -> str:
    """One line for people; what is unknown is left out, a device in trouble says which."""
    device = sample.device
    head = f"{_clock(sample.time_ns)}  {device.index} {one_line(device.name)}"
    if sample.state != "ok" and sample.reasons:
        return f"{head}  {one_line(sample.reasons[0][1], 1000)}"
    parts = [head, *_load(sample), *_state(sample)]
    return "  ".join(part for part in parts if part)


def _load(sample: GpuMetrics) -> list[str]:
    use, memory, pcie = sample.utilization, sample.memory, sample.pcie
    parts = []
    if use.gpu_percent is not None:
        parts.append(f"gpu {use.gpu_percent:3.0f} %")
    if use.sm_active_percent is not None:
        parts.append(f"sm {use.sm_active_percent:3.0f} %")
    if use.tensor_percent is not None:
        parts.append(f"tensor {use.tensor_percent:3.0f} %")
    if memory.used_bytes is not None and memory.total_bytes is not None:
        shared = " shared with the system" if memory.unified else ""
        parts.append(f"mem {gib_number(memory.used_bytes)}/{gib_number(memory.total_bytes)} GiB{shared}")
    if pcie.rx_bytes_per_s is not None and pcie.tx_bytes_per_s is not None:
        parts.append(f"pcie in {pcie.rx_bytes_per_s / 1e9:.2f} out {pcie.tx_bytes_per_s / 1e9:.2f} GB/s")
    return parts


def _state(sample: GpuMetrics) -> list[str]:
    power, thermal, clocks, health = sample.power, sample.thermal, sample.clocks, sample.health
    parts = []
    if power.draw_watts is not None:
        parts.append(f"{power.draw_watts:.0f}{f'/{power.limit_watts:.0f}' if power.limit_watts else ''} W")
    if thermal.gpu_celsius is not None:
        parts.append(f"{thermal.gpu_celsius:.0f} °C")
    if thermal.fan_percent is not None:
        parts.append(f"fan {thermal.fan_percent:.0f} %")
    if clocks.graphics_mhz is not None:
        parts.append(f"{clocks.graphics_mhz:.0f} MHz")
    slowed = [word for word in clocks.throttle_reasons or () if word not in ("idle", "application_clocks")]
    if slowed:
        parts.append(f"[{one_line(', '.join(slowed))}]")
    if health.last_xid is not None:
        parts.append(f"xid {health.last_xid}")
    return parts


def _absent(samples: tuple[GpuMetrics, ...]) -> dict[str, Any]:
    if samples:
        return {}
    return {"unavailable": {one.what: one.reason for one in monitor.why_none()}}


def _why() -> str:
    return "; ".join(map(str, monitor.why_none())) or "no backend reports one"


def _clock(time_ns: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time_ns / 1e9)) + f".{time_ns // 100_000_000 % 10}"


def _print(text: str) -> None:
    print(style_of(sys.stdout).fit(text), flush=True)
