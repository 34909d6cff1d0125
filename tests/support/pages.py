"""The HTML page as a browser would read it."""

import base64
import io
import json
from functools import cached_property
from html.parser import HTMLParser
from itertools import accumulate

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
        """A value of each event on the timeline: start, length, name, path, launch, size."""
        return self._columns[COLUMNS.index(name)]

    @cached_property
    def _columns(self):
        raw, at = base64.b64decode(self.scripts["events"], validate=True), 0
        found = [[] for _ in COLUMNS]
        rows = self.data["timeline"]["rows"]
        ends = [*(row["at"] for row in rows), self.data["timeline"]["count"]][1:]
        for row, end in zip(rows, ends, strict=True):
            columns = []
            for shape in row["shapes"]:
                values, at = unpacked(raw, at, shape, end - row["at"])
                columns.append(values)
            codes = columns.pop() if "after" in row else [1] * (end - row["at"])
            time, one = row["from"], rows[row["after"]]["at"] - 1 if "after" in row else 0
            for place, code in enumerate(codes):
                if code == 1:
                    columns[0][place] += time
                else:
                    one += code // 2 + 1
                    columns[0][place] = found[0][one] + found[1][one]
                    columns[1][place] = found[0][one + 1] - columns[0][place]
                time = columns[0][place] + columns[1][place]
            for column, values in zip(found, columns, strict=True):
                column += values
        assert at == len(raw)
        return found


COLUMNS = ("start", "length", "name", "path", "launch", "size")


def unpacked(raw, at, shape, count):
    """The numbers of a packed column, and where the next one begins."""
    if not shape:
        return [0] * count, at
    width, steps, far, distances, large = (*shape, 0, 0, 0)[:5]
    planes = [raw[at + count * byte :][:count] for byte in range(width)]
    values = [int.from_bytes(one, "little") for one in zip(*planes, strict=True)] if width else [0] * count
    at += width * count
    if far:
        apart, at = unpacked(raw, at, distances, far)
        others, at = unpacked(raw, at, large, far)
        for place, value in zip(accumulate(apart), others, strict=True):
            values[place] = value
    if steps:
        values = list(accumulate(-(step + 1) // 2 if step % 2 else step // 2 for step in values))
    return values, at


def page_of(run, **options):
    file = io.StringIO()
    html.write(run, file, **options)
    text = file.getvalue()
    text.encode("utf-8")  # lone surrogates would fail here
    return Page(text)
