"""One offline HTML file: verdict, timeline, shares, flame graph, device metrics, table. No request, no dependency.

Text reaches the page as escaped HTML or as JSON that the script inserts with ``textContent``; the content security
policy allows only the one script and the one style sheet whose hashes it names.
"""

import base64
import hashlib
import html as markup
import json
import os
from typing import IO, Any

from ..._runtime.text import printable
from ...session import Session
from ..files import output
from ..style import glued
from .data import PageData, page_data

_PAGE = (
    *("base.js", "places.js", "events.js", "area.js", "drawing.js", "timeline.js"),
    *("flame.js", "charts.js", "roofline.js", "matrix.js", "table.js", "page.js"),
)
#: Events drawn one by one; beyond it short ones are joined, and the page says so.
EVENT_LIMIT = 2_000_000


def write(
    session: Session,
    target: "str | os.PathLike[str] | IO[str]",
    *,
    title: str = "",
    event_limit: int = EVENT_LIMIT,
    embedded: bool = False,
) -> None:
    """Writes the report to a path or an open text file. ``title`` names the run, for example its file. ``embedded``:
    for a frame below the verdict, so that it begins with the timeline."""
    data = page_data(session, title=title, event_limit=event_limit)
    with output(target) as file:
        file.write(_head(data, embedded))
        file.write('<script type="application/json" id="data">')
        file.write(script_json(data.facts))
        file.write("</script>\n")
        file.write('<script type="application/octet-stream;base64" id="events">')
        step = 3 << 18  # a multiple of three, so that pieces of base64 can be joined
        for at in range(0, len(data.events), step):
            file.write(base64.b64encode(data.events[at : at + step]).decode("ascii"))
        file.write("</script>\n")
        file.write(f"<script>{_script()}</script>\n</body>\n</html>\n")


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def page_file(name: str) -> str:
    """A file of the page, read from beside this module, wherever it was imported from."""
    path = os.path.join(os.path.dirname(__file__), name)
    loader = __spec__.loader if __spec__ is not None else None
    data: bytes = loader.get_data(path)  # type: ignore[union-attr]  # the file and zip loaders both have it
    return data.decode("utf-8").replace("\r\n", "\n")


def policy(style: str, script: str | None = None) -> str:
    """A content security policy under which exactly this style sheet and this script work, and no request leaves."""
    allowed = f"style-src '{_hash(style)}'" + (f"; script-src '{_hash(script)}'" if script is not None else "")
    return f"default-src 'none'; {allowed}; img-src data:; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _script() -> str:
    return '"use strict";(() => {\n' + "\n".join(page_file(name) for name in _PAGE) + "})();"


def escape(text: object) -> str:
    """Text for an HTML document: markup inert, control characters and lone surrogates replaced."""
    return markup.escape(printable(str(text)), quote=True)


def _prose(text: object) -> str:
    """Words whose numbers stay with their units."""
    return glued(escape(text))


def _head(data: PageData, embedded: bool) -> str:
    style = page_file("page.css")
    verdict = data.facts["findings"][0]
    took = data.facts["took"] if verdict["kind"] == "nothing_seen" else ()
    evidence = "".join(f"<li>{_prose(line)}</li>" for line in verdict["evidence"])
    tiles = "".join(
        f"<div class='tile'><dt>{escape(tile['label'])}</dt><dd>{escape(tile['value'])}</dd>"
        + (f"<dd class='note'>{_prose(tile['note'])}</dd>" if tile["note"] else "")
        + "</div>"
        for tile in next(one for one in data.facts["phases"] if one["judged"])["tiles"]
    )
    fix = f"<p class='fix'><b>Try</b> {_prose(verdict['fix'])}</p>" if verdict["fix"] else ""
    notes = "\n".join(f"<p class='note'>{_prose(note)}</p>" for note in data.facts["notes"])
    of = f" · in the {escape(verdict['of'])}" if verdict["of"] else ""
    saving = f" · could save up to {escape(verdict['saving'])}" if verdict["saving"] else ""
    sure = f"<p class='quiet'>Confidence: {escape(verdict['confidence'])}{of}{saving}</p>"
    if verdict["kind"] == "nothing_seen":  # of which there is nothing to be sure
        sure = ""
    told = f"""<p class="sentence">{_prose(verdict["title"])}</p>
<ul>{evidence}</ul>
{fix}
{sure}"""
    if took:  # the program's time is the result, and that there was no GPU a remark
        advice = verdict["fix"] or "If there should be one, run gpusense doctor."
        told = f"""<p class="sentence">{_prose(took[0])}</p>
<ul>{"".join(f"<li>{_prose(line)}</li>" for line in took[1:])}</ul>
<p class="quiet">{_prose(verdict["title"])} {escape(advice)}</p>"""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(policy(style, _script()))}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(data.facts["title"])}</title>
<style>{style}</style>
</head>
<body{' class="embedded"' if embedded else ""}>
<header><h1>gpusense</h1><p>{escape(data.facts["subtitle"])}</p><div id="tools"></div></header>
<main>
<section id="verdict" class="{escape(verdict["kind"])}">
<h2>{"Result" if took else "Verdict"}</h2>
{told}
</section>
<p id="sentence">{_prose(data.facts["sentence"])}</p>
{notes}
<nav id="phases" aria-label="Phase of the run"></nav>
<dl id="tiles">{tiles}</dl>
<div id="page"><noscript>Timeline, flame graph and table need JavaScript. This file loads nothing.</noscript></div>
</main>
<footer id="foot"></footer>
"""
