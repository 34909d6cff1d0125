"""Watch the devices of this machine, or of a recorded session, in the terminal."""

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from .._records.metrics import GpuMetrics
from .._runtime.text import terminal
from ._arguments import seconds
from .dashboard import dashboard
from .dashboard import screen as _terminal
from .dashboard.frame import HISTORY_S
from .dashboard.processes import Host
from .dashboard.view import View

if TYPE_CHECKING:
    from ..monitor import Monitor


#: The overview's lines of the devices that are not shown in full are renewed at most this often.
_OTHERS_S = 1.0
#: What those lines do not show is read this often of them, and of the one that is shown in full.
_ASIDE_S, _ASIDE_SLOW_S = 30.0, 60.0
_BESIDE_S, _BESIDE_SLOW_S = 2.0, 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Keys: h lists them all; q quits, p pauses, tab and the arrows choose the GPU, t and a show the processes and "
        "the curves of all, s and / sort and filter processes; in a replay left and right move in time. "
        "Without a terminal to draw on, one sample is printed; gpusense monitor follows as plain lines."
    )
    parser.add_argument("--once", action="store_true", help="print one sample of every device and end")
    parser.add_argument("--json", action="store_true", help="one sample as JSON (schema gpusense.metrics/1) and end")
    parser.add_argument("--replay", metavar="SESSION", help="show the device metrics of a session file")
    parser.add_argument("--interval", type=_seconds, default=0.5, metavar="S", help="seconds between samples (0.5)")
    parser.add_argument(
        "--device",
        action="append",
        metavar="N",
        help='index, UUID or its beginning, PCI address, or "visible"; may be repeated (all)',
    )
    parser.add_argument("--ascii", action="store_true", help="draw with ASCII characters only")


def _seconds(text: str) -> float:
    value = seconds(text)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0.05 and 3600 seconds")
    return value


def main(arguments: argparse.Namespace) -> int:
    """Exit code: 0; 1 where there is no device for the one sample that is printed; 2 for one that does not exist."""
    try:
        return _replay(arguments) if arguments.replay else _live(arguments)
    except ValueError as error:
        print(terminal(f"gpusense top: {error}"), file=sys.stderr)
        return 2


def _live(args: argparse.Namespace) -> int:
    from .. import monitor

    devices: Any = "visible" if args.device == ["visible"] else args.device
    if args.once or args.json or not _drawable():
        samples = monitor.snapshot(devices, gpm=True)
        _print(args, samples, {} if samples else _absent(), _host())
        return 0 if samples else 1
    with watching(args.interval, devices) as running, Focus(args.interval) as focus:
        _draw(dashboard.Live(running, lambda: _sentences(_absent()), focus=focus.on, host=_host()), args)
    return 0


def watching(interval: float, devices: Any = None, **more: Any) -> "Monitor":
    """The monitor behind the dashboard: as long a history as the graphs reach back.

    What a line of the overview shows is read every ``interval``, or every second where that is shorter; what only the
    device in full shows, rarely. A :class:`Focus` reads more of one. ``more`` goes to ``start_background``.
    """
    from .. import monitor

    aside: dict[str, Any] = {
        "history": int(HISTORY_S / interval) + 2,
        "medium_interval": _ASIDE_S,
        "slow_interval": _ASIDE_SLOW_S,
        "process_interval": _ASIDE_S,
    }
    return monitor.start_background(None, max(interval, _OTHERS_S), devices, **aside, **more)


class Focus:
    """Keeps everything fresh of the one device that is shown in full: a monitor of that device alone.

    It shares the samples of the first monitor, which are a part of its own.
    """

    def __init__(self, interval: float, **more: Any) -> None:
        self._interval = interval
        self._more = more
        self._device: int | None = None
        self._monitor: Monitor | None = None

    def on(self, device: int) -> "Monitor | None":
        """Looks at ``device`` (its index) from now on; the monitor that does."""
        if device == self._device:
            return self._monitor
        from .. import monitor

        self._device = device
        before = self._monitor
        beside: dict[str, Any] = {
            "history": int(HISTORY_S / self._interval) + 2,
            "medium_interval": _BESIDE_S,
            "slow_interval": _BESIDE_SLOW_S,
            "process_interval": _BESIDE_S,
            "gpm": True,  # SM, tensor and memory activity, where the driver has them
            "open_timeout": 0,
        }
        self._monitor = monitor.start_background(None, self._interval, device, **beside, **self._more)
        if before is not None:
            before.stop(0)
        return self._monitor

    def __enter__(self) -> "Focus":  # noqa: PYI034  (typing.Self is Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        if self._monitor is not None:
            self._monitor.stop(0)


def _host() -> Host | None:
    """What looks at processes; None where the system has no files to look at."""
    return Host() if sys.platform == "linux" else None


def _absent() -> dict[str, str]:
    """Why this process finds no device: a reason a source."""
    from .. import monitor

    return {one.what: one.reason for one in monitor.why_none()}


def _sentences(reasons: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"{what}: {reason}" for what, reason in reasons.items())


def _replay(args: argparse.Namespace) -> int:
    from .. import load

    feed = dashboard.Replay(load(args.replay))
    if args.once or args.json or not _drawable():
        state = feed.at(feed.end_ns, View())
        _print(args, state.latest, {} if state.latest else {"session": state.notes[0]})
        return 0
    _draw(feed, args)
    return 0


def _drawable() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("dumb", "")


def _draw(feed: dashboard.Feed, args: argparse.Namespace) -> None:
    try:
        with _terminal.Screen(sys.stdout, sys.stdin) as screen:
            dashboard.run(feed, screen, dashboard.theme_for(sys.stdout, args.ascii), args.interval)
    except (EOFError, OSError, KeyboardInterrupt):  # the terminal went away, or the user does
        pass


def _print(
    args: argparse.Namespace, samples: tuple[GpuMetrics, ...], absent: dict[str, str], host: Host | None = None
) -> None:
    if args.json:
        from .._records.json_codec import dumps, metrics_line

        print(dumps(metrics_line(samples, **({"unavailable": absent} if absent else {})), portable=True))
        return
    width, _ = _terminal.size(sys.stdout)
    facts = None if host is None else dashboard.facts_of(host, samples)
    for text in dashboard.once(samples, width, dashboard.theme_for(sys.stdout, args.ascii), _sentences(absent), facts):
        print(text)
