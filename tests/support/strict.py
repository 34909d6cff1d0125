"""Strict readers of what leaves the package: each raises where a careful program or terminal would be misled."""

import html.parser
import json
import re
import unicodedata

from support.protobuf import fields

#: flamegraph.pl's reading of a line, and of one with two weights.
_WEIGHED = re.compile(r"^(.*)\s+?(\d+(?:\.\d*)?)$")
#: Control characters, format characters (bidi marks among them), surrogates, private and unassigned ones, separators.
_OBEYED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_COLORS = re.compile(r"\x1b\[\d{1,2}m")
VOID = {"meta", "img", "br", "link", "hr", "input", "path", "rect", "line"}


def terminal(text):
    """Lines that move no cursor; colours of our own are allowed."""
    text.encode("utf-8")
    left = _COLORS.sub("", text).replace("\n", "")
    assert not [char for char in left if unicodedata.category(char) in _OBEYED], ascii(left)
    assert left.replace("\xa0", " ").isprintable()


def json_value(text):
    """JSON as readers in other languages take it: UTF-8, no NaN, no lone surrogate, no name twice."""
    text.encode("utf-8")

    def whole(pairs):
        names = [name for name, _ in pairs]
        assert len(names) == len(set(names)), names
        return dict(pairs)

    found = json.loads(text, parse_constant=_no_number, object_pairs_hook=whole)
    waiting = [found]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            value.encode("utf-8")
    return found


def _no_number(name):
    raise AssertionError(f"{name} is not JSON")


def collapsed(text):
    """(frames, weight) of each line."""
    rows = []
    for line in text.splitlines():
        stack, weight = _WEIGHED.match(line).groups()
        assert "." not in weight
        assert not _WEIGHED.match(stack), f"two weights: {line!r}"
        assert line.isprintable()
        frames = stack.split(";")
        assert all(frame and frame == frame.strip() for frame in frames)
        rows.append((tuple(frames), int(weight)))
    assert text.count("\n") == len(rows), "each line is one line for everybody"
    return rows


#: Of a packet and what is inside: fields that are messages, and fields that are text (protos/perfetto/trace).
_MESSAGES = {"packet": {12: "interned", 60: "track", 11: "event"}, "interned": {2: "named", 3: "named", 29: "named"},
             "track": {8: "counter", 3: "process", 4: "thread"}}  # fmt: skip
_TEXTS = {"named": {2}, "track": {2}, "counter": {6}, "process": {6}, "thread": {5}}


def perfetto(data):
    """Every text of a native trace, each valid UTF-8."""
    texts = []

    def read(kind, body):
        for number, value in fields(body):
            inner = _MESSAGES.get(kind, {}).get(number)
            if inner is not None:
                read(inner, value)
            elif number in _TEXTS.get(kind, ()):
                texts.append(value.decode("utf-8", "strict"))

    for number, packet in fields(data):
        assert number == 1
        read("packet", packet)
    return texts


class _Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.elements, self.data = [], [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open[-1] in ("li", "p", "td", "tr", "dd", "dt") and self.open[-1] != tag:
            self.open.pop()
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.data.append((self.open[-1] if self.open else "", data))


def page(text):
    """Elements and (element, text) of a page whose elements close in order."""
    text.encode("utf-8")
    found = _Page()
    found.feed(text)
    found.close()
    for element, shown in found.data:
        if element != "script":
            terminal(shown)
    return found
