"""The forms in which a session is written out, and the suffixes that ask for them: what ``-o`` and ``save`` mean."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

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


def form_of(path: str) -> str | None:
    """The name of the form that the suffix of ``path`` asks for; None for a session, text, and any other suffix."""
    by_suffix = {suffix: name for name, form in FORMS.items() for suffix in form.suffixes}
    lower = os.path.basename(path).lower()
    return next((by_suffix[suffix] for suffix in sorted(by_suffix, key=len)[::-1] if lower.endswith(suffix)), None)


def writer_of(path: "str | os.PathLike[str]") -> "Callable[[Session, Any], Any] | None":
    """The function that writes a session in the form that the suffix asks for; None where it asks for none."""
    name = os.fspath(path)
    form = form_of(name)
    if form is not None:
        return FORMS[form].writer()  # type: ignore[no-any-return]
    if name.lower().endswith(SESSION):
        from ..session import save

        return save
    return _TEXT.writer() if name.lower().endswith(_TEXT.suffixes) else None


def save(session: "Session", path: "str | os.PathLike[str]") -> None:
    """Writes ``session`` in the form that the suffix asks for. Raises ``ValueError`` where it asks for none."""
    write = writer_of(path)
    if write is None:
        known = (SESSION, *(suffix for form in (*FORMS.values(), _TEXT) for suffix in form.suffixes))
        raise ValueError(f"{os.fspath(path)}: the suffix chooses the form; there are {', '.join(known)}")
    write(session, path)
