"""What a notebook shows of a session: its answer in short, and the page in a frame of its own."""

import io
from html import escape as markup

from .._runtime.tables import escape, table
from ..analysis.findings import findings
from ..analysis.summary import TraceSummary
from ..session import Session
from . import text
from .counter_remarks import told_shares
from .divisions import divisions_of, operations_of
from .html import page

_HEIGHT_PX = 560


def answer(session: Session) -> str:
    """The verdict, how busy the devices were, the heaviest operations and blocks, and what was counted in these."""
    operations, blocks = session.once(operations_of), session.once(TraceSummary.of).operations
    shares = [row for row in told_shares(session) if row.reason is None]
    sentence = divisions_of(session).sentence()
    parts = [session.once(findings)[0].as_html()]
    parts += [f"<p>{escape(sentence)}</p>"] if sentence else []
    parts += [f"<h4>Operations</h4>{table(operations, 10)}"] if operations else []
    parts += [f"<h4>Blocks</h4>{table(blocks, 10)}"] if blocks else []
    parts += [f"<h4>Counters by block</h4>{table(shares, 10)}"] if shares else []
    return f"<div>{''.join(parts)}</div>"


def lines(session: Session) -> list[str]:
    """The same as text: what a run says at its end, but for the command that a shell would go on with."""
    return [line for line in text.summary(session) if not line.startswith("next: ")]


def frame(session: Session) -> str:
    """The page's timeline and what is below it, in a frame of its own: its scripts reach neither the notebook nor the
    network."""
    target = io.StringIO()
    page.write(session, target, embedded=True)
    return (
        f'<div><iframe sandbox="allow-scripts" srcdoc="{markup(target.getvalue())}" '
        f'style="width:100%;height:{_HEIGHT_PX}px;border:0"></iframe></div>'
    )
