"""What the user chose to see, and the keys that choose it. Pure."""

from typing import NamedTuple, Protocol

from .table import COLUMNS, DEFAULT_SORT

SEEK_S = 5
_PAGE_ROWS = 10

#: What the keys do, as the overlay tells it.
HELP = (
    ("q", "quit"),
    ("h, ?", "these keys; again, or Esc: back"),
    ("p, space", "pause, and go on"),
    ("tab, down, j", "next GPU"),
    ("shift-tab, up, k", "previous GPU"),
    ("left, right", f"the same; in a replay {SEEK_S} s back and on"),
    ("a", "all GPUs as curves, and back"),
    ("d", "only one GPU, and back"),
    ("t", "processes of all GPUs, and back"),
    ("s, S", "sort processes by the next, the previous column"),
    ("r", "sort the other way round"),
    ("/", "only processes with a text: Enter keeps it, Esc drops it"),
    ("PgUp, PgDn, Home, End", "scroll the processes, and this list"),
)


class View(NamedTuple):
    """What is looked at, and how."""

    selected: int = 0  # a device, counted round and round
    paused: bool = False
    page: str = ""  # "curves", "device", "processes"; "" shows something of each
    sort: str = DEFAULT_SORT  # a column of the processes
    reverse: bool = False
    words: str = ""  # only processes with this text
    typing: str | None = None  # what ``words`` was before the user began to type
    first: int = 0  # process at the top
    help: int | None = None  # line of the overlay at the top; None while it is closed


class Seekable(Protocol):
    def seek(self, seconds: float) -> bool:
        """Moves in time, where that can be done."""


def press(key: str, view: View, feed: Seekable) -> View | None:
    """The view after a key; None to end."""
    if view.typing is not None:
        return _typed(key, view)
    if key in ("q", "Q"):
        return None
    if key in ("h", "?"):
        return view._replace(help=0 if view.help is None else None)
    if key == "escape":
        return view._replace(help=None) if view.help is not None else view._replace(words="", first=0)
    if key in _SCROLLS:
        return _scrolled(view, _SCROLLS[key])
    if key in ("left", "right"):
        step = 1 if key == "right" else -1
        return view if feed.seek(step * SEEK_S) else view._replace(selected=view.selected + step, first=0)
    return _chosen(key, view)


def _chosen(key: str, view: View) -> View:
    if key in ("p", "P", " "):
        return view._replace(paused=not view.paused)
    if key in ("tab", "down", "j"):
        return view._replace(selected=view.selected + 1, first=0)
    if key in ("shift-tab", "up", "k"):
        return view._replace(selected=view.selected - 1, first=0)
    if key in _PAGES:
        return view._replace(page="" if view.page == _PAGES[key] else _PAGES[key], first=0, help=None)
    if key in ("s", "S"):
        place = COLUMNS.index(view.sort) + (1 if key == "s" else -1)
        return view._replace(sort=COLUMNS[place % len(COLUMNS)], reverse=False, first=0)
    if key == "r":
        return view._replace(reverse=not view.reverse, first=0)
    if key == "/":
        return view._replace(typing=view.words, help=None, first=0)
    return view


_PAGES = {"a": "curves", "d": "device", "t": "processes"}
_END = 1 << 30
_SCROLLS = {"page-up": -_PAGE_ROWS, "page-down": _PAGE_ROWS, "home": -_END, "end": _END}


def _scrolled(view: View, rows: int) -> View:
    """How far there is anything is known when it is drawn."""
    if view.help is not None:
        return view._replace(help=max(view.help + rows, 0))
    return view._replace(first=max(view.first + rows, 0))


def _typed(key: str, view: View) -> View:
    if key == "enter":
        return view._replace(typing=None)
    if key == "escape":
        return view._replace(typing=None, words=view.typing or "")
    if key == "backspace":
        return view._replace(words=view.words[:-1])
    return view._replace(words=view.words + key) if len(key) == 1 and key.isprintable() else view
