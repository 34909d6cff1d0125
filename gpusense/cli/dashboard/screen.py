"""The terminal as a screen to draw on: raw keys, sizes, changed lines only; put back as it was, whatever happens."""

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any, TextIO

_KEYS = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b[Z": "shift-tab",
    "\x1b[5~": "page-up",
    "\x1b[6~": "page-down",
    "\x1b[H": "home",
    "\x1b[1~": "home",
    "\x1bOH": "home",
    "\x1b[F": "end",
    "\x1b[4~": "end",
    "\x1bOF": "end",
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x1b": "escape",  # also the first byte of a sequence that came in two parts, so nothing should hang on it
}
#: Alternate screen, cursor hidden, no wrapping at the right edge; and back.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J", "\x1b[?7h\x1b[?25h\x1b[?1049l"


def names(text: str) -> list[str]:
    """The keys in what a terminal sent: "q", "up", "tab" …; sequences nobody knows are dropped."""
    found = []
    while text:
        if text.startswith(("\x1b[", "\x1bO")):
            end = next((place for place, c in enumerate(text[2:], 3) if c.isalpha() or c == "~"), len(text))
            found.append(_KEYS.get(text[:end], ""))
            text = text[end:]
        else:
            found.append(_KEYS.get(text[0], text[0]))
            text = text[1:]
    return [key for key in found if key]


def size(out: TextIO) -> tuple[int, int]:
    """(columns, rows) of the terminal behind ``out``; 80 × 24 where there is none."""
    try:
        columns, rows = os.get_terminal_size(out.fileno())
    except (OSError, ValueError):
        return 80, 24
    return columns or 80, rows or 24


class Screen:
    """Between ``with`` and its end the whole terminal is ours. For the main thread: it handles signals.

    An end by SIGTERM or SIGHUP, and a stop by Ctrl-Z, leave the terminal as it was found.
    """

    def __init__(self, out: TextIO, keys: TextIO) -> None:
        self._out = out
        self._keys = _Keys(keys) if keys.isatty() else None
        self._shown: list[str] = []
        self._size = (0, 0)
        self._handlers: dict[int, Any] = {}
        self._wake: tuple[int, int] | None = None

    def __enter__(self) -> "Screen":  # noqa: PYI034  (typing.Self is Python 3.11)
        if sys.platform != "win32":
            self._wake = os.pipe()
            for end in self._wake:
                os.set_blocking(end, False)
            self._handle(signal.SIGWINCH, self._resized)
            self._handle(signal.SIGTSTP, self._stop)
            self._handle(signal.SIGHUP, self._end)
        self._handle(signal.SIGTERM, self._end)
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._give_back()
        for end in self._wake or ():
            os.close(end)

    def draw(self, lines: list[str]) -> None:
        """Shows ``lines`` from the top; writes only those that changed, all of them after a resize."""
        now = size(self._out)
        parts = []
        if now != self._size:
            self._size, self._shown = now, []
            parts.append("\x1b[2J")
        for row, line in enumerate(lines):
            if row >= len(self._shown) or self._shown[row] != line:
                # Erased first: after a line that fills its row, the cursor still stands on the last cell.
                parts.append(f"\x1b[{row + 1};1H\x1b[K{line}")
        if len(lines) < len(self._shown):
            parts.append(f"\x1b[{len(lines) + 1};1H\x1b[J")
        self._shown = list(lines)
        if parts:
            self._out.write("".join(parts))
            self._out.flush()

    def size(self) -> tuple[int, int]:
        return size(self._out)

    def wait(self, seconds: float) -> list[str]:
        """Keys pressed; returns with the first, after a resize, or after ``seconds``."""
        if self._keys is not None and sys.platform == "win32":
            return self._keys.wait(seconds)
        import select

        watched = [self._wake[0]] if self._wake else []
        if self._keys is not None:
            watched.append(self._keys.descriptor)
        ready = select.select(watched, [], [], max(seconds, 0))[0]
        if self._wake and self._wake[0] in ready:
            os.read(self._wake[0], 512)
        if self._keys is not None and self._keys.descriptor in ready:
            return self._keys.read()
        return []

    def _handle(self, number: int, handler: Any) -> None:
        self._handlers[number] = signal.signal(number, handler)

    def _take(self) -> None:
        if self._keys is not None:
            self._keys.take()
        self._size = (0, 0)
        self._out.write(_ENTER)
        self._out.flush()

    def _give_back(self) -> None:
        try:
            self._out.write(_LEAVE)
            self._out.flush()
        except (OSError, ValueError):  # the terminal went away
            pass
        if self._keys is not None:
            self._keys.give_back()

    def _resized(self, _number: int, _frame: FrameType | None) -> None:
        self._nudge()

    def _nudge(self) -> None:
        if self._wake:
            try:
                os.write(self._wake[1], b"x")
            except OSError:  # full: it will wake anyway
                pass

    def _end(self, number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
        self._nudge()


if sys.platform == "win32":
    import msvcrt
    import time

    class _Keys:
        """The console's keyboard."""

        def __init__(self, _source: TextIO) -> None:
            os.system("")  # makes an older console understand escape sequences

        def take(self) -> None: ...

        def give_back(self) -> None: ...

        def wait(self, seconds: float) -> list[str]:
            end = time.monotonic() + seconds
            while not msvcrt.kbhit():
                if time.monotonic() >= end:
                    return []
                time.sleep(0.05)
            arrows = {"H": "up", "P": "down", "K": "left", "M": "right", "I": "page-up", "Q": "page-down"}
            arrows |= {"G": "home", "O": "end"}
            key = msvcrt.getwch()
            if key == "\x03":
                raise KeyboardInterrupt
            return [arrows.get(msvcrt.getwch(), "")] if key in "\x00\xe0" else names(key)

else:
    import termios
    import tty

    class _Keys:
        """The keyboard of a terminal: no line editing, no echo; Ctrl-C and Ctrl-Z stay signals."""

        def __init__(self, source: TextIO) -> None:
            self.descriptor = source.fileno()
            self._before: list[Any] | None = None

        def take(self) -> None:
            self._before = termios.tcgetattr(self.descriptor)
            tty.setcbreak(self.descriptor)

        def give_back(self) -> None:
            if self._before is not None:
                try:
                    termios.tcsetattr(self.descriptor, termios.TCSADRAIN, self._before)
                except termios.error:  # the terminal went away
                    pass

        def read(self) -> list[str]:
            data = os.read(self.descriptor, 256)
            if not data:
                raise EOFError("the terminal was closed")
            return names(data.decode("utf-8", "replace"))
