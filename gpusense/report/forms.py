"""The forms in which a session is written out, and the suffixes that ask for them: what ``-o`` and ``save`` mean."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from .._runtime.errors import GpuSenseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..session import Session


class Form(NamedTuple):
    """How a session is written out: ``function(session, target)`` of a module below ``report``."""

    module: str
    what: str
    suffixes: tuple[str, ...]  # by which it is chosen; the first is that of the file beside a session
    beside: bool = True  # without ``-o``: into a file beside the session, not to standard output
    function: str = "write"

    def writer(self) -> Any:
        return getattr(import_module(f"..{self.module}", __name__), self.function)


#: By option. Longer suffixes are looked for first.
FORMS = {
    "json": Form("json", "one JSON object, schema gpusense.report/1", (".json",), beside=False),
    "html": Form("html.page", "one offline HTML page", (".html", ".htm")),
    "perfetto": Form("perfetto", "a native Perfetto trace for ui.perfetto.dev", (".pftrace", ".perfetto-trace")),
    "chrome": Form("chrome", "a Chrome JSON trace", (".trace.json",)),
    "flamegraph": Form("flamegraph", "collapsed stacks, in microseconds", (".folded", ".collapsed"), beside=False),
    "speedscope": Form(
        "flamegraph", "a profile for speedscope.app", (".speedscope.json",), function="write_speedscope"
    ),
}
SESSION = ".gpusense"
_TEXT = Form("text", "the report for people", (".txt",))
#: All that a suffix may ask for: what it is and its suffixes, by name. A comparison alone is written as Markdown.
_KNOWN = {
    "session": ("a session", (SESSION,)),
    "text": (_TEXT.what, _TEXT.suffixes),
    "markdown": ("a table in Markdown", (".md",)),
    **{name: (form.what, form.suffixes) for name, form in FORMS.items()},
}
#: What a session is written as.
OF_A_SESSION = ("session", "text", *FORMS)


def form_of(path: str) -> str | None:
    """The name of what the suffix of ``path`` asks for: "session", "text", "markdown" or one of :data:`FORMS`; None for
    any other suffix."""
    by_suffix = {suffix: name for name, (_, suffixes) in _KNOWN.items() for suffix in suffixes}
    lower = os.path.basename(path).lower()
    return next((by_suffix[suffix] for suffix in sorted(by_suffix, key=len)[::-1] if lower.endswith(suffix)), None)


def chosen(path: str | None, otherwise: str, possible: "Sequence[str]", asked: str | None = None) -> str:
    """What a command writes to ``path`` ("-" is standard output): what the suffix asks for, or the option ``asked``,
    else ``otherwise``. Raises :class:`GpuSenseError` where these contradict each other, where it is not ``possible``,
    and for a session on standard output."""
    found = None if path in (None, "-") else form_of(path or "")
    if found is not None and asked is not None and not _goes_with(path or "", asked):
        raise GpuSenseError(
            f"{path}: the suffix asks for {_KNOWN[found][0]}, --{asked} for {_KNOWN[asked][0]}; say one"
        )
    form = asked or found or otherwise
    if form not in possible:
        known = ", ".join(suffix for name in possible for suffix in _KNOWN[name][1])
        raise GpuSenseError(f"{path}: {_KNOWN[form][0]} is not what this command writes; it writes {known}")
    if path == "-" and form == "session":
        raise GpuSenseError("-: a session is not written to standard output; name a file")
    return form


def _goes_with(path: str, form: str) -> bool:
    """Whether a file of that form may be called so: a Chrome trace is JSON, whatever stands before that."""
    last = os.path.splitext(path)[1].lower()
    return any(suffix.endswith(last) for suffix in _KNOWN[form][1])


def writer_of(path: "str | os.PathLike[str]") -> "Callable[[Session, Any], Any] | None":
    """The function that writes a session in the form that the suffix asks for; None where it asks for none."""
    form = form_of(os.fspath(path))
    return None if form is None or form == "markdown" else writer(form)


def writer(form: str) -> "Callable[[Session, Any], Any]":
    """The function that writes a session in a form of :data:`OF_A_SESSION`."""
    if form == "session":
        from ..session import save

        return save
    return (_TEXT if form == "text" else FORMS[form]).writer()  # type: ignore[no-any-return]


def save(session: "Session", path: "str | os.PathLike[str]") -> None:
    """Writes ``session`` in the form that the suffix asks for. Raises ``ValueError`` where it asks for none."""
    write = writer_of(path)
    if write is None:
        known = (SESSION, *(suffix for form in (*FORMS.values(), _TEXT) for suffix in form.suffixes))
        raise ValueError(f"{os.fspath(path)}: the suffix chooses the form; there are {', '.join(known)}")
    write(session, path)
