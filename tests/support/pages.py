"""The HTML page as a browser would read it."""

import base64
import io
import json
import struct
from html.parser import HTMLParser

from gpusense.report.html import page as html


class Page(HTMLParser):
    """What a browser would make of the file: elements, scripts and visible text."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.scripts, self.text, self._open = [], {}, [], None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self._open = dict(attrs).get("id", "code")
            self.scripts[self._open] = ""
        elif tag == "style":
            self._open = "style"
            self.scripts["style"] = ""

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._open = None

    def handle_data(self, data):
        if self._open:
            self.scripts[self._open] += data
        else:
            self.text.append(data)

    @property
    def data(self):
        return json.loads(self.scripts["data"])

    def column(self, name):
        raw = base64.b64decode(self.scripts[f"column-{name}"], validate=True)
        code = "d" if name in ("start", "length") else "I"
        return list(struct.unpack(f"<{len(raw) // struct.calcsize(code)}{code}", raw))


def page_of(run, **options):
    file = io.StringIO()
    html.write(run, file, **options)
    text = file.getvalue()
    text.encode("utf-8")  # lone surrogates would fail here
    return Page(text)
