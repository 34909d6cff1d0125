"""What a tracer answers from its session, whether it records or not; what works it out is loaded when it is asked."""

from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from os import PathLike

    from ..analysis.summary import TraceSummary
    from ..session import Session
    from .bottlenecks import Bottleneck


class Results:
    """The part of a tracer that reads its :meth:`session`."""

    _summed: "tuple[object, TraceSummary] | None" = None  # a summary, and of which state it is

    if TYPE_CHECKING:

        def session(self) -> "Session": ...

    def _repr_html_(self) -> str:
        from .._runtime.tables import escape

        return f"<p>{escape(repr(self))}</p>{self.summary().as_html()}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"{self!r}\n")
        printer.pretty(self.summary())

    def summary(self) -> "TraceSummary":
        """:class:`TraceSummary`: statistics of every block by path, with the GPU work launched inside. It is kept until
        something more is recorded."""
        session = self.session()
        state, known = _state(session), self._summed
        if known is None or known[0] != state:
            known = self._summed = (state, session.summary())
            return known[1]
        return known[1].later(session)

    def bottlenecks(self, top_n: int = 5) -> "list[Bottleneck]":
        """What took the most time, longest first: blocks, compute blocks and operations in one list of
        :class:`Bottleneck`. Each says of what its share is."""
        from .bottlenecks import bottlenecks

        return bottlenecks(self.session(), top_n)

    def print_summary(self, file: Any = None) -> None:
        """Prints :meth:`summary` as a table on ``file`` (standard output)."""
        from .summary import print_summary

        print_summary(self.session(), file)

    def print_bottlenecks(self, top_n: int = 5, file: Any = None) -> None:
        """Prints :meth:`bottlenecks` with what to try, on ``file`` (standard output)."""
        from .summary import print_bottlenecks

        print_bottlenecks(self.session(), top_n, file)

    def save(self, path: "str | PathLike[str]") -> None:
        """Writes the session so far as the suffix says: ``.gpusense``, ``.html``, ``.json``, ``.pftrace`` and others,
        as :meth:`Session.save`, which says what it raises."""
        self.session().save(path)

    @overload
    def export_json(self, path: None = None) -> str: ...

    @overload
    def export_json(self, path: "str | PathLike[str]") -> None: ...

    def export_json(self, path: Any = None) -> str | None:
        """The session as JSON (schema ``gpusense.report/1``): its text, or None where it was written to ``path``.

        To a path it is written piece by piece, so that a long session needs no more memory than it takes itself.
        """
        from .summary import export_json

        return export_json(self.session(), path)


def _state(session: "Session") -> object:
    """Equal for sessions of one tracer between which nothing was recorded: each record is counted."""
    about = {name: value for name, value in session.meta.items() if name not in ("end_ns", "overhead", "cpu_time")}
    return session.counters, session.busy, about
