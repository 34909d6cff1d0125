"""JSON written in pieces: character for character the text of the whole, with no more than a few rows held."""

import io
import json
import math
import tracemalloc
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sessions import H100, HOSTILE, MS, block, crowd, eventful, kernel, sample, session, training

from gpusense._records import json_codec
from gpusense._tracing.summary import export_json
from gpusense.report import json_stream
from gpusense.report.json import pieces, to_dict, write
from gpusense.report.json_stream import Rows
from gpusense.session import Session

leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
leaves |= st.text() | st.sampled_from(HOSTILE)
# Small: what is written differs by kind and depth, and making examples takes longer than writing them.
few = {"max_size": 3}
values = st.recursive(
    leaves, lambda inner: st.lists(inner, **few) | st.dictionaries(st.text(), inner, **few), max_leaves=4
)
rows = st.lists(values, **few)


@given(st.dictionaries(st.text(), st.tuples(st.booleans(), rows), **few), st.sampled_from([None, 0, 1, 2, 7]))
def test_pieces_are_the_text_of_the_whole(members, indent):
    whole = {name: items for name, (_, items) in members.items()}
    for portable in (False, True):
        made = [(name, Rows(items, lambda item: item) if many else items) for name, (many, items) in members.items()]
        text = "".join(json_stream.pieces(made, portable=portable, indent=indent))
        assert text == json_codec.dumps(whole, portable=portable, indent=indent)


def test_more_rows_than_are_held_at_once():
    for count in (255, 256, 257, 1000):
        made = [("rows", Rows(range(count), lambda number: {"number": number}))]
        assert json.loads("".join(json_stream.pieces(made))) == {"rows": [{"number": n} for n in range(count)]}


class Mixed(NamedTuple):
    """Fields that are equal and not the same."""

    first: Any
    second: Any = ()


@given(
    st.lists(
        st.builds(Mixed, values, st.lists(st.sampled_from([0, False, 1, True, 1.0, "1", None]), max_size=3).map(tuple)),
        max_size=8,
    ),
    st.sampled_from([None, 2]),
)
def test_rows_of_tuples_are_the_text_of_their_encoding(items, indent):
    figures = {"length": lambda item: len(item.second), "text": lambda item: str(item.second)}

    def row(item):
        return {**json_codec.encode(item, full=True), **{name: figure(item) for name, figure in figures.items()}}

    for portable in (False, True):
        text = "".join(json_stream.pieces([("rows", Rows(items, row, figures))], portable=portable, indent=indent))
        assert text == json_codec.dumps({"rows": [row(item) for item in items]}, portable=portable, indent=indent)


class Odd:
    def __str__(self):
        return "odd \ud83d"


def sessions_of_every_kind():
    odd = {"none": None, "inf": math.inf, "list": [1, (2, "x")], "odd": Odd(), "deep": {"a": {"b": [()]}}, "b": b"\xff"}
    hostile = [
        kernel(name, place, place + 1, path=("step", name), grid=(1, 2, 3), ambiguous=(1, 2), attributes={name: name})
        for place, name in enumerate(HOSTILE)
    ]
    return {
        "empty": Session(),
        "eventful": eventful(),
        "training": training(),
        "hostile": session(*hostile, block(("step",), 0, MS, attributes=odd), kernel("k", 0, 1, occupancy=0.5)),
        "odd floats": session(
            kernel("k", 0, 1, occupancy=math.nan), kernel("k", 1, 2, attributes={"x": math.inf, "y": (1.5, -math.inf)})
        ),
        "metrics": session(devices=(H100,), metrics=[sample(place * MS, watts=300.5) for place in range(600)]),
    }


@pytest.mark.parametrize("name", sessions_of_every_kind())
@pytest.mark.parametrize("indent", [None, 2])
def test_a_report_is_the_text_of_its_dictionary(name, indent):
    made = sessions_of_every_kind()[name]
    for portable in (False, True):
        text = "".join(pieces(made, portable=portable, indent=indent))
        assert text == json_codec.dumps(to_dict(made), portable=portable, indent=indent)
    out = io.StringIO()
    write(made, out, indent=indent)
    assert out.getvalue() == json_codec.dumps(to_dict(made), portable=True, indent=indent) + "\n"


def test_the_dictionary_holds_lists_and_not_what_makes_them():
    report = to_dict(training())
    assert {type(report[name]) for name in ("blocks", "records", "aggregates", "metrics")} == {list}
    assert isinstance(report["records"][0]["path"], list)


def test_exported_text_and_file_are_the_same(tmp_path):
    made = training()
    assert export_json(made, tmp_path / "run.json") is None
    assert (tmp_path / "run.json").read_text("utf-8") == export_json(made) == json_codec.dumps(to_dict(made), indent=2)


class Nowhere(io.TextIOBase):
    def __init__(self):
        self.written = self.longest = 0

    def write(self, text):
        self.written += len(text)
        self.longest = max(self.longest, len(text))
        return len(text)


def test_writing_holds_a_few_rows_whatever_their_number():
    """Of ten times the records ten times the text, and only what the analyses need of memory."""
    needed, longest = [], []
    for count in (1_000, 10_000):
        made, out = crowd(count), Nowhere()
        write(made, Nowhere())  # what is made once, and modules
        tracemalloc.start()
        write(made, out)
        needed.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        longest.append(out.longest)
    assert out.written > 400 * 10_000
    assert longest[1] < 300_000
    assert needed[1] < 400 * 10_000  # less than half of the text alone
